"""The only way out for sandboxed commands and the browser: an HTTP proxy in our process.

It takes tunnels (`CONNECT host:port`) and plain requests (`GET http://host/`). What is asked,
looked up and dialled is one and the same parsed host, and only the addresses that were checked are
dialled, so a second reading of its name, or a second answer of a name server, changes nothing.

Behind a proxy of the environment (`HTTPS_PROXY`), that proxy is dialled and looks names up; what is
private *here* is refused all the same, before that.
"""

import asyncio
import hmac
import logging
import math
import os
import re
import socket
from collections.abc import Awaitable, Callable
from http import HTTPStatus
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
"""A host may have many addresses."""
MAX_ANSWER_BYTES = 16 << 10
_TAKEN = re.compile(rb"HTTP/1\.[01] 2[0-9][0-9]\b")


class UpstreamProxy(msgspec.Struct, frozen=True):
    """One that stands between us and the world."""

    url: WebUrl
    credential: str | None


async def dial_upstream(
    request: ProxyRequest, addresses: tuple[str, ...], lookup: Lookup, watch: StallWatch
) -> socket.socket:
    """A socket that has sent the request's head: its body is next, or the tunnel. Raises
    `ToolFailed` and `OSError`."""
    url = request.url
    proxy = _proxy(url)
    if proxy is not None:
        url = proxy.url
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


def _proxy(url: WebUrl) -> UpstreamProxy | None:
    try:
        named = proxy_for(str(url))
    except BadConfig as fault:
        raise ToolFailed(str(fault)) from fault
    if named is None:
        return None
    parts = urlsplit(named)
    if parts.scheme != "http":
        raise ToolFailed("The proxy of this machine uses https, which is not supported here.")
    credential = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
    return UpstreamProxy(parse_url(f"http://{parts.netloc.rpartition('@')[2]}/"), credential)


async def _dial(
    place: tuple[str, int], request: ProxyRequest, proxy: UpstreamProxy | None, watch: StallWatch
) -> socket.socket:
    upstream = socket.socket(socket.AF_INET6 if ":" in place[0] else socket.AF_INET, socket.SOCK_STREAM)
    loop = asyncio.get_running_loop()
    is_taken = True
    try:
        upstream.setblocking(False)
        async with watch.limit(ATTEMPT_S):
            await loop.sock_connect(upstream, place)
            if proxy is not None:
                await loop.sock_sendall(upstream, request.head(proxy.credential, is_for_proxy=True))
                is_taken = not request.is_tunnel or _TAKEN.match(await _read_head(upstream)) is not None
            elif not request.is_tunnel:
                await loop.sock_sendall(upstream, request.head())
    except BaseException:
        upstream.close()
        raise
    if not is_taken:
        upstream.close()
        raise ToolFailed(f"The proxy did not allow the request to {request.url.host}.")
    return upstream


async def _read_head(upstream: socket.socket) -> bytes:
    """The head of the proxy's answer, byte by byte: what follows belongs to the tunnel."""
    loop = asyncio.get_running_loop()
    head = bytearray()
    while not head.endswith(b"\r\n\r\n") and len(head) < MAX_ANSWER_BYTES:
        byte = await loop.sock_recv(upstream, 1)
        if not byte:
            break
        head += byte
    return bytes(head)


MAX_CONNECTIONS = 64
"""At once; further clients wait in the kernel's queue."""
MAX_HEAD_BYTES = 32 << 10
HEAD_S = 15.0
LOOKUP_S = 15.0
PAUSE_S = 0.5
"""After a connection could not be taken: others must end first."""
FORBIDDEN = 403
_END = b"\r\n\r\n"
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"

AdmitHost = Callable[[str, int], Awaitable[None]]
"""Raises `Denied`, with a sentence, if this host and port may not be reached. May wait for a
person, and may be called for one host several times at once."""
Dial = Callable[[], Awaitable[socket.socket]]
"""Connects to what a request asked for, if its addresses are in bounds. Raises `ProxyRefusal`."""
Serve = Callable[[socket.socket, bytes, Dial], Awaitable[None]]
"""Answers one client, with what it has said already."""
Intercept = Callable[[ProxyRequest], Serve | None]
"""Who answers a request in place of the host that it names; None: it is passed on."""

log = logging.getLogger(__name__)


class Egress:
    """`async with Egress(…)` serves until the context ends; then its listening socket and all
    connections close."""

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
        """`max_bytes` is for all connections together; with a `credential` (`user:password`) only
        clients that send it are served. `refused` is called for each host that was refused, with
        the reason; `unreachable` for each that is allowed and could not be reached. Neither
        applies to what is intercepted.
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
        """A supervised border: whatever goes wrong in one connection affects no other."""
        try:
            async with StallWatch(self._clock, math.inf) as watch:
                try:
                    await self._answer(client, watch)
                except ProxyRefusal as answer:
                    await _send_refusal(client, answer, watch)
        except OSError:
            return
        except Exception:
            log.exception("a connection of the egress proxy broke")

    async def _answer(self, client: socket.socket, watch: StallWatch) -> None:
        """Raises `TurnedDown`, and `OSError` where nothing more can be said."""
        async with watch.limit(HEAD_S):
            head, early = await _head(client)
        request = parse_request(head)
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
            upstream = await self._reach_upstream(request, watch)
        except ProxyRefusal as answer:
            tell = self._refused if answer.status == FORBIDDEN else self._unreachable
            tell(request.url.host, request.url.port, str(answer))
            raise
        with upstream:
            tunnel = Tunnel(client, upstream, self._clock, self._meter)
            if request.is_tunnel:
                await asyncio.get_running_loop().sock_sendall(client, _ESTABLISHED)
                await tunnel.join(early)
            else:
                await tunnel.exchange(early, request.body_bytes or 0)

    async def _reach_upstream(self, request: ProxyRequest, watch: StallWatch) -> socket.socket:
        """A name is looked up only once it may be reached: looking it up tells it to a name server."""
        url = request.url
        if url.literal is not None:
            await self._vet(url, watch)
        try:
            await self._admit(url.host, url.port)
        except Denied as fault:
            raise ProxyRefusal(FORBIDDEN, str(fault)) from fault
        return await self._connect(request, watch)

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


async def _head(client: socket.socket) -> tuple[bytes, bytes]:
    """A request's head without the empty line after it, and what came with it."""
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


async def _send_refusal(client: socket.socket, answer: ProxyRefusal, watch: StallWatch) -> None:
    """Reads the rest of the request, too: closing a socket with unread data would discard our
    answer."""
    loop = asyncio.get_running_loop()
    body = f"{answer}\n".encode()
    lines = [
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
        *(['Proxy-Authenticate: Basic realm="proxy"'] if answer.status == 407 else []),
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    async with watch.limit(HEAD_S):
        await loop.sock_sendall(client, "\r\n".join([*lines, "", ""]).encode() + body)
        client.shutdown(socket.SHUT_WR)
        while await loop.sock_recv(client, CHUNK_BYTES):
            pass
