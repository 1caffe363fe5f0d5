"""What a workspace and its tool host exchange: frames with a kind, the number of a command, and some bytes.

Imports nothing of ours: it is part of the tool host, which also runs where Talaria is not installed.
"""

import struct
from collections.abc import Iterator

START = b"S"
"""To the host, as JSON: run a command."""
INPUT = b"I"
"""To the host: input for the command; empty: no more."""
KILL = b"K"
"""To the host: end the command and all its children."""
HELLO = b"H"
"""From the host, once: it is ready."""
OUTPUT = b"O"
SKIPPED = b"L"
"""From the host: how many bytes of output were left out here, in digits."""
ENDED = b"E"
"""From the host, as JSON: the command has ended, and nothing of it is left."""

MAX_BYTES = 1 << 20

_HEADER = struct.Struct(">cIII")
_MAGIC = 0x7A1A51A


class BrokenStream(Exception):
    """What was received is not a frame."""


def frame(kind: bytes, number: int = 0, content: bytes = b"") -> bytes:
    return _HEADER.pack(kind, _MAGIC, number, len(content)) + content


class Frames:
    """Cuts bytes into frames as they arrive."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, chunk: bytes) -> Iterator[tuple[bytes, int, bytes]]:
        """Raises `BrokenStream`."""
        self._pending += chunk
        while len(self._pending) >= _HEADER.size:
            kind, magic, number, size = _HEADER.unpack_from(self._pending)
            if magic != _MAGIC or size > MAX_BYTES:
                raise BrokenStream
            end = _HEADER.size + size
            if len(self._pending) < end:
                return
            content = bytes(self._pending[_HEADER.size : end])
            del self._pending[:end]
            yield kind, number, content
