"""Discord's REST API: one request, one try.

The HTTP client of discord.py sleeps through every 429 and repeats up to five times what ended in a 5xx, sends included.
What is sent again is the gateway's to decide; so requests go over this client, and the library keeps the socket
(`line.py`).
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from talaria.core.aio import in_thread
from talaria.net import tls
from talaria.net.urls import proxy_for
from talaria.platforms.base import File, NotTaken, Rejected
from talaria.platforms.discord import failures
from talaria.platforms.discord.discord_py import DiscordClientWebSocketResponse
from talaria.platforms.downloads import PIECE_BYTES, save
from talaria.platforms.failures import silence

_CONNECT_S = 10.0
_ANSWER_S = 30.0
_TRANSFER_S = 300.0
_CLOSE_S = 5.0
_AGENT = {"User-Agent": "DiscordBot (https://pypi.org/project/talaria-agent, 1)"}

Body = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class Rest:
    def __init__(self, session: aiohttp.ClientSession, api_url: str, token: str) -> None:
        self._session = session
        self._api_url = api_url.rstrip("/")
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
        """The answer's body. Raises what `failures.py` makes of everything else."""
        url = self._api_url + path
        headers = {"Authorization": f"Bot {self.token}", **_AGENT}
        if file is None:
            data = None if body is None else msgspec.json.encode(body)
            headers |= {"Content-Type": "application/json"} if body is not None else {}
        else:
            data = await _form(body, file)
        try:
            async with self._session.request(
                method,
                url,
                params=query,
                data=data,
                headers=headers,
                proxy=proxy_for(url),
                allow_redirects=False,
                timeout=_limits(_ANSWER_S if file is None else _TRANSFER_S),
            ) as response:
                content = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise silence("Discord", error) from error
        if response.status >= 300:
            raise failures.refusal(response.status, response.headers, content)
        return content

    async def socket(self, url: str) -> aiohttp.ClientWebSocketResponse:
        """The library's kind of socket, over our certificates and proxy."""
        return await self._session.ws_connect(
            url,
            proxy=proxy_for(url.replace("ws", "http", 1)),
            max_msg_size=0,
            autoclose=False,
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
                await save(response.content.iter_chunked(PIECE_BYTES), to, max_bytes)
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            return False
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise NotTaken(f"The file could not be fetched: {type(error).__name__}.") from error
        return True


@asynccontextmanager
async def connected(api_url: str, token: str) -> AsyncGenerator[Rest]:
    context = await in_thread(tls.context)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=context, limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        ws_response_class=DiscordClientWebSocketResponse,
    ) as session:
        yield Rest(session, api_url, token)


async def _form(body: Body | None, file: File) -> aiohttp.FormData:
    try:
        content = await in_thread(file.path.read_bytes)
    except OSError as error:
        raise Rejected(f"The file {file.name} cannot be read: {error.strerror or error}.") from error
    form = aiohttp.FormData(quote_fields=False)  # Discord does not know the brackets when they are quoted
    form.add_field("payload_json", msgspec.json.encode(body).decode(), content_type="application/json")
    form.add_field("files[0]", content, filename=file.name, content_type=file.mime)
    return form


def _limits(total_s: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=total_s, sock_connect=_CONNECT_S)
