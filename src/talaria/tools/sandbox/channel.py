"""The way to a tool host. What comes from there may be a command's doing: it is data, and of limited size."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import count

import msgspec

from talaria.tools.sandbox.commands import LOST, Command, End, Sink, Started
from talaria.tools.sandbox.host.frames import ENDED, OUTPUT, SKIPPED, START, BrokenStream, Frames, frame

_encode = msgspec.json.Encoder().encode
_decode_end = msgspec.json.Decoder(End).decode


class Channel(asyncio.Protocol):
    def __init__(self, received: bytes = b"") -> None:
        """`received` came before the channel was opened."""
        self._received = received
        self._frames = Frames()
        self._numbers = count(1)
        self._commands: dict[int, Started] = {}
        self._transport: asyncio.Transport | None = None
        self._is_closed = False
        self.closed = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return not self._is_closed

    def start(self, command: Command, sink: Sink) -> Started:
        number = next(self._numbers)
        started = Started(sink, self._teller(number), self._give_up)
        if self._is_closed:
            started.finish(LOST)
        else:
            self._commands[number] = started
            self._tell(START, number, _encode(command))
        return started

    def _teller(self, number: int) -> Callable[[bytes, bytes], None]:
        return lambda kind, content: self._tell(kind, number, content)

    def _tell(self, kind: bytes, number: int, content: bytes) -> None:
        if self._transport is not None and not self._is_closed:
            self._transport.write(frame(kind, number, content))

    def _give_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport
        self.data_received(self._received)

    def data_received(self, data: bytes) -> None:
        try:
            for kind, number, content in self._frames.feed(data):
                self._heed(kind, self._commands.get(number), number, content)
        except BrokenStream:
            self._give_up()

    def _heed(self, kind: bytes, started: Started | None, number: int, content: bytes) -> None:
        if started is None:
            return
        if kind == OUTPUT:
            started.sink.add(content)
        elif kind == SKIPPED:
            with suppress(ValueError):
                started.sink.skip(max(0, int(content[:20])))
        elif kind == ENDED:
            del self._commands[number]
            started.finish(_end(content))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._is_closed = True
        for started in self._commands.values():
            started.finish(LOST)
        self._commands.clear()
        self.closed.set()


def _end(content: bytes) -> End:
    try:
        return _decode_end(content)
    except msgspec.MsgspecError:
        return LOST
