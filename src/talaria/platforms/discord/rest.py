"""Discord's REST API: one attempt per request, and what its refusals mean.

The client of discord.py waits out every 429 by itself and retries a 5xx up to five times, even for a message.
Here the gateway decides what is sent again (docs/adr/0045).
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

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
_ABOUT_THE_MESSAGE = {
    20009,  # explicit content
    50005,  # somebody else wrote it
    50021,  # a system message
    90001,  # reactions of ours are blocked
}
"""Codes of a 403 that is about the message: the chat is still open to us."""
_BLOCKED_BY_NETWORK = 40333

T = TypeVar("T")
Body = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class _Error(msgspec.Struct, frozen=True):
    """The body of an error response."""

    message: str = ""
    code: int = 0
    retry_after: float | None = None


class Rest:
    def __init__(self, session: aiohttp.ClientSession, api_url: str, token: str) -> None:
        self._session = session
        self._api_url = api_url.rstrip("/")
        self._proxy = proxy_for(self._api_url)  # once, because it reads the whole environment
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
        """The body of the response. Raises what `explain_refusal` and `explain_no_answer` return."""
        headers = {"Authorization": f"Bot {self.token}", **_AGENT}
        if body is not None and file is None:
            headers["Content-Type"] = "application/json"
        data: bytes | aiohttp.FormData | None = None if body is None else msgspec.json.encode(body)
        async with AsyncExitStack() as stack:
            if file is not None:
                content = await stack.enter_async_context(open_file(file))
                form = aiohttp.FormData(quote_fields=False)  # Discord does not understand quoted brackets
                form.add_field("payload_json", (data or b"{}").decode(), content_type="application/json")
                form.add_field("files[0]", content, filename=file.name, content_type=file.mime)
                data = form
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
                    answer = await response.read()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise explain_no_answer("Discord", error) from error
        if response.status >= 300:
            raise explain_refusal(response.status, response.headers, answer)
        return answer

    async def ask(self, path: str, form: type[T]) -> T:
        """A GET has no effect, so a lost answer counts as not taken."""
        try:
            return decode_answer(await self.call("GET", path), form)
        except Unsure as lost:
            raise NotTaken(str(lost)) from lost

    async def socket(self, url: str, max_bytes: int) -> aiohttp.ClientWebSocketResponse:
        """A WebSocket to the Gateway whose messages have at most `max_bytes`."""
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
        """False if the URL has expired. Does not send the token. Raises `Rejected` if the file is too large."""
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
            raise NotTaken(f"The file could not be downloaded: {type(error).__name__}.") from error
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


def explain_refusal(status: int, headers: Mapping[str, str], body: bytes) -> PlatformFailure:
    """What a response other than 2xx means."""
    error = read(body, _Error)
    if error is None and (status < 400 or status in (403, 404, 407)):
        return NotTaken(f"Something between here and Discord answered with {status}: check api_url and the proxy.")
    error = error or _Error()
    said = f"{error.message or 'no reason given'} ({error.code or status})"
    if status == 429:
        exact_s = error.retry_after  # without Discord's own servers in reach, there is only the header
        wait_s = parse_retry_after(headers.get("Retry-After", "")) if exact_s is None else max(exact_s, 0.0)
        return NotTaken("Discord asks us to slow down.", retry_after_s=wait_s)
    if status == 401:
        return Refused(f"Discord does not accept the bot's token: copy it again from {PORTAL}.")
    if error.code == _BLOCKED_BY_NETWORK:
        return NotTaken(f"Discord's network did not let it through: {said}.")
    if error.code == _UNKNOWN_CHANNEL or (status == 403 and error.code not in _ABOUT_THE_MESSAGE):
        return AccessLost(f"Discord has closed this chat to the bot: {said}.")
    if status >= 500 or status == 408:
        return Unsure(f"Discord failed: {said}.")
    return Rejected(f"Discord refuses this: {said}.")


def _limits(total_s: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=total_s, sock_connect=_CONNECT_S)
