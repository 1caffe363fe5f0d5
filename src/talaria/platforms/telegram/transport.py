"""How requests reach the Bot API: one attempt each, over aiohttp (docs/adr/0002), and for each a clear end.

python-telegram-bot calls it in place of its own client, which costs five times as much and drops the status.
"""

import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
from telegram.error import TelegramError
from telegram.request import BaseRequest, RequestData

from talaria.core.aio import in_thread
from talaria.net import tls
from talaria.net.urls import proxy_for
from talaria.platforms.downloads import PIECE_BYTES
from talaria.platforms.failures import NEVER_SENT

with tls.skip_certificates():
    import aiohttp

CONNECT_S = 10.0
UPLOAD_S = 300.0
_FAULTS = (aiohttp.ClientError, OSError, TimeoutError)


class Declined(TelegramError):
    """The service answered, and said no."""

    def __init__(
        self, status: int, words: str, *, retry_after_s: float | None = None, moved_to: int | None = None
    ) -> None:
        super().__init__(words)
        self.status = status
        self.words = words
        self.retry_after_s = retry_after_s
        self.moved_to = moved_to


class Unreached(TelegramError):
    """The request never got there."""


class ConnectionCut(TelegramError):
    """The request was on its way, and no answer came back."""


class _Parameters(msgspec.Struct, frozen=True):
    retry_after: float | None = None
    migrate_to_chat_id: int | None = None


class _Answer(msgspec.Struct):
    ok: bool
    description: str = ""
    error_code: int = 0
    parameters: _Parameters = _Parameters()


class TelegramTransport(BaseRequest):
    """A pool of connections to the Bot API. None of its errors holds the address, which holds the token."""

    def __init__(self, session: aiohttp.ClientSession, context: Any, proxy: str | None, timeout_s: float) -> None:
        self._session = session
        self._options: dict[str, Any] = {"ssl": context, "proxy": proxy, "allow_redirects": False}
        self._timeout_s = timeout_s

    @property
    def read_timeout(self) -> float | None:
        return self._timeout_s

    async def initialize(self) -> None:
        """Whoever opened the session does that."""

    async def shutdown(self) -> None:
        """Whoever opened the session does that."""

    async def do_request(
        self,
        url: str,
        method: str,  # noqa: ARG002  (always POST)
        request_data: RequestData | None = None,
        read_timeout: object = None,  # noqa: ARG002
        write_timeout: object = None,  # noqa: ARG002
        connect_timeout: object = None,  # noqa: ARG002
        pool_timeout: object = None,  # noqa: ARG002
    ) -> tuple[int, bytes]:
        if request_data is None or not request_data.contains_files:
            return 200, await self.call(url, request_data.json_parameters if request_data else {}, self._timeout_s)
        return 200, await self.call(url, _form(request_data), UPLOAD_S)

    async def call(self, url: str, data: aiohttp.FormData | Mapping[str, str], timeout_s: float) -> bytes:
        """The whole answer, which says that all went well. Raises `Declined`, `Unreached` and `ConnectionCut`."""
        connect_s = min(CONNECT_S, timeout_s / 2)
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=connect_s)
        try:
            async with self._session.post(url, data=data, timeout=timeout, **self._options) as response:
                status, body = response.status, await response.read()
        except _FAULTS as fault:
            raise _lost(fault) from None
        return _checked(status, body)

    async def download(self, url: str) -> AsyncGenerator[bytes]:
        """A file's pieces. Raises `Declined`, `Unreached` and `ConnectionCut`."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=self._timeout_s)
        try:
            async with self._session.get(url, timeout=timeout, **self._options) as response:
                if response.status != 200:
                    raise Declined(response.status, "no such file")
                async for piece in response.content.iter_chunked(PIECE_BYTES):
                    yield piece
        except _FAULTS as fault:
            raise _lost(fault) from None


@asynccontextmanager
async def opened(base_url: str, timeout_s: float) -> AsyncGenerator[TelegramTransport]:
    context = await in_thread(tls.make_tls_context) if base_url.startswith("https:") else True
    connector = aiohttp.TCPConnector(limit=0)  # how many chats are answered at once is not decided here
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield TelegramTransport(session, context, proxy_for(base_url), timeout_s)


def _form(data: RequestData) -> aiohttp.FormData:
    form = aiohttp.FormData(quote_fields=False)
    for name, value in data.json_parameters.items():
        form.add_field(name, value)
    for name, (filename, content, mime) in cast("dict[str, tuple[str, Any, str]]", data.multipart_data).items():
        form.add_field(name, content, filename=filename, content_type=mime)
    return form


def mended(body: bytes) -> bytes:
    """One half of a sign is legal in JSON, but nobody here can read it: a question mark takes its place."""
    try:
        return json.dumps(json.loads(body), ensure_ascii=False).encode("utf-8", "replace")
    except (RecursionError, ValueError):
        return body


def _checked(status: int, body: bytes, *, is_mended: bool = False) -> bytes:
    """Raises `Declined` or, when nobody knows what was answered, `ConnectionCut`."""
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        if not is_mended:
            return _checked(status, mended(body), is_mended=True)
        if 200 <= status < 300:
            raise ConnectionCut("what came back is no answer") from None
        raise Declined(status, f"HTTP {status}") from None
    if answer.ok and 200 <= status < 300:
        return body
    if 200 <= status < 300:
        status = answer.error_code
    told = answer.parameters
    raise Declined(status, answer.description, retry_after_s=told.retry_after, moved_to=told.migrate_to_chat_id)


def _lost(fault: Exception) -> Unreached | ConnectionCut:
    """An old connection that the other side has closed breaks before the request is whole."""
    is_unwritten = isinstance(fault, (*NEVER_SENT, aiohttp.InvalidURL)) or "closing transport" in str(fault.__cause__)
    return Unreached(_reason(fault)) if is_unwritten else ConnectionCut(_reason(fault))


def _reason(fault: Exception) -> str:
    if isinstance(fault, TimeoutError):
        return "it took too long"
    if isinstance(fault, OSError) and fault.errno is not None and fault.errno > 0:
        return os.strerror(fault.errno).lower()
    return "the connection was cut" if isinstance(fault, aiohttp.ClientConnectionError) else type(fault).__name__
