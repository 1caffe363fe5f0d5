"""One request to addresses that were checked, and its answer. No redirects, no cookies, no connection is used twice.

The connector gets a resolver that knows only the checked addresses, so that nobody is asked a second time between the
check and the use, and sockets that dial nothing else. TLS still verifies the name. aiohttp is known here, in
`client.py` and in `pool.py`; `fetch.py` loads this with the first page.
"""

import math
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from yarl import URL

from talaria.core.aio import in_thread
from talaria.core.errors import BadConfig, ToolFailed
from talaria.net import tls
from talaria.net.stall import StallWatch
from talaria.net.urls import WebUrl, proxy_for

with tls.certificates_unread():
    import aiohttp
    from aiohttp.abc import AbstractResolver, ResolveResult

MAX_HEADER_BYTES = 32 << 10
"""Of one header line; pages with long content policies come close."""
MAX_HEADERS = 128
REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True, slots=True)
class FetchRequest:
    url: WebUrl
    addresses: tuple[str, ...]
    """Where to dial, unless a proxy does that; none if the host is not known here."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    method: Literal["GET", "POST"] = "GET"
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    status: int
    headers: Mapping[str, str]
    """By any case."""
    body: bytes = b""
    """As it came, perhaps packed; of a redirect nothing."""
    is_cut: bool = False

    @property
    def location(self) -> str | None:
        return self.headers.get("Location") if self.status in REDIRECTS else None


class Exchange:
    def __init__(self, tls_context: Callable[[], ssl.SSLContext]) -> None:
        """The context is made, in a thread, when the first address needs it."""
        self._make_tls = tls_context
        self._tls: ssl.SSLContext | None = None

    async def ask(self, request: FetchRequest, watch: StallWatch, limit: int) -> FetchAnswer:
        """At most `limit` bytes of the answer. Raises `ToolFailed`, and `TimeoutError` when the watch's time is up."""
        proxy = _proxy(request.url)
        if proxy is None and not request.addresses:
            raise ToolFailed(f"No host is called {request.url.host}.")
        async with watch.waiting(math.inf):
            context = await self._context(request.url, proxy)
        async with aiohttp.ClientSession(
            connector=_connector(request) if proxy is None else aiohttp.TCPConnector(force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            max_headers=MAX_HEADERS,
            timeout=aiohttp.ClientTimeout(total=None),
            proxy=proxy,
        ) as session:
            try:
                return await _ask(session, request, watch, context, limit)
            except TimeoutError:
                raise
            except (aiohttp.ClientError, OSError, ValueError) as fault:
                raise _told(request, fault) from fault

    async def _context(self, url: WebUrl, proxy: str | None) -> ssl.SSLContext | None:
        if url.scheme == "http" and not (proxy or "").startswith("https:"):
            return None
        if self._tls is None:
            self._tls = await in_thread(self._make_tls)
        return self._tls


def _proxy(url: WebUrl) -> str | None:
    try:
        return proxy_for(str(url))
    except BadConfig as fault:
        raise ToolFailed(str(fault)) from fault


async def _ask(
    session: aiohttp.ClientSession,
    request: FetchRequest,
    watch: StallWatch,
    context: ssl.SSLContext | None,
    limit: int,
) -> FetchAnswer:
    async with watch.waiting(math.inf):
        response = await session.request(
            request.method,
            URL(str(request.url), encoded=True),
            data=request.body,
            headers=request.headers,
            ssl=context or True,
            allow_redirects=False,
        )
    try:
        head = FetchAnswer(response.status, response.headers)
        if head.location is not None:
            return head
        body = await _read(response.content, watch, limit)
        return FetchAnswer(head.status, head.headers, body[:limit], len(body) > limit)
    finally:
        response.close()


async def _read(content: aiohttp.StreamReader, watch: StallWatch, limit: int) -> bytes:
    """One byte more than `limit`, if there is more."""
    pieces: list[bytes] = []
    left = limit + 1
    while left > 0:
        async with watch.waiting(math.inf):
            piece = await content.readany()
        if not piece:
            break
        pieces.append(piece[:left])
        left -= len(piece)
    return b"".join(pieces)


def _connector(request: FetchRequest) -> aiohttp.TCPConnector:
    def dial(place: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
        """The last look: whatever led here, only a checked address is dialled."""
        family, kind, protocol, _, address = place
        if address[0] not in request.addresses:
            raise OSError("this address was not checked")
        return socket.socket(family, kind, protocol)

    return aiohttp.TCPConnector(
        resolver=_Checked(request.url.host, request.addresses),
        use_dns_cache=False,
        force_close=True,
        socket_factory=dial,
    )


class _Checked(AbstractResolver):
    """Knows one host, and only its checked addresses."""

    def __init__(self, host: str, addresses: tuple[str, ...]) -> None:
        self._host = host
        self._addresses = addresses

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002
    ) -> list[ResolveResult]:
        if host != self._host:
            raise OSError("this host was not checked")
        return [self._result(address, port) for address in self._addresses]

    def _result(self, address: str, port: int) -> ResolveResult:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return ResolveResult(
            hostname=self._host, host=address, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST
        )

    async def close(self) -> None:
        return None


def _told(request: FetchRequest, fault: Exception) -> ToolFailed:
    host = request.url.host
    match fault:
        case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
            return ToolFailed(f"The proxy did not let the request to {host} pass.")
        case aiohttp.ClientConnectorCertificateError() | ssl.SSLCertVerificationError():
            return ToolFailed(f"The certificate of {host} cannot be verified; it is not fetched.")
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return ToolFailed(f"No secure connection to {host} can be made.")
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError():
            return ToolFailed(f"The connection to {host} broke in the middle of the answer.")
        case aiohttp.ClientResponseError():
            return ToolFailed(f"What {host} answers is not HTTP, or its headers are too long.")
        case OSError(errno=int(number)) if number > 0:
            return ToolFailed(f"{host} cannot be reached: {os.strerror(number)}.")
        case _:
            return ToolFailed(f"{host} cannot be reached.")
