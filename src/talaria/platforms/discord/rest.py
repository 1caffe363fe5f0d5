"""Discord's REST API: one request, one attempt, and what its refusals mean.

The client of discord.py waits out every 429 by itself and repeats what ended in a 5xx up to five times, sends included.
What is sent again is for the gateway to decide (docs/adr/0045).
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import aiohttp
import msgspec

from talaria.net.urls import proxy_for
from talaria.platforms.base import AccessLost, File, NotTaken, PlatformFailure, Refused, Rejected, Unsure
from talaria.platforms.discord.incoming import read
from talaria.platforms.http_sessions import (
    CHUNK_BYTES,
    explain_no_answer,
    load_certificates,
    open_file,
    open_session,
    parse_retry_after,
    save,
)

_CONNECT_S = 10.0
_ANSWER_S = 30.0
_TRANSFER_S = 300.0
_CLOSE_S = 5.0
_AGENT = {"User-Agent": "DiscordBot (https://pypi.org/project/talaria-agent, 1)"}
_GATEWAY = {"v": "10", "encoding": "json", "compress": "zlib-stream"}
PORTAL = "https://discord.com/developers/applications"
_UNKNOWN_CHANNEL = 10003
_OF_THE_MESSAGE = {
    20009,  # explicit content
    50005,  # somebody else wrote it
    50021,  # a system message
    90001,  # reactions of ours are blocked
}
"""Refused with 403, though the chat is open to us."""
_BLOCKED_ON_THE_WAY = 40333

T = TypeVar("T")
Body = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class _Told(msgspec.Struct, frozen=True):
    """The body of a refusal."""

    message: str = ""
    code: int = 0
    retry_after: float | None = None


class Rest:
    def __init__(self, session: aiohttp.ClientSession, api_url: str, token: str) -> None:
        self._session = session
        self._api_url = api_url.rstrip("/")
        self._proxy = proxy_for(self._api_url)  # once: it reads the whole environment
        self.token = token

    async def call(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        *,
        query: Mapping[str, str] | None = None,
        file: File | None = None,
    ) -> bytes:
        """The answer's body. Raises what `refusal` and `explain_no_answer` make of everything else."""
        headers = {"Authorization": f"Bot {self.token}", **_AGENT}
        if body is not None and file is None:
            headers["Content-Type"] = "application/json"
        encoded = None if body is None else msgspec.json.encode(body)
        async with AsyncExitStack() as stack:
            data = encoded if file is None else _form(encoded, file, await stack.enter_async_context(open_file(file)))
            try:
                async with self._session.request(
                    method,
                    self._api_url + path,
                    params=query,
                    data=data,
                    headers=headers,
                    proxy=self._proxy,
                    allow_redirects=False,
                    timeout=_limits(_ANSWER_S if file is None else _TRANSFER_S),
                ) as response:
                    content = await response.read()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise explain_no_answer("Discord", error) from error
        if response.status >= 300:
            raise refusal(response.status, response.headers, content)
        return content

    async def ask(self, path: str, form: type[T]) -> T:
        """Asking has no effect: an answer that was lost was not taken."""
        try:
            return decode_answer(await self.call("GET", path), form)
        except Unsure as lost:
            raise NotTaken(str(lost)) from lost

    async def socket(self, url: str, max_bytes: int) -> aiohttp.ClientWebSocketResponse:
        """A websocket of the gateway, of messages of at most so many bytes."""
        return await self._session.ws_connect(
            url,
            params=_GATEWAY,
            proxy=proxy_for(url.replace("ws", "http", 1)),
            max_msg_size=max_bytes,
            autoclose=False,  # it would tell Discord to forget the session
            timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S),  # pyright: ignore[reportCallIssue]  (attrs makes it)
            headers=_AGENT,
        )

    async def download(self, url: str, to: Path, max_bytes: int) -> bool:
        """False: this address has expired. It is not shown the token. Raises `Rejected` when the file is too large."""
        try:
            async with self._session.get(
                url, proxy=proxy_for(url), timeout=_limits(_TRANSFER_S), headers=_AGENT
            ) as response:
                if response.status in (403, 404):
                    return False
                if response.status != 200:
                    raise NotTaken(f"Discord's file server answered with {response.status}.")
                await save(response.content.iter_chunked(CHUNK_BYTES), to, max_bytes)
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            return False
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise NotTaken(f"The file could not be fetched: {type(error).__name__}.") from error
        return True


@asynccontextmanager
async def connect(api_url: str, token: str) -> AsyncGenerator[Rest]:
    async with open_session(await load_certificates()) as session:
        yield Rest(session, api_url, token)


def decode_answer(body: bytes, form: type[T]) -> T:
    found = read(body, form)
    if found is None:
        raise Unsure("Discord's answer cannot be read.")
    return found


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> PlatformFailure:
    """What an answer other than 2xx means."""
    told = read(body, _Told)
    if told is None and (status < 400 or status in (403, 404, 407)):
        return NotTaken(f"Something on the way to Discord answered with {status}: check api_url and the proxy.")
    told = told or _Told()
    said = f"{told.message or 'no reason given'} ({told.code or status})"
    if status == 429:
        exact_s = told.retry_after  # the header is all there is when Discord's own servers were not reached
        wait_s = parse_retry_after(headers.get("Retry-After", "")) if exact_s is None else max(exact_s, 0.0)
        return NotTaken("Discord asks to slow down.", retry_after_s=wait_s)
    if status == 401:
        return Refused(f"Discord does not take the bot's token: copy it again from {PORTAL}.")
    if told.code == _BLOCKED_ON_THE_WAY:
        return NotTaken(f"Discord's network did not let it through: {said}.")
    if told.code == _UNKNOWN_CHANNEL or (status == 403 and told.code not in _OF_THE_MESSAGE):
        return AccessLost(f"Discord has closed this chat to the bot: {said}.")
    if status >= 500 or status == 408:
        return Unsure(f"Discord failed: {said}.")
    return Rejected(f"Discord refuses this: {said}.")


def _form(message: bytes | None, file: File, content: BinaryIO) -> aiohttp.FormData:
    form = aiohttp.FormData(quote_fields=False)  # Discord does not know the brackets when they are quoted
    form.add_field("payload_json", (message or b"{}").decode(), content_type="application/json")
    form.add_field("files[0]", content, filename=file.name, content_type=file.mime)
    return form


def _limits(total_s: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=total_s, sock_connect=_CONNECT_S)
