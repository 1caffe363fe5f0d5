"""The one way out for sandboxed commands and for the browser: an HTTP proxy in our process.

It takes tunnels (`CONNECT host:port`) and plain requests (`GET http://host/`). What is asked, looked up and dialled is
one and the same parsed host (`proxy_requests.py`, `lookups.py`, `dialling.py`), so a second reading of its name, or a
second answer of a name server, changes nothing.

From a request whose addresses were checked to an open socket; nothing but those addresses is dialled.

Behind a proxy of the environment (`HTTPS_PROXY`) it is the proxy that is dialled, and that looks names up; what is
private *here* is refused all the same, before it comes to this.
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

from talaria.core.aio import completed
from talaria.core.clock import Clock
from talaria.core.errors import BadConfig, Denied, ToolFailed
from talaria.net.addresses import EVERYWHERE, Allowance, Lookup, system_lookup, vetted
from talaria.net.proxy_requests import ProxyRequest, TurnedDown, read
from talaria.net.stall import StallWatch
from talaria.net.tunnels import CHUNK_BYTES, ByteLimitReached, Meter, Tunnel
from talaria.net.urls import WebUrl, parse, proxy_for

ATTEMPT_S = 10.0
MAX_ATTEMPTS = 6
"""A host may have many addresses."""
MAX_ANSWER_BYTES = 16 << 10
_TAKEN = re.compile(rb"HTTP/1\.[01] 2[0-9][0-9]\b")


class Proxy(msgspec.Struct, frozen=True):
    """One that stands between us and the world."""

    url: WebUrl
    credential: str | None


async def reach(request: ProxyRequest, addresses: tuple[str, ...], lookup: Lookup, watch: StallWatch) -> socket.socket:
    """Where the request's head was told: its body is due, or the tunnel begins. Raises `ToolFailed` and `OSError`."""
    url = request.url
    proxy = _proxy(url)
    if proxy is not None:
        url = proxy.url
        async with watch.waiting(ATTEMPT_S):
            addresses = await vetted(url, EVERYWHERE, lookup)
    reason = f"No host is called {url.host}."
    for address in addresses[:MAX_ATTEMPTS]:
        try:
            return await _reached((address, url.port), request, proxy, watch)
        except OSError as fault:
            why = os.strerror(fault.errno) if fault.errno else "no answer"
            reason = f"{url.host} cannot be reached: {why}."
    raise ToolFailed(reason)


def _proxy(url: WebUrl) -> Proxy | None:
    try:
        named = proxy_for(str(url))
    except BadConfig as fault:
        raise ToolFailed(str(fault)) from fault
    if named is None:
        return None
    parts = urlsplit(named)
    if parts.scheme != "http":
        raise ToolFailed("The proxy of this machine is spoken to by https, which cannot be done from here.")
    credential = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
    return Proxy(parse(f"http://{parts.netloc.rpartition('@')[2]}/"), credential)


