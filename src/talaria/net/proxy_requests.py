"""Requests to the egress proxy, and the tunnels they become.

Requests are parsed strictly. Nothing is repaired: what is malformed or ambiguous is refused, and
what goes on to the other side is written again from the parts. A tunnel joins two sockets and
buffers nothing: a slow reader is sent to slowly.
"""

import asyncio
import re
import socket
import sys
from base64 import b64decode, b64encode
from contextlib import suppress

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import ToolFailed
from talaria.net.urls import WebUrl, parse_url

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
"""Fields that we write ourselves, or that end here."""


class ProxyRefusal(Exception):
    """`str()` of it is the sentence that the client is told."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class ProxyRequest(msgspec.Struct, frozen=True):
    method: str
    url: WebUrl
    """Of a tunnel only its host and port count."""
    fields: tuple[tuple[str, str], ...] = ()
    """Those that are for the other side."""
    body_bytes: int | None = None
    credential: str | None = None
    """`user:password`"""

    @property
    def is_tunnel(self) -> bool:
        return self.method == "CONNECT"

    @property
    def authority(self) -> str:
        """Host and port as a tunnel names them."""
        host = f"[{self.url.host}]" if ":" in self.url.host else self.url.host
        return f"{host}:{self.url.port}"

    def head(self, proxy_credential: str | None = None, *, is_for_proxy: bool = False) -> bytes:
        """What is said to the other side, or to another proxy."""
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
    """From a request's head, without the empty line at its end. Raises `TurnedDown`."""
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
    url, credential = _url(method, target), _credential(_values(fields, "proxy-authorization"))
    if method == "CONNECT":
        return ProxyRequest(method, url, credential=credential)
    named = {name.strip().lower() for value in _values(fields, "connection") for name in value.split(",")}
    forwarded = tuple(field for field in fields if field[0].lower() not in _OURS | named)
    return ProxyRequest(method, url, forwarded, _body_bytes(fields), credential)


def _url(method: str, target: str) -> WebUrl:
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


def _body_bytes(fields: list[tuple[str, str]]) -> int | None:
    """Where a body ends must not be ambiguous."""
    if _values(fields, "transfer-encoding"):
        raise ProxyRefusal(411, "The request must state its length: Transfer-Encoding is not accepted here.")
    lengths = _values(fields, "content-length")
    if not lengths:
        return None
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise ProxyRefusal(400, "The length of the request is ambiguous.")
    return int(lengths[0])


def _credential(values: list[str]) -> str | None:
    scheme, _, encoded = "".join(values).partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return b64decode(encoded, validate=True).decode()
    except ValueError:
        return None


CHUNK_BYTES = 64 << 10
IDLE_S = 300.0


class ByteLimitReached(Exception):
    """No more bytes may move."""


class Meter:
    """What one session may still move, over all its connections and in both directions."""

    def __init__(self, most_bytes: int | None = None) -> None:
        self._left = sys.maxsize if most_bytes is None else most_bytes

    def spend(self, size_bytes: int) -> None:
        """Raises `ByteLimitReached`, and does so ever after."""
        self._left -= size_bytes
        if self._left < 0:
            raise ByteLimitReached


class Tunnel:
    def __init__(self, client: socket.socket, upstream: socket.socket, clock: Clock, meter: Meter) -> None:
        self._client = client
        self._upstream = upstream
        self._clock = clock
        self._meter = meter
        self._moved_at = clock.monotonic()

    async def join(self, early: bytes) -> None:
        """Until both sides have said all, one fails, or both are silent for long. `early` is what
        the client has said already.
        """
        await self._run(early, sys.maxsize, ends_together=False)

    async def exchange(self, early: bytes, body_bytes: int) -> None:
        """As `join`, for one request: of the client exactly its body is heard, and the end of one
        side is the end."""
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
            await self._copy(source, target, early, most)
            if not ends_together:
                target.shutdown(socket.SHUT_WR)
                return
        except (OSError, ByteLimitReached):
            pass
        self._shut()

    async def _copy(self, source: socket.socket, target: socket.socket, early: bytes, left: int) -> None:
        """Behind the last byte that counts it still waits for the source to end, or to say too
        much."""
        loop = asyncio.get_running_loop()
        chunk = early or await loop.sock_recv(source, CHUNK_BYTES)
        while chunk and left > 0:
            self._moved_at = self._clock.monotonic()
            self._meter.spend(len(chunk))
            await loop.sock_sendall(target, chunk[:left])
            left -= len(chunk)
            chunk = await loop.sock_recv(source, CHUNK_BYTES)

    async def _watch(self) -> None:
        while (left_s := self._moved_at + IDLE_S - self._clock.monotonic()) > 0:
            await self._clock.expire(left_s)
        self._shut()

    def _shut(self) -> None:
        """Wakes both pumps, wherever they wait."""
        for side in (self._client, self._upstream):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
