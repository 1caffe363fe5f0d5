"""A chat service of lines on one socket: `[chat, id, text]` in, `[chat, text]` out. It costs next to nothing, so that
what is measured is not the service. The people are in another process (`people.py`)."""

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec

Said = tuple[str, str, str]
"""Chat, id of the message, text."""

_encode = msgspec.json.Encoder().encode
_decode_said = msgspec.json.Decoder(Said).decode


class Line(asyncio.Protocol):
    """The side of the one who answers. `hear` gets what arrived together."""

    def __init__(self, hear: Callable[[list[Said]], None]) -> None:
        self._hear = hear
        self._rest = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines:
            self._hear([_decode_said(line) for line in lines])

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def say(self, chat: str, text: str) -> None:
        assert self._transport is not None
        self._transport.write(_encode((chat, text)) + b"\n")


async def listening(line: Line) -> int:
    """The port where it waits for people."""
    server = await asyncio.get_running_loop().create_server(lambda: line, "127.0.0.1", 0)
    return server.sockets[0].getsockname()[1]
