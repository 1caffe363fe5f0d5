"""As much of HTTP/1.1 as a test server needs, as broken as a test wants it: cut, slow, silent, reset."""

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http.client import responses as reason_phrases
from typing import Any, TypeVar

from talaria.testing.servers.scripted_replies import Faults

_HEAD_LIMIT_BYTES = 2**20
_HELD_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request as received. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    query: str = ""

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)


R = TypeVar("R", bound=HttpRequest)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An HTTP response. Its body is one part with a content length, or many in chunked transfer encoding."""

    status: int
    content_type: str
    parts: Sequence[bytes]
    is_chunked: bool = False
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    faults: Faults = field(default_factory=Faults)

    @property
    def head(self) -> bytes:
        framing = "transfer-encoding: chunked" if self.is_chunked else f"content-length: {sum(map(len, self.parts))}"
        lines = [
            f"HTTP/1.1 {self.status} {reason_phrases.get(self.status, '')}",
            f"content-type: {self.content_type}",
            framing,
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def encode(self, part: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(part), part) if self.is_chunked else part

    @property
    def end(self) -> bytes:
        return b"0\r\n\r\n" if self.is_chunked else b""


@asynccontextmanager
async def streams(
    connection: socket.socket, tls: ssl.SSLContext | None
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter], None]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_HEAD_LIMIT_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=tls)
    # makes `drain` wait until the kernel has it all: asyncio's TLS transport pauses at the mark, the plain one above it
    transport.set_write_buffer_limits(high=1 if tls else 0)
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    try:
        yield reader, writer
    finally:
        transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def read_request(reader: asyncio.StreamReader, make: Callable[[str, str, Mapping[str, str], bytes, str], R]) -> R:
    """Raises `ValueError` or `LimitOverrunError` if this is not HTTP."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request_line, *header_lines = head.rstrip("\r\n").split("\r\n")
    method, _, rest = request_line.partition(" ")
    path, _, query = rest.rpartition(" ")[0].partition("?")
    pairs = (line.partition(":") for line in header_lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if headers.get("transfer-encoding", "").lower() != "chunked":
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    else:
        chunks = bytearray()
        while size := int(await reader.readuntil(b"\r\n"), 16):
            chunks += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
        body = bytes(chunks)
    return make(method, path, headers, body, query)


async def send(response: HttpResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Write the response with its faults. False if it did not end properly."""
    faults = response.faults
    if faults.hang:
        await reader.read()
        return False
    if faults.hang_up:
        _prepare_cut(writer, faults)
        return False
    await asyncio.sleep(faults.first_byte_delay_s)
    while faults.held_by is not None and not faults.held_by.is_set():  # noqa: ASYNC110  (tests set it from any thread)
        await asyncio.sleep(_HELD_POLL_S)
    await _write(writer, response.head)
    parts = response.parts
    if faults.drip:
        parts = [part[at : at + 1] for part in parts for at in range(len(part))]
    left = faults.last_byte
    for part in parts:
        kept = part[:left]
        if left is not None:
            left -= len(kept)
        if kept:
            await _write(writer, response.encode(kept))
            await asyncio.sleep(faults.chunk_delay_s)
    if faults.stall_at is not None:
        await reader.read()
        return False
    if faults.cuts_connection:
        _prepare_cut(writer, faults)
        return False
    await _write(writer, response.end)
    return True


async def _write(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(content)
    await writer.drain()


def _prepare_cut(writer: asyncio.StreamWriter, faults: Faults) -> None:
    if faults.reset:
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
