"""The only way out for sandboxed commands and the browser: an HTTP proxy in our process.

It accepts tunnels (`CONNECT host:port`) and plain requests (`GET http://host/`). The same parsed host is admitted,
looked up and dialled, and only checked addresses are dialled, so neither a second reading of the name nor a second
answer of a name server changes anything.

Behind a proxy from the environment (`HTTPS_PROXY`), that proxy is dialled and resolves names; what is private *here* is
refused before that.
"""

import asyncio
import hmac
import logging
import math
import os
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Self
from urllib.parse import unquote, urlsplit

import msgspec

from talaria.core.aio import complete
from talaria.core.clock import Clock
from talaria.core.errors import BadConfig, Denied, ToolFailed
from talaria.net.proxy_requests import (
    CHUNK_BYTES,
    ByteLimitReached,
    Meter,
    ProxyRefusal,
    ProxyRequest,
    Tunnel,
    parse_request,
)
from talaria.net.stall import StallWatch
from talaria.net.urls import EVERYWHERE, Allowance, Lookup, WebUrl, parse_url, proxy_for, system_lookup, vet_addresses

ATTEMPT_S = 10.0
MAX_ATTEMPTS = 6
"""How many of a host's addresses are tried."""
MAX_ANSWER_BYTES = 16 << 10
MAX_CONNECTIONS = 64
"""At the same time; further clients wait in the kernel's queue."""
MAX_HEAD_BYTES = 32 << 10
HEAD_S = 15.0
LOOKUP_S = 15.0
PAUSE_S = 0.5
"""After a connection could not be accepted, because others must end first."""
FORBIDDEN = 403
_END = b"\r\n\r\n"
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_ESTABLISHED_BY_PROXY = re.compile(rb"HTTP/1\.[01] 2[0-9][0-9]\b")

AdmitHost = Callable[[str, int], Awaitable[None]]
"""Raises `Denied`, with a sentence, if this host and port may not be reached. It may wait for a person, and may be
called several times at once for the same host."""
Dial = Callable[[], Awaitable[socket.socket]]
"""Connects to the host of a request, if its addresses are allowed. Raises `ProxyRefusal`."""
Serve = Callable[[socket.socket, bytes, Dial], Awaitable[None]]
"""Answers one client; the bytes are what it has already sent."""
Intercept = Callable[[ProxyRequest], Serve | None]
"""What answers a request instead of its host; None to forward the request."""

log = logging.getLogger(__name__)


class UpstreamProxy(msgspec.Struct, frozen=True):
    """A proxy between us and the internet."""

    url: WebUrl
    credential: str | None


async def dial_upstream(
    request: ProxyRequest, addresses: tuple[str, ...], lookup: Lookup, watch: StallWatch
) -> socket.socket:
    """A socket on which the request's head has been sent; next is its body, or the tunnel. Raises `ToolFailed` and
    `OSError`."""
    url = request.url
    try:
        named = proxy_for(str(url))
    except BadConfig as fault:
        raise ToolFailed(str(fault)) from fault
    proxy = None
    if named is not None:
        parts = urlsplit(named)
        if parts.scheme != "http":
            raise ToolFailed("The proxy of this machine uses https, which is not supported here.")
        credential = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
        url = parse_url(f"http://{parts.netloc.rpartition('@')[2]}/")
        proxy = UpstreamProxy(url, credential)
        async with watch.limit(ATTEMPT_S):
            addresses = await vet_addresses(url, EVERYWHERE, lookup)
    reason = f"There is no host called {url.host}."
    for address in addresses[:MAX_ATTEMPTS]:
        try:
            return await _dial((address, url.port), request, proxy, watch)
        except OSError as fault:
            why = os.strerror(fault.errno) if fault.errno else "no answer"
            reason = f"{url.host} cannot be reached: {why}."
    raise ToolFailed(reason)


async def _dial(
    place: tuple[str, int], request: ProxyRequest, proxy: UpstreamProxy | None, watch: StallWatch
) -> socket.socket:
    upstream = socket.socket(socket.AF_INET6 if ":" in place[0] else socket.AF_INET, socket.SOCK_STREAM)
    loop = asyncio.get_running_loop()
    is_accepted = True
    try:
        upstream.setblocking(False)
        async with watch.limit(ATTEMPT_S):
            await loop.sock_connect(upstream, place)
            if proxy is not None:
                await loop.sock_sendall(upstream, request.head(proxy.credential, is_for_proxy=True))
                head = bytearray()
                # byte by byte, because what follows the head of the proxy's answer belongs to the tunnel
                while request.is_tunnel and not head.endswith(_END) and len(head) < MAX_ANSWER_BYTES:
                    byte = await loop.sock_recv(upstream, 1)
                    if not byte:
                        break
                    head += byte
                is_accepted = not request.is_tunnel or _ESTABLISHED_BY_PROXY.match(head) is not None
            elif not request.is_tunnel:
                await loop.sock_sendall(upstream, request.head())
    except BaseException:
        upstream.close()
        raise
    if not is_accepted:
        upstream.close()
        raise ToolFailed(f"The proxy did not allow the request to {request.url.host}.")
    return upstream


