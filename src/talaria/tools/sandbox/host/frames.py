"""What a workspace and its tool host tell each other: frames of a kind, the number of a command, and some bytes.

Imports nothing of ours: it is part of the tool host, which runs where nothing of ours is.
"""

import struct
from collections.abc import Iterator

START = b"S"
"""To the host: run a command, as JSON."""
INPUT = b"I"
"""To the host: what the command reads; empty: no more."""
KILL = b"K"
"""To the host: end the command with all its children."""
HELLO = b"H"
"""From the host, once: it is ready."""
OUTPUT = b"O"
SKIPPED = b"L"
"""From the host: so many bytes of output (in digits) were left out here."""
ENDED = b"E"
"""From the host, as JSON: nothing of the command is left."""

MAX_BYTES = 1 << 20

_HEADER = struct.Struct(">cIII")
_MAGIC = 0x7A1A51A


class BrokenStream(Exception):
    """What came is no frame."""


def frame(kind: bytes, number: int = 0, content: bytes = b"") -> bytes:
    return _HEADER.pack(kind, _MAGIC, number, len(content)) + content


class Frames:
    """Bytes as they come, cut into frames."""

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
