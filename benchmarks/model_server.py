"""A model on loopback that costs next to nothing: its own process, canned streams, no JSON read.

The path says how it behaves: `/plain/0`, `/plain/500` (milliseconds until it answers), `/count/5` (that many rounds of
the tool `count`, then text), `/sleep/8` (that many `sleep 1` commands at once, then text), `/print/9` (a command that
prints so many gigabytes, then text), `/echo/0` (the words `message-1` and so on of the person's last message),
`/stream/200` (markdown without an end, so many pieces a second), `/stamped/500` (words that come one by one, so many
milliseconds for all of them; each says when it was sent, in microseconds of the monotonic clock).
It counts every byte of a request as one token, so that a floor can learn how much ours sends. It ends with its
parent.
"""

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from functools import cache, lru_cache
from itertools import count
from typing import Any

from benchmarks.programs import PYTHON, ROOT

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_WORDS = [f"word{number} " for number in range(16)]
_MARKDOWN = re.findall(
    r"\s*\S+",
    """
## What changed

The parser now **keeps the place** of every word, so that an error can say *where* it is; see `parse_line` below.

1. A line is split once, and never again.
2. What cannot be read is named, with its column:
   - in the first line of the message,
   - and below it with a mark.

```python
def parse_line(line: str, number: int) -> list[Word]:
    words = []
    for found in re.finditer(r"[^ ]+", line):
        words.append(Word(found[0], number, found.start()))
    return words
```

| file | lines | tests |
|---|---|---|
| parser.py | 120 | 14 |
| words.py | 48 | 6 |

> Nothing else reads lines, so nothing else had to change.

""",
)
"""In pieces as a model writes them."""
_ids = count()


@contextmanager
def model_server() -> Generator[str]:
    """Its address, to be followed by the path of a behaviour."""
    command = [PYTHON, "-m", "benchmarks.model_server"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()


class _Connection(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._received = bytearray()
        self._missing: int | None = None

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._missing is None:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            self._missing = end + 4 + _content_length(bytes(self._received[:end]))
        if len(self._received) >= self._missing:
            request = bytes(self._received)
            self._received.clear()
            self._missing = None
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        _, kind, number, *_ = request[: request.index(b" HTTP")].decode().split("/")
        body = request[request.index(b"\r\n\r\n") + 4 :]
        if kind == "stream":
            asyncio.get_running_loop().call_soon(self._stream, int(number), time.monotonic(), _HEAD, 0)
            return
        if kind == "stamped":
            self._transport.write(_HEAD + _chunk(_choice({"role": "assistant", "content": ""})))
            self._stamp(int(number) / 1000 / len(_WORDS), time.monotonic(), 1, len(body))
            return
        response = _response(kind, int(number), body)
        if kind == "plain" and int(number):
            asyncio.get_running_loop().call_later(int(number) / 1000, self._transport.write, response)
        else:
            self._transport.write(response)

    def _stream(self, per_s: int, began: float, piece: bytes, sent: int) -> None:
        """This piece now, the next when its time has come."""
        if self._transport.is_closing():
            return
        self._transport.write(piece)
        again, place = divmod(sent, len(_MARKDOWN))
        numbered = f"\n\nPart {again}:" if place == 0 else ""  # a model that only repeats itself is stopped
        following = _chunk(_choice({"content": numbered + _MARKDOWN[place]}))
        wait_s = max(0.0, began + (sent + 1) / per_s - time.monotonic())
        asyncio.get_running_loop().call_later(wait_s, self._stream, per_s, began, following, sent + 1)

    def _stamp(self, every_s: float, began: float, number: int, prompt: int) -> None:
        """This word when its time has come, and so on until the last."""
        loop = asyncio.get_running_loop()
        wait_s = max(0.0, began + number * every_s - time.monotonic())
        if number > len(_WORDS):
            self._transport.write(_chunk(_choice({}, "stop")) + _used(prompt) + _end())
            return
        loop.call_later(wait_s, self._say_time, every_s, began, number, prompt)

    def _say_time(self, every_s: float, began: float, number: int, prompt: int) -> None:
        if not self._transport.is_closing():
            self._transport.write(_chunk(_choice({"content": f"t{time.monotonic_ns() // 1000} "})))
            self._stamp(every_s, began, number + 1, prompt)


def _content_length(head: bytes) -> int:
    lines = head.lower().split(b"\r\n")
    return next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))


def _response(kind: str, number: int, body: bytes) -> bytes:
    used = _used(len(body))
    rounds = body.count(b'"role":"tool"', max(0, body.rfind(b'"role":"user"')))
    if kind == "count" and rounds < number:
        return _calls([("count", {"number": rounds})]) + used + _end()
    if kind == "sleep" and not rounds:
        arguments = {"command": "sleep 1", "independent": True}
        return _calls([("terminal", arguments)] * number) + used + _end()
    if kind == "print" and not rounds:
        arguments = {"command": f"for _ in $(seq {number}); do yes lorem | head -c 1G; done", "timeout_s": 600}
        return _calls([("terminal", arguments)]) + used + _end()
    if kind == "echo":
        said = re.findall(rb"message-\d+", body[body.rfind(b'"role":"user"') :])
        return _text(*(f"{word.decode()} " for word in said)) + used + _end()
    return _text(*_WORDS) + used + _end()


def _used(prompt: int) -> bytes:
    return _chunk({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": len(_WORDS)}})


@lru_cache
def _text(*words: str) -> bytes:
    pieces = [{"role": "assistant", "content": ""}, *({"content": word} for word in words)]
    return _HEAD + b"".join(_chunk(_choice(piece)) for piece in pieces) + _chunk(_choice({}, "stop"))


def _calls(calls: Iterable[tuple[str, dict[str, Any]]]) -> bytes:
    pieces = [
        {"index": index, "id": f"call_{next(_ids)}", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for index, (name, arguments) in enumerate(calls)
    ]
    return _HEAD + _chunk(_choice({"role": "assistant", "tool_calls": pieces})) + _chunk(_choice({}, "tool_calls"))


def _choice(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _chunk(event: dict[str, Any]) -> bytes:
    return _framed(b"data: %b\n\n" % json.dumps(event).encode())


def _framed(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


@cache
def _end() -> bytes:
    return _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    orphaned = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), orphaned.set)  # readable means closed: nothing is ever written there
    server = await loop.create_server(_Connection, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await orphaned.wait()


if __name__ == "__main__":
    asyncio.run(_serve())
