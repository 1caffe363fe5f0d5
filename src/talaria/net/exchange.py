"""One request to checked addresses, and its response: without redirects, cookies or reused connections.

The connector's resolver knows only the checked addresses, so nothing is looked up again between the check and the use,
and its sockets connect to nothing else. TLS still verifies the name. `fetch.py` loads this module with the first page.
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

with tls.skip_certificates():
    import aiohttp
    from aiohttp.abc import AbstractResolver, ResolveResult

MAX_HEADER_BYTES = 32 << 10
"""For one header line; pages with long content policies come close."""
MAX_HEADERS = 128
REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True, slots=True)
class FetchRequest:
    url: WebUrl
    addresses: tuple[str, ...]
    """Where to connect, unless a proxy does that; none if the host is unknown here."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    method: Literal["GET", "POST"] = "GET"
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class FetchResponse:
    status: int
    headers: Mapping[str, str]
    """Names are case-insensitive."""
    body: bytes = b""
    """As received, perhaps compressed; empty for a redirect."""
    is_cut: bool = False

    @property
    def location(self) -> str | None:
        return self.headers.get("Location") if self.status in REDIRECTS else None


class Exchange:
    def __init__(self, tls_context: Callable[[], ssl.SSLContext]) -> None:
        """`tls_context` is called, in a thread, when the first address needs it."""
        self._make_tls = tls_context
        self._tls: ssl.SSLContext | None = None

    async def ask(self, request: FetchRequest, watch: StallWatch, limit: int) -> FetchResponse:
        """At most `limit` bytes of the answer. Raises `ToolFailed`, and `TimeoutError` when the watch's time is up."""
        try:
            proxy = proxy_for(str(request.url))
        except BadConfig as fault:
            raise ToolFailed(str(fault)) from fault
        if proxy is None and not request.addresses:
            raise ToolFailed(f"There is no host called {request.url.host}.")
        context = None
        if request.url.scheme == "https" or (proxy or "").startswith("https:"):
            async with watch.limit(math.inf):
                context = self._tls = self._tls or await in_thread(self._make_tls)
        async with aiohttp.ClientSession(
            connector=_make_connector(request) if proxy is None else aiohttp.TCPConnector(force_close=True),
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
                raise _explain(request, fault) from fault


async def _ask(
    session: aiohttp.ClientSession,
    request: FetchRequest,
    watch: StallWatch,
    context: ssl.SSLContext | None,
    limit: int,
) -> FetchResponse:
    async with watch.limit(math.inf):
        response = await session.request(
            request.method,
            URL(str(request.url), encoded=True),
            data=request.body,
            headers=request.headers,
            ssl=context or True,
            allow_redirects=False,
        )
    try:
        head = FetchResponse(response.status, response.headers)
        if head.location is not None:
            return head
        chunks: list[bytes] = []
        left = limit + 1
        while left > 0:
            async with watch.limit(math.inf):
                chunk = await response.content.readany()
            if not chunk:
                break
            chunks.append(chunk[:left])
            left -= len(chunk)
        body = b"".join(chunks)
        return FetchResponse(head.status, head.headers, body[:limit], len(body) > limit)
    finally:
        response.close()


def _make_connector(request: FetchRequest) -> aiohttp.TCPConnector:
    def make_socket(place: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
        """The last check: whatever led here, only a checked address is dialled."""
        family, kind, protocol, _, address = place
        if address[0] not in request.addresses:
            raise OSError("this address was not checked")
        return socket.socket(family, kind, protocol)

    return aiohttp.TCPConnector(
        resolver=_CheckedResolver(request.url.host, request.addresses),
        use_dns_cache=False,
        force_close=True,
        socket_factory=make_socket,
    )


class _CheckedResolver(AbstractResolver):
    """Knows a single host and only its checked addresses."""

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
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        return None


def _explain(request: FetchRequest, fault: Exception) -> ToolFailed:
    host = request.url.host
    match fault:
        case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
            return ToolFailed(f"The proxy did not allow the request to {host}.")
        case aiohttp.ClientConnectorCertificateError() | ssl.SSLCertVerificationError():
            return ToolFailed(f"The certificate of {host} cannot be verified, so it is not fetched.")
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return ToolFailed(f"Cannot make a secure connection to {host}.")
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError():
            return ToolFailed(f"The connection to {host} broke in the middle of the answer.")
        case aiohttp.ClientResponseError():
            return ToolFailed(f"{host} does not answer in HTTP, or its headers are too long.")
        case OSError(errno=int(number)) if number > 0:
            return ToolFailed(f"{host} cannot be reached: {os.strerror(number)}.")
        case _:
            return ToolFailed(f"{host} cannot be reached.")
