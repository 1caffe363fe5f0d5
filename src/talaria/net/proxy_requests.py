"""Requests to the egress proxy, and the tunnels they become.

Requests are parsed strictly: anything malformed or ambiguous is refused, and what is sent to the other side is written
anew from the parsed parts. A tunnel joins two sockets and buffers nothing, so a slow reader slows the sender down.
"""

import asyncio
import re
import socket
import sys
from base64 import b64decode, b64encode
from contextlib import suppress
from http import HTTPStatus

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import ToolFailed
from talaria.net.urls import WebUrl, parse_url

CHUNK_BYTES = 64 << 10
IDLE_S = 300.0
_LINE = re.compile(r"([A-Z][A-Z-]{0,19}) ([\x21-\x7e]+) HTTP/1\.[01]")
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_AUTHORITY = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z.-]+):[0-9]{1,5}")
_LENGTH = re.compile(r"[0-9]{1,15}")
_OURS = frozenset(
    {
        *("host", "content-length", "connection", "keep-alive", "te", "trailer", "upgrade"),
        *("proxy-connection", "proxy-authorization", "proxy-authenticate"),
    }
)
"""Header fields that we write ourselves, or that are not forwarded."""


class ProxyRefusal(Exception):
    """`str()` gives the sentence that the client receives."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status

    def response(self) -> bytes:
        body = f"{self}\n".encode()
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            *(['Proxy-Authenticate: Basic realm="proxy"'] if self.status == 407 else []),
            "Content-Type: text/plain; charset=utf-8",
            f"Content-Length: {len(body)}",
            "Connection: close",
        ]
        return "\r\n".join([*lines, "", ""]).encode() + body


class ProxyRequest(msgspec.Struct, frozen=True):
    method: str
    url: WebUrl
    """For a tunnel, only its host and port matter."""
    fields: tuple[tuple[str, str], ...] = ()
    """The header fields to forward."""
    body_bytes: int | None = None
    credential: str | None = None
    """`user:password`"""

    @property
    def is_tunnel(self) -> bool:
        return self.method == "CONNECT"

    @property
    def authority(self) -> str:
        """Host and port, as in a CONNECT request."""
        host = f"[{self.url.host}]" if ":" in self.url.host else self.url.host
        return f"{host}:{self.url.port}"

    def head(self, proxy_credential: str | None = None, *, is_for_proxy: bool = False) -> bytes:
        """The head to send to the other side, or to another proxy."""
        target = self.authority if self.is_tunnel else str(self.url) if is_for_proxy else self.url.target
        lines = [f"{self.method} {target} HTTP/1.1", f"Host: {self.authority}"]
        lines += [f"{name}: {value}" for name, value in self.fields]
        if self.body_bytes is not None:
            lines.append(f"Content-Length: {self.body_bytes}")
        if proxy_credential is not None:
            lines.append(f"Proxy-Authorization: Basic {b64encode(proxy_credential.encode()).decode()}")
        if not self.is_tunnel:
            lines.append("Connection: close")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


def parse_request(head: bytes) -> ProxyRequest:
    """Parses a request's head, without the empty line at its end. Raises `ProxyRefusal`."""
    first, *rest = head.decode("latin-1").split("\r\n")
    line = _LINE.fullmatch(first)
    fields: list[tuple[str, str]] = []
    for text in rest:
        field = _FIELD.fullmatch(text)
        if field is None:
            raise ProxyRefusal(400, "A header of the request is malformed.")
        fields.append((field[1], field[2].rstrip(" \t")))
    if line is None:
        raise ProxyRefusal(400, "This is not a request for a proxy.")
    method, target = line.groups()
    url = _parse_target(method, target)
    credential = None
    scheme, _, encoded = "".join(_values(fields, "proxy-authorization")).partition(" ")
    if scheme.lower() == "basic":
        with suppress(ValueError):
            credential = b64decode(encoded, validate=True).decode()
    if method == "CONNECT":
        return ProxyRequest(method, url, credential=credential)
    # the end of the body must not be ambiguous
    if _values(fields, "transfer-encoding"):
        raise ProxyRefusal(411, "The request must state its length: Transfer-Encoding is not accepted here.")
    lengths = _values(fields, "content-length")
    if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        raise ProxyRefusal(400, "The length of the request is ambiguous.")
    named = {name.strip().lower() for value in _values(fields, "connection") for name in value.split(",")}
    forwarded = tuple(field for field in fields if field[0].lower() not in _OURS | named)
    return ProxyRequest(method, url, forwarded, int(lengths[0]) if lengths else None, credential)