async def _reached(
    place: tuple[str, int], request: ProxyRequest, proxy: Proxy | None, watch: StallWatch
) -> socket.socket:
    upstream = socket.socket(socket.AF_INET6 if ":" in place[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        upstream.setblocking(False)
        async with watch.waiting(ATTEMPT_S):
            await asyncio.get_running_loop().sock_connect(upstream, place)
            await _introduce(upstream, request, proxy)
    except BaseException:
        upstream.close()
        raise
    return upstream


async def _introduce(upstream: socket.socket, request: ProxyRequest, proxy: Proxy | None) -> None:
    loop = asyncio.get_running_loop()
    if proxy is not None:
        await loop.sock_sendall(upstream, request.head(proxy.credential, is_for_proxy=True))
        if request.is_tunnel and not _TAKEN.match(await _answer(upstream)):
            raise ToolFailed(f"The proxy did not let the request to {request.url.host} pass.")
    elif not request.is_tunnel:
        await loop.sock_sendall(upstream, request.head())


async def _answer(upstream: socket.socket) -> bytes:
    """The head of it, sign by sign: what follows is for the tunnel."""
    loop = asyncio.get_running_loop()
    head = bytearray()
    while not head.endswith(b"\r\n\r\n") and len(head) < MAX_ANSWER_BYTES:
        sign = await loop.sock_recv(upstream, 1)
        if not sign:
            break
        head += sign
    return bytes(head)


MAX_CONNECTIONS = 64
"""At once; who comes later waits in the kernel's queue."""
MAX_HEAD_BYTES = 32 << 10
HEAD_S = 15.0
LOOKUP_S = 15.0
PAUSE_S = 0.5
"""After a connection could not be taken: others must end first."""
REFUSED = 403
_END = b"\r\n\r\n"
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"

Admit = Callable[[str, int], Awaitable[None]]
"""Whether this host and port may be reached; raises `Denied` with a sentence. May wait for a person, and may be asked
about one host several times at once."""
Dial = Callable[[], Awaitable[socket.socket]]
"""Connects to what a request asked for, if its addresses are in bounds. Raises `TurnedDown`."""
Serve = Callable[[socket.socket, bytes, Dial], Awaitable[None]]
"""Answers one client, with what it has said already."""
Intercept = Callable[[ProxyRequest], Serve | None]
"""Who answers a request in place of the host that it names; None: it is passed on."""

log = logging.getLogger(__name__)


def _nobody(host: str, port: int, reason: str) -> None:  # noqa: ARG001
    return None


def _pass_all(request: ProxyRequest) -> None:  # noqa: ARG001
    return None


class Egress:
    """`async with Egress(…)` serves until the context ends; then its listening socket and all connections close."""

    def __init__(
        self,
        listening: socket.socket,
        admit: Admit,
        *,
        allowance: Allowance,
        clock: Clock,
        lookup: Lookup = system_lookup,
        refused: Callable[[str, int, str], None] = _nobody,
        unreachable: Callable[[str, int, str], None] = _nobody,
        max_bytes: int | None = None,
        credential: str | None = None,
        intercept: Intercept = _pass_all,
    ) -> None:
        """`max_bytes` is for all connections together; with a `credential` (`user:password`) only who knows it is
        served. `refused` hears of each host that was asked for in vain, and why; `unreachable` of each that may be
        reached, and cannot. What is intercepted counts neither.
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
            await completed(asyncio.wait([self._serving]))
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
                task = connections.create_task(self._attend(client), name="egress connection")
                task.add_done_callback(lambda _, client=client: (client.close(), slots.release()))

    async def _attend(self, client: socket.socket) -> None:
        """The border of one connection: whatever goes wrong in it hurts no other."""
        try:
            async with StallWatch(self._clock, math.inf) as watch:
                try:
                    await self._answer(client, watch)
                except TurnedDown as answer:
                    await _turn_down(client, answer, watch)
        except OSError:
            return
        except Exception:
            log.exception("a connection of the egress proxy broke")

    async def _answer(self, client: socket.socket, watch: StallWatch) -> None:
        """Raises `TurnedDown`, and `OSError` where nothing more can be said."""
        async with watch.waiting(HEAD_S):
            head, early = await _head(client)
        request = read(head)
        self._recognise(request)
        serve = self._intercept(request)
        if serve is not None:

            async def dial() -> socket.socket:
                return await self._connect(request, watch)

            await serve(client, early, dial)
            return
        try:
            self._spend(len(head))
            upstream = await self._reached(request, watch)
        except TurnedDown as answer:
            tell = self._refused if answer.status == REFUSED else self._unreachable
            tell(request.url.host, request.url.port, str(answer))
            raise
        with upstream:
            await self._pass_on(request, client, upstream, early)

    def _recognise(self, request: ProxyRequest) -> None:
        if self._credential is None:
            return
        given = request.credential or ""
        if not hmac.compare_digest(given.encode(), self._credential.encode()):
            raise TurnedDown(407, "This proxy is not for everybody.")

    def _spend(self, size_bytes: int) -> None:
        try:
            self._meter.spend(size_bytes)
        except ByteLimitReached as fault:
            raise TurnedDown(REFUSED, "As much was moved over the network as is allowed.") from fault

    async def _reached(self, request: ProxyRequest, watch: StallWatch) -> socket.socket:
        """A name is looked up only once it may be reached: to look it up is to tell it to somebody."""
        url = request.url
        if url.literal is not None:
            await self._vetted(url, watch)
        try:
            await self._admit(url.host, url.port)
        except Denied as fault:
            raise TurnedDown(REFUSED, str(fault)) from fault
        return await self._connect(request, watch)

    async def _connect(self, request: ProxyRequest, watch: StallWatch) -> socket.socket:
        url = request.url
        addresses = await self._vetted(url, watch)
        try:
            return await reach(request, addresses, self._lookup, watch)
        except ToolFailed as fault:
            raise TurnedDown(502, str(fault)) from fault
        except OSError as fault:
            raise TurnedDown(502, f"{url.host} cannot be reached.") from fault

    async def _vetted(self, url: WebUrl, watch: StallWatch) -> tuple[str, ...]:
        try:
            async with watch.waiting(LOOKUP_S):
                return await vetted(url, self._allowance, self._lookup)
        except ToolFailed as fault:
            raise TurnedDown(REFUSED, str(fault)) from fault
        except TimeoutError as fault:
            raise TurnedDown(504, f"It takes too long to look {url.host} up.") from fault

    async def _pass_on(
        self, request: ProxyRequest, client: socket.socket, upstream: socket.socket, early: bytes
    ) -> None:
        tunnel = Tunnel(client, upstream, self._clock, self._meter)
        if request.is_tunnel:
            await asyncio.get_running_loop().sock_sendall(client, _ESTABLISHED)
            await tunnel.join(early)
        else:
            await tunnel.exchange(early, request.body_bytes or 0)


async def _head(client: socket.socket) -> tuple[bytes, bytes]:
    """A request's head without the empty line behind it, and what came with it."""
    loop = asyncio.get_running_loop()
    heard = bytearray()
    while (end := heard.find(_END, 0, MAX_HEAD_BYTES)) < 0:
        if len(heard) >= MAX_HEAD_BYTES:
            raise TurnedDown(431, "The headers of the request are too long.")
        chunk = await loop.sock_recv(client, CHUNK_BYTES)
        if not chunk:
            raise ConnectionResetError
        heard += chunk
    return bytes(heard[:end]), bytes(heard[end + len(_END) :])


async def _turn_down(client: socket.socket, answer: TurnedDown, watch: StallWatch) -> None:
    """Then hears the rest of the request: a socket that is closed with words unheard takes our answer back."""
    loop = asyncio.get_running_loop()
    body = f"{answer}\n".encode()
    lines = [
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
        *(['Proxy-Authenticate: Basic realm="proxy"'] if answer.status == 407 else []),
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    async with watch.waiting(HEAD_S):
        await loop.sock_sendall(client, "\r\n".join([*lines, "", ""]).encode() + body)
        client.shutdown(socket.SHUT_WR)
        while await loop.sock_recv(client, CHUNK_BYTES):
            pass