class Egress:
    """`async with Egress(…)` serves until the context ends, which closes its listening socket and all connections."""

    def __init__(
        self,
        listening: socket.socket,
        admit: AdmitHost,
        *,
        allowance: Allowance,
        clock: Clock,
        lookup: Lookup = system_lookup,
        refused: Callable[[str, int, str], None] = lambda _host, _port, _reason: None,
        unreachable: Callable[[str, int, str], None] = lambda _host, _port, _reason: None,
        max_bytes: int | None = None,
        credential: str | None = None,
        intercept: Intercept = lambda _: None,
    ) -> None:
        """`max_bytes` is for all connections together. With a `credential` (`user:password`), only clients that send it
        are served. `refused` is called with the reason for each host that is refused, `unreachable` for each host that
        is allowed but cannot be reached; neither is called for intercepted requests.
        """
        self._listening = listening
        self._admit = admit
        self._allowance = allowance
        self._clock = clock
        self._lookup = lookup
        self._refused = refused
        self._unreachable = unreachable
        self._meter = Meter(max_bytes)
        self._credential = credential
        self._intercept = intercept
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._listening.setblocking(False)
        self._serving = asyncio.create_task(self._serve(), name="egress")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await complete(asyncio.wait([self._serving]))
        self._listening.close()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        slots = asyncio.Semaphore(MAX_CONNECTIONS)
        async with asyncio.TaskGroup() as connections:
            while True:
                await slots.acquire()
                try:
                    client, _ = await loop.sock_accept(self._listening)
                except OSError:
                    slots.release()
                    await self._clock.sleep(PAUSE_S)
                    continue
                task = connections.create_task(self._serve_connection(client), name="egress connection")
                task.add_done_callback(lambda _, client=client: (client.close(), slots.release()))

    async def _serve_connection(self, client: socket.socket) -> None:
        """A supervised border: no failure in one connection affects another."""
        try:
            async with StallWatch(self._clock, math.inf) as watch:
                try:
                    await self._answer(client, watch)
                except ProxyRefusal as refusal:
                    loop = asyncio.get_running_loop()
                    async with watch.limit(HEAD_S):
                        await loop.sock_sendall(client, refusal.response())
                        client.shutdown(socket.SHUT_WR)
                        # read the rest, because closing a socket with unread data would discard our answer
                        while await loop.sock_recv(client, CHUNK_BYTES):
                            pass
        except OSError:
            return
        except Exception:
            log.exception("a connection of the egress proxy broke")

    async def _answer(self, client: socket.socket, watch: StallWatch) -> None:
        """Raises `ProxyRefusal`, and `OSError` if the client cannot be answered."""
        async with watch.limit(HEAD_S):
            head, early = await _read_head(client)
        request = parse_request(head)
        url = request.url
        if self._credential is not None:
            given = request.credential or ""
            if not hmac.compare_digest(given.encode(), self._credential.encode()):
                raise ProxyRefusal(407, "This proxy needs a credential that was not given.")
        serve = self._intercept(request)
        if serve is not None:

            async def dial() -> socket.socket:
                return await self._connect(request, watch)

            await serve(client, early, dial)
            return
        try:
            try:
                self._meter.spend(len(head))
            except ByteLimitReached as fault:
                raise ProxyRefusal(FORBIDDEN, "The limit for network traffic has been reached.") from fault
            if url.literal is not None:
                await self._vet(url, watch)
            try:  # a name is looked up only after it is admitted, because the lookup reveals it to a name server
                await self._admit(url.host, url.port)
            except Denied as fault:
                raise ProxyRefusal(FORBIDDEN, str(fault)) from fault
            upstream = await self._connect(request, watch)
        except ProxyRefusal as refusal:
            report = self._refused if refusal.status == FORBIDDEN else self._unreachable
            report(url.host, url.port, str(refusal))
            raise
        with upstream:
            tunnel = Tunnel(client, upstream, self._clock, self._meter)
            if request.is_tunnel:
                await asyncio.get_running_loop().sock_sendall(client, _ESTABLISHED)
                await tunnel.join(early)
            else:
                await tunnel.exchange(early, request.body_bytes or 0)

    async def _connect(self, request: ProxyRequest, watch: StallWatch) -> socket.socket:
        url = request.url
        addresses = await self._vet(url, watch)
        try:
            return await dial_upstream(request, addresses, self._lookup, watch)
        except ToolFailed as fault:
            raise ProxyRefusal(502, str(fault)) from fault
        except OSError as fault:
            raise ProxyRefusal(502, f"{url.host} cannot be reached.") from fault

    async def _vet(self, url: WebUrl, watch: StallWatch) -> tuple[str, ...]:
        try:
            async with watch.limit(LOOKUP_S):
                return await vet_addresses(url, self._allowance, self._lookup)
        except ToolFailed as fault:
            raise ProxyRefusal(FORBIDDEN, str(fault)) from fault
        except TimeoutError as fault:
            raise ProxyRefusal(504, f"Looking up {url.host} takes too long.") from fault


async def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    """A request's head without the empty line after it, and what came after that."""
    loop = asyncio.get_running_loop()
    heard = bytearray()
    while (end := heard.find(_END, 0, MAX_HEAD_BYTES)) < 0:
        if len(heard) >= MAX_HEAD_BYTES:
            raise ProxyRefusal(431, "The headers of the request are too long.")
        chunk = await loop.sock_recv(client, CHUNK_BYTES)
        if not chunk:
            raise ConnectionResetError
        heard += chunk
    return bytes(heard[:end]), bytes(heard[end + len(_END) :])
