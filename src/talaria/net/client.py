"""The one HTTP client: one pool per address, one TLS context. Proxies (`HTTPS_PROXY`, `NO_PROXY`) and a corporate CA
(`SSL_CERT_FILE`) are honoured; redirects are not followed, so that a key never travels to another host.

aiohttp is known only here and in `pool.py` (docs/adr/0002).

The connections to one address. A retired pool closes itself once, when its last response ends.
"""

import errno
import os
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from ipaddress import ip_address
from typing import Self
from urllib.parse import urlsplit

from talaria.core.aio import in_thread
from talaria.core.clock import Clock
from talaria.core.errors import BadConfig, CertificateRefused, Disconnected, ProviderFailure
from talaria.net import tls
from talaria.net.settings import Timeouts
from talaria.net.stall import StallWatch
from talaria.net.urls import proxy_for

with tls.certificates_unread():
    import aiohttp


class ConnectionPool:
    def __init__(self, proxy: str | None) -> None:
        self.proxy = proxy
        """Looked up once: that goes through the whole environment."""
        self._session: aiohttp.ClientSession | None = None
        self._in_use = 0
        self._is_retired = False

    @asynccontextmanager
    async def lease(self) -> AsyncGenerator[aiohttp.ClientSession]:
        """The session to send with; it stays open for as long as the lease."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
            )
        self._in_use += 1
        try:
            yield self._session
        finally:
            self._in_use -= 1
            if self._is_retired and not self._in_use:
                await self.close()

    async def retire(self) -> None:
        """Take no more requests; those under way come to their end."""
        self._is_retired = True
        if not self._in_use:
            await self.close()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


with tls.certificates_unread():
    import aiohttp

MAX_ERROR_BODY_BYTES = 64 << 10
_REFUSALS = {errno.ECONNREFUSED, errno.EADDRNOTAVAIL}
"""Of a loopback address; the second where there is no IPv6."""


class Response:
    def __init__(self, response: aiohttp.ClientResponse, host: str, watch: StallWatch, timeouts: Timeouts) -> None:
        self._response = response
        self._host = host
        self._watch = watch
        self._timeouts = timeouts
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        content = self._response.content
        while True:
            try:
                async with self._watch.waiting(self._timeouts.chunk_s):
                    chunk = await content.readany()
            except (aiohttp.ClientError, OSError, TimeoutError) as fault:
                raise _lost(self._host, fault, self._watch, self._timeouts) from fault
            if not chunk:
                return
            yield chunk

    async def read(self, limit: int | None = None) -> bytes:
        pieces: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            pieces.append(chunk)
            size += len(chunk)
            if limit is not None and size >= limit:
                break
        return b"".join(pieces)[:limit]


class HttpClient:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pools: dict[str, ConnectionPool] = {}
        self._tls: ssl.SSLContext | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._pools:
            await self._pools.popitem()[1].close()

    async def renew(self, url: str) -> None:
        """Fresh connections for this address; what is under way keeps the old ones to its end."""
        pool = self._pools.pop(_origin(url), None)
        if pool is not None:
            await pool.retire()

    def post(
        self, url: str, *, body: bytes, headers: Mapping[str, str], timeouts: Timeouts
    ) -> AbstractAsyncContextManager[Response]:
        """The response once its head has come; leaving the context ends it."""
        return self._request("POST", url, body, headers, timeouts)

    def get(self, url: str, *, headers: Mapping[str, str], timeouts: Timeouts) -> AbstractAsyncContextManager[Response]:
        return self._request("GET", url, None, headers, timeouts)

    @asynccontextmanager
    async def _request(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str], timeouts: Timeouts
    ) -> AsyncGenerator[Response]:
        host = urlsplit(url).netloc.rpartition("@")[2]
        pool = self._pool_for(url)
        context = await self._context_for(url, pool.proxy)
        async with pool.lease() as session, StallWatch(self._clock, timeouts.total_s) as watch:
            try:
                async with watch.waiting(timeouts.first_byte_s):
                    response = await session.request(
                        method,
                        url,
                        data=body,
                        headers={"Accept-Encoding": "identity", **headers},
                        proxy=pool.proxy,
                        ssl=context,
                        allow_redirects=False,
                        timeout=aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect_s),
                    )
            except aiohttp.InvalidURL as fault:
                shown = url.rpartition("@")[2]
                raise BadConfig(f"{shown!r} is not an address: check base_url in config.yaml.") from fault
            except (aiohttp.ClientError, OSError, TimeoutError) as fault:
                if pool.proxy is None and _is_loopback(url) and _is_refusal(fault):
                    raise Disconnected(f"Nothing is listening on {host}.", kind="not_listening") from fault
                raise _unreachable(host, fault, timeouts) from fault
            except ValueError as fault:
                raise BadConfig("The API key or a header holds signs that cannot be sent: check .env.") from fault
            try:
                yield Response(response, host, watch, timeouts)
            finally:
                response.release()  # back to the pool if it was read to its end, else closed

    def _pool_for(self, url: str) -> ConnectionPool:
        origin = _origin(url)
        if origin not in self._pools:
            self._pools[origin] = ConnectionPool(proxy_for(url))
        return self._pools[origin]

    async def _context_for(self, url: str, proxy: str | None) -> "ssl.SSLContext | bool":
        """Made when the first address needs it: a server on this machine usually does not."""
        if not url.startswith("https:") and not (proxy or "").startswith("https:"):
            return True
        if self._tls is None:
            self._tls = await in_thread(tls.context)
        return self._tls


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _is_loopback(url: str) -> bool:
    name = urlsplit(url).hostname or ""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _is_refusal(fault: Exception) -> bool:
    """`localhost` may have several addresses: then the fault has the number of each only in its text."""
    if not isinstance(fault, aiohttp.ClientConnectorError):
        return False
    numbers = {fault.os_error.errno} - {None} or set(map(int, re.findall(r"\[Errno (\d+)\]", str(fault.os_error))))
    return bool(numbers) and numbers <= _REFUSALS


def _unreachable(host: str, fault: Exception, timeouts: Timeouts) -> ProviderFailure:
    if isinstance(fault, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return CertificateRefused(
            f"The certificate of {host} cannot be verified. If your network has its own CA, point SSL_CERT_FILE to it."
        )
    if isinstance(fault, ssl.SSLError):
        return Disconnected(f"No secure connection to {host} can be made: check whether its address begins with https.")
    if isinstance(fault, aiohttp.ClientResponseError):
        return Disconnected(f"{host} does not answer in HTTP: check base_url in config.yaml.")
    if isinstance(fault, aiohttp.ConnectionTimeoutError):
        return Disconnected(f"{host} cannot be reached: no connection within {timeouts.connect_s:g} s.")
    if isinstance(fault, TimeoutError):
        return Disconnected(f"{host} did not answer within {timeouts.first_byte_s:g} s.")
    return Disconnected(f"Cannot reach {host}: {_reason(fault)}.")


def _reason(fault: Exception) -> str:
    if isinstance(fault, OSError) and fault.errno is not None and fault.errno > 0:
        return os.strerror(fault.errno)  # asyncio words a refusal as "Connect call failed ('127.0.0.1', 9)"
    return getattr(fault, "strerror", None) or str(fault) or type(fault).__name__


def _lost(host: str, fault: Exception, watch: StallWatch, timeouts: Timeouts) -> Disconnected:
    if not isinstance(fault, TimeoutError):
        return Disconnected(f"The connection to {host} broke in the middle of an answer.")
    if watch.is_out_of_time:
        return Disconnected(f"{host} had not finished its answer within {timeouts.total_s:g} s.")
    return Disconnected(f"{host} fell silent for {timeouts.chunk_s:g} s in the middle of an answer.")
