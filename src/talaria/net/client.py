"""The HTTP client, with one pool per address and one TLS context; and the splitter of event streams.

Proxies (`HTTPS_PROXY`, `NO_PROXY`) and a corporate CA (`SSL_CERT_FILE`) are honoured. Redirects are not followed, so
that a key never travels to another host. Apart from platforms, only this module and `exchange.py` import aiohttp
(docs/adr/0002).
"""

import errno
import os
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from ipaddress import ip_address
from typing import Self
from urllib.parse import urlsplit

from talaria.core.aio import in_thread
from talaria.core.clock import Clock
from talaria.core.errors import BadConfig, CertificateRefused, Disconnected, ProviderFailure
from talaria.net import tls
from talaria.net.stall import StallWatch
from talaria.net.urls import proxy_for
from talaria.net.web_settings import Timeouts

with tls.skip_certificates():
    import aiohttp


class ConnectionPool:
    """The connections to one address. A retired pool closes itself when its last response ends."""

    def __init__(self, proxy: str | None) -> None:
        self.proxy = proxy
        """Looked up once, because that reads the whole environment."""
        self._session: aiohttp.ClientSession | None = None
        self._in_use = 0
        self._is_retired = False

    async def __aenter__(self) -> aiohttp.ClientSession:
        """The session to send with; it stays open until `__aexit__`."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
            )
        self._in_use += 1
        return self._session

    async def __aexit__(self, *_: object) -> None:
        self._in_use -= 1
        if self._is_retired and not self._in_use:
            await self.close()

    async def retire(self) -> None:
        """Take no more requests; those under way still finish."""
        self._is_retired = True
        if not self._in_use:
            await self.close()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


MAX_ERROR_BODY_BYTES = 64 << 10
_REFUSALS = {errno.ECONNREFUSED, errno.EADDRNOTAVAIL}
"""From a loopback address; the second occurs on machines without IPv6."""


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
                async with self._watch.limit(self._timeouts.chunk_s):
                    chunk = await content.readany()
            except (aiohttp.ClientError, OSError, TimeoutError) as fault:
                reason = f"The connection to {self._host} broke in the middle of an answer."
                if isinstance(fault, TimeoutError) and self._watch.is_out_of_time:
                    reason = f"{self._host} had not finished its answer within {self._timeouts.total_s:g} s."
                elif isinstance(fault, TimeoutError):
                    reason = f"{self._host} sent nothing for {self._timeouts.chunk_s:g} s in the middle of an answer."
                raise Disconnected(reason) from fault
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
        """Use new connections for this address; requests under way keep the old ones."""
        pool = self._pools.pop(_origin(url), None)
        if pool is not None:
            await pool.retire()

    def post(
        self, url: str, *, body: bytes, headers: Mapping[str, str], timeouts: Timeouts
    ) -> AbstractAsyncContextManager[Response]:
        """The response, once its head has arrived. Leaving the context closes it."""
        return self._request("POST", url, body, headers, timeouts)

    def get(self, url: str, *, headers: Mapping[str, str], timeouts: Timeouts) -> AbstractAsyncContextManager[Response]:
        return self._request("GET", url, None, headers, timeouts)

    @asynccontextmanager
    async def _request(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str], timeouts: Timeouts
    ) -> AsyncGenerator[Response]:
        host = urlsplit(url).netloc.rpartition("@")[2]
        origin = _origin(url)
        if origin not in self._pools:
            self._pools[origin] = ConnectionPool(proxy_for(url))
        pool = self._pools[origin]
        context: ssl.SSLContext | bool = True
        if url.startswith("https:") or (pool.proxy or "").startswith("https:"):  # a server on this machine needs none
            context = self._tls = self._tls or await in_thread(tls.make_tls_context)
        async with pool as session, StallWatch(self._clock, timeouts.total_s) as watch:
            try:
                async with watch.limit(timeouts.first_byte_s):
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
                if pool.proxy is None and _is_refused_on_loopback(url, fault):
                    raise Disconnected(f"Nothing is listening on {host}.", kind="not_listening") from fault
                raise _explain_unreachable(host, fault, timeouts) from fault
            except ValueError as fault:
                raise BadConfig(
                    "The API key or a header contains characters that cannot be sent: check .env."
                ) from fault
            try:
                yield Response(response, host, watch, timeouts)
            finally:
                response.release()  # back to the pool if it was read to its end, else closed


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _is_refused_on_loopback(url: str, fault: Exception) -> bool:
    name = urlsplit(url).hostname or ""
    try:
        is_loopback = ip_address(name).is_loopback
    except ValueError:
        is_loopback = name == "localhost"
    if not is_loopback or not isinstance(fault, aiohttp.ClientConnectorError):
        return False
    # `localhost` may have several addresses: then the error number of each is only in the text
    numbers = {fault.os_error.errno} - {None} or set(map(int, re.findall(r"\[Errno (\d+)\]", str(fault.os_error))))
    return bool(numbers) and numbers <= _REFUSALS


def _explain_unreachable(host: str, fault: Exception, timeouts: Timeouts) -> ProviderFailure:
    if isinstance(fault, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return CertificateRefused(
            f"The certificate of {host} cannot be verified. If your network has its own CA, point SSL_CERT_FILE to it."
        )
    if isinstance(fault, ssl.SSLError):
        return Disconnected(f"Cannot make a secure connection to {host}: check whether it really uses https.")
    if isinstance(fault, aiohttp.ClientResponseError):
        return Disconnected(f"{host} does not speak HTTP: check base_url in config.yaml.")
    if isinstance(fault, aiohttp.ConnectionTimeoutError):
        return Disconnected(f"{host} cannot be reached: no connection within {timeouts.connect_s:g} s.")
    if isinstance(fault, TimeoutError):
        return Disconnected(f"{host} did not answer within {timeouts.first_byte_s:g} s.")
    if isinstance(fault, OSError) and fault.errno is not None and fault.errno > 0:
        reason = os.strerror(fault.errno)  # asyncio words a refusal as "Connect call failed ('127.0.0.1', 9)"
    else:
        reason = getattr(fault, "strerror", None) or str(fault) or type(fault).__name__
    return Disconnected(f"Cannot reach {host}: {reason}.")


MAX_LINE_BYTES = 32 << 20
_BOM = b"\xef\xbb\xbf"
"""May come before the first event."""


class EventSplitter:
    """The data of server-sent events, however the stream is cut into chunks.

    Lines may end in LF or CRLF; names, comments, unknown fields and events without data are skipped.
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        *lines, rest = chunk.split(b"\n")
        if lines:  # a long line is kept in pieces and joined once
            lines[0] = b"".join((*self._rest, lines[0]))
            self._rest, self._rest_bytes = [], 0
        self._rest.append(rest)
        self._rest_bytes += len(rest)
        if self._rest_bytes > MAX_LINE_BYTES:
            raise Disconnected("The model server sent an endless line.")
        for line in lines:
            line = line.removesuffix(b"\r")  # noqa: PLW2901
            if line:
                field, _, value = line.partition(b":")
                if field == b"data" or field.removeprefix(_BOM) == b"data":
                    self._data.append(value.removeprefix(b" "))
                    self._data_bytes += len(self._data[-1]) + 1
                if self._data_bytes > MAX_LINE_BYTES:
                    raise Disconnected("The model server sent an endless event.")
            elif self._data:
                data = b"\n".join(self._data)
                self._data, self._data_bytes = [], 0
                if data.strip():
                    yield data

    def end(self) -> Iterator[bytes]:
        """The event that the last, unterminated lines complete."""
        yield from self.feed(b"\n\n")
