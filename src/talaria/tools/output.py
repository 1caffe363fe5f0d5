"""Output of any size in bounded memory: its head and tail for the model, all of it in a file."""

from pathlib import Path
from typing import IO

HEAD_BYTES = 16_000
TAIL_BYTES = 16_000
MAX_SPILL_BYTES = 64 << 20
NOTICE_BYTES = 8_000
"""Room for what is said around the output, so that what was cut once is not cut again."""


class Output:
    """Collects bytes; past head + tail everything is also written to `spill`, if the disk allows it."""

    def __init__(self, spill: Path) -> None:
        self._spill = spill
        self._head = bytearray()
        self._tail = bytearray()
        self._file: IO[bytes] | None = None
        self._fault = ""
        self._size_bytes = 0

    def add(self, chunk: bytes) -> None:
        self._size_bytes += len(chunk)
        room = max(0, HEAD_BYTES - len(self._head))
        self._head += chunk[:room]
        rest = chunk[room:]
        if not self._fault and self._size_bytes > HEAD_BYTES + TAIL_BYTES:
            self._keep(rest)
        self._tail = (self._tail + rest)[-TAIL_BYTES:]

    def _keep(self, rest: bytes) -> None:
        try:
            if self._file is None:
                self._spill.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._file = self._spill.open("wb", buffering=0)
                self._file.write(self._head + self._tail)
            room = max(0, MAX_SPILL_BYTES - self._file.tell())
            self._file.write(rest[:room])
        except OSError as fault:
            self._fault = fault.strerror

    def text(self) -> str:
        """Ends the collecting."""
        if self._file is not None:
            self._file.close()
        left_out = self._size_bytes - len(self._head) - len(self._tail)
        if left_out == 0:
            return bytes(self._head + self._tail).decode("utf-8", "replace")
        head, tail = (bytes(part).decode("utf-8", "replace") for part in (self._head, self._tail))
        return f"{head}\n\n[… {left_out:,} bytes left out; {self._whereabouts()} …]\n\n{tail}"

    def _whereabouts(self) -> str:
        if self._fault:
            return f"they could not be kept: {self._fault}"
        if self._size_bytes > MAX_SPILL_BYTES:
            return f"the first {MAX_SPILL_BYTES:,} of {self._size_bytes:,} are in {self._spill}"
        return f"all {self._size_bytes:,} are in {self._spill}"


def cap(text: str, spill: Path) -> str:
    """`text` as UTF-8 can hold it (no lone surrogates), short enough for the model."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= HEAD_BYTES + TAIL_BYTES + NOTICE_BYTES:
        return encoded.decode()
    output = Output(spill)
    output.add(encoded)
    return output.text()