def _parse_target(method: str, target: str) -> WebUrl:
    if method == "CONNECT":
        if not _AUTHORITY.fullmatch(target):
            raise ProxyRefusal(400, "A tunnel needs a host name and a port.")
        target = f"https://{target}/"
    try:
        url = parse_url(target)
    except ToolFailed as fault:
        raise ProxyRefusal(400, str(fault)) from fault
    if method != "CONNECT" and url.scheme != "http":
        raise ProxyRefusal(400, "https addresses need a tunnel (CONNECT).")
    return url


def _values(fields: list[tuple[str, str]], name: str) -> list[str]:
    return [value for key, value in fields if key.lower() == name]


class ByteLimitReached(Exception):
    """No more bytes may be transferred."""


class Meter:
    """What one session may still transfer, over all its connections and in both directions."""

    def __init__(self, most_bytes: int | None = None) -> None:
        self._left = sys.maxsize if most_bytes is None else most_bytes

    def spend(self, size_bytes: int) -> None:
        """Raises `ByteLimitReached` once the limit is passed, and on every later call."""
        self._left -= size_bytes
        if self._left < 0:
            raise ByteLimitReached


class Tunnel:
    def __init__(self, client: socket.socket, upstream: socket.socket, clock: Clock, meter: Meter) -> None:
        self._client = client
        self._upstream = upstream
        self._clock = clock
        self._meter = meter
        self._active_at = clock.monotonic()

    async def join(self, early: bytes) -> None:
        """Runs until both sides have ended, one fails, or both are silent for `IDLE_S`. `early`: what the client has
        already sent.
        """
        await self._run(early, sys.maxsize, ends_together=False)

    async def exchange(self, early: bytes, body_bytes: int) -> None:
        """Like `join`, for one request: forwards exactly its body from the client, and ends when either side does."""
        await self._run(early[:body_bytes], body_bytes, ends_together=True)

    async def _run(self, early: bytes, most: int, *, ends_together: bool) -> None:
        watch = asyncio.create_task(self._watch(), name="tunnel watch")
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(self._client, self._upstream, early, most, ends_together))
                pumps.create_task(self._pump(self._upstream, self._client, b"", sys.maxsize, ends_together))
        finally:
            watch.cancel()

    async def _pump(
        self, source: socket.socket, target: socket.socket, early: bytes, most: int, ends_together: bool
    ) -> None:
        try:
            loop = asyncio.get_running_loop()
            left = most
            chunk = early or await loop.sock_recv(source, CHUNK_BYTES)
            while chunk and left > 0:
                self._active_at = self._clock.monotonic()
                self._meter.spend(len(chunk))
                await loop.sock_sendall(target, chunk[:left])
                left -= len(chunk)
                # after the last byte that counts, still wait for the source to end or to send too much
                chunk = await loop.sock_recv(source, CHUNK_BYTES)
            if not ends_together:
                target.shutdown(socket.SHUT_WR)
                return
        except (OSError, ByteLimitReached):
            pass
        self._shut()

    async def _watch(self) -> None:
        while (left_s := self._active_at + IDLE_S - self._clock.monotonic()) > 0:
            await self._clock.expire(left_s)
        self._shut()

    def _shut(self) -> None:
        """Wakes both pumps, whatever they wait for."""
        for side in (self._client, self._upstream):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
