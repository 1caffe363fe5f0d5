"""Programs that use the HTTP API, or a bare server that understands the same requests. They read as little as they can,
so that what is measured is the server.

`python -m benchmarks.api_clients PORT talk FIRST LAST TURNS SPREAD_S`: each of those conversations streams so many
turns. Prints turns per second, how long each took, and how old each delta was when it came (in milliseconds), if the
model server has stamped them.
`python -m benchmarks.api_clients PORT watch FIRST LAST`: watches so many conversations until its parent closes stdin;
prints a line when all of them are watched.
"""

import asyncio
import json
import re
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, cast

TOKEN = "tal_benchmark"
_STAMP = re.compile(rb'"t(\d+) "')
_END = b"0\r\n\r\n"
_QUESTION = {"role": "user", "content": "And now?"}


def request(method: str, path: str, body: bytes = b"", conversation: str = "") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {TOKEN}"]
    lines += [f"X-Talaria-Session: {conversation}"] if conversation else []
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join((*lines, "", "")).encode() + body


def question(conversation: str, *, is_streamed: bool) -> bytes:
    body = {"model": "talaria", "stream": is_streamed, "messages": [_QUESTION]}
    return request("POST", "/v1/chat/completions", json.dumps(body).encode(), conversation)


class Caller:
    """One connection of a client that waits for each answer."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, asked: bytes) -> bytes:
        """The body of the answer."""
        self._socket.sendall(asked)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._receive()
        head, _, body = received.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        while len(body) < length:
            body += self._receive()
        if b" 200 " not in lines[0]:
            raise RuntimeError(received[:1000])
        return body

    def close(self) -> None:
        self._socket.close()

    def _receive(self) -> bytes:
        if not (received := self._socket.recv(1 << 20)):
            raise EOFError
        return received


class _Stream(asyncio.Protocol):
    """One connection, whose answers are streams."""

    def __init__(self, ages_ms: list[float]) -> None:
        self._ages_ms = ages_ms
        self._received = bytearray()
        self._read_to = 0
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        now_us = time.monotonic_ns() // 1000
        self._received += data
        for found in _STAMP.finditer(self._received, self._read_to):
            self._ages_ms.append((now_us - int(found[1])) / 1000)
            self._read_to = found.end()
        if self._done is None or not self._received.endswith((_END, b": watching\n\n\r\n")):
            return
        if b" 200 " in self._received[:20] and (b"[DONE]" in self._received or b": watching" in self._received):
            self._done.set_result(None)
        else:
            self._done.set_exception(RuntimeError(bytes(self._received[:1000])))
        self._done = None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self._done is not None:
            self._done.set_exception(EOFError(bytes(self._received[:1000])))

    async def ask(self, asked: bytes) -> float:
        """How long the answer took."""
        self._received.clear()
        self._read_to = 0
        self._done = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        self._transport.write(asked)
        await self._done
        return time.perf_counter() - began


async def _open(port: int, ages_ms: list[float]) -> _Stream:
    loop = asyncio.get_running_loop()
    return (await loop.create_connection(lambda: _Stream(ages_ms), "127.0.0.1", port))[1]


async def talk(port: int, conversations: Sequence[str], turns: int, spread_s: float) -> dict[str, Any]:
    took: list[float] = []
    ages_ms: list[float] = []

    async def converse(name: str, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        stream, asked = await _open(port, ages_ms), question(name, is_streamed=True)
        took.extend([await stream.ask(asked) for _ in range(turns)])

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for place, name in enumerate(conversations):
            group.create_task(converse(name, spread_s * place / len(conversations)))
    seconds = time.perf_counter() - began
    return {"turns_per_s": len(took) / seconds, "took": took, "ages_ms": ages_ms}


async def watch(port: int, conversations: Sequence[str]) -> None:
    kept: list[_Stream] = []
    for name in conversations:
        stream = await _open(port, [])
        await stream.ask(request("GET", f"/v1/sessions/{name}/events"))
        kept.append(stream)
    orphaned = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), orphaned.set)  # readable means closed
    print(len(kept), flush=True)
    await orphaned.wait()


async def _main(port: int, how: str, first: int, last: int, turns: int = 1, spread_s: float = 0.0) -> None:
    conversations = [f"s{number}" for number in range(first, last)]
    if how == "watch":
        await watch(port, conversations)
    else:
        print(json.dumps(await talk(port, conversations, turns, spread_s)))


if __name__ == "__main__":
    _, where, what, *numbers = sys.argv
    asyncio.run(_main(int(where), what, *map(int, numbers[:3]), *map(float, numbers[3:])))
