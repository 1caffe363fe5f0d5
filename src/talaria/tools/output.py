"""Output of any size in bounded memory: its head and tail for the model, all of it in a file."""

from pathlib import Path
from typing import IO

HEAD_BYTES = 16_000
TAIL_BYTES = 16_000


class Output:
    """Collects bytes; past head + tail everything is also written to `spill`."""

    def __init__(self, spill: Path) -> None:
        self._spill = spill
        self._head = bytearray()
        self._tail = bytearray()
        self._file: IO[bytes] | None = None
        self._size_bytes = 0

    def add(self, chunk: bytes) -> None:
        self._size_bytes += len(chunk)
        room = max(0, HEAD_BYTES - len(self._head))
        self._head += chunk[:room]
        rest = chunk[room:]
        if self._file is None and len(self._tail) + len(rest) > TAIL_BYTES:
            self._file = self._open()
        if self._file is not None:
            self._file.write(rest)
        self._tail = (self._tail + rest)[-TAIL_BYTES:]

    def _open(self) -> IO[bytes]:
        self._spill.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self._spill.open("wb")
        file.write(self._head + self._tail)
        return file

    def text(self) -> str:
        """Ends the collecting."""
        head, tail = (bytes(part).decode("utf-8", "replace") for part in (self._head, self._tail))
        if self._file is None:
            return bytes(self._head + self._tail).decode("utf-8", "replace")
        self._file.close()
        left_out = self._size_bytes - len(self._head) - len(self._tail)
        return f"{head}\n\n[… {left_out:,} bytes left out; all {self._size_bytes:,} are in {self._spill} …]\n\n{tail}"


def cap(text: str, spill: Path) -> str:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= HEAD_BYTES + TAIL_BYTES:
        return text
    output = Output(spill)
    output.add(encoded)
    return output.text()
