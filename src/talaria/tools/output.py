"""Output of any size in bounded memory: its head and tail for the model, all of it in a file."""

from contextlib import suppress
from pathlib import Path
from typing import IO

from talaria.model.redaction import Redactor
from talaria.trees import Root

HEAD_BYTES = 16_000
TAIL_BYTES = 16_000
MAX_SPILL_BYTES = 64 << 20
NOTICE_BYTES = 8_000
"""Room for what is said around the output, so that what was cut once is not cut again."""


class Output:
    """Collects bytes; past head + tail everything is also written to `spill`, if the disk allows it.

    Also a command's `Sink`.
    """

    def __init__(self, spill: Path, redactor: Redactor) -> None:
        """Known secrets are taken out as it comes: neither the model nor the file gets to see one."""
        self._spill = spill
        self._clean = redactor.byte_stream()
        self._is_closed = False
        self._head = bytearray()
        self._tail = bytearray()
        self._file: IO[bytes] | None = None
        self._fault = ""
        self.size_bytes = 0

    def add(self, chunk: bytes) -> None:
        self._take(self._clean.add(chunk))

    def _take(self, chunk: bytes) -> None:
        self.size_bytes += len(chunk)
        room = max(0, HEAD_BYTES - len(self._head))
        self._head += chunk[:room]
        rest = chunk[room:]
        if not self._fault and self.size_bytes > HEAD_BYTES + TAIL_BYTES:
            self._keep(rest)
        self._tail = (self._tail + rest)[-TAIL_BYTES:]

    def _keep(self, rest: bytes) -> None:
        try:
            if self._file is None:
                self._file = _created(self._spill)
                self._file.write(self._head + self._tail)
            room = max(0, MAX_SPILL_BYTES - self._file.tell())
            self._file.write(rest[:room])
        except OSError as fault:
            self._fault = fault.strerror

    def skip(self, size_bytes: int) -> None:
        """So much was left out before it came here."""
        if size_bytes:
            self._take(self._clean.end())
            self.size_bytes += size_bytes
            self._tail.clear()

    def since(self, position: int) -> bytes:
        """What came after the first `position` bytes, as far as it is at hand."""
        fresh = self.size_bytes - position
        if position < len(self._head) and not self._left_out:
            return bytes(self._head[position:] + self._tail)
        return bytes(self._tail[-fresh:]) if fresh > 0 else b""

    @property
    def _left_out(self) -> int:
        return self.size_bytes - len(self._head) - len(self._tail)

    def close(self) -> None:
        """Ends the collecting."""
        if self._is_closed:
            return
        self._is_closed = True
        self._take(self._clean.end())
        if self._file is not None:
            self._file.close()

    def text(self) -> str:
        left_out = self._left_out
        if left_out == 0:
            return bytes(self._head + self._tail).decode("utf-8", "replace")
        head, tail = (bytes(part).decode("utf-8", "replace") for part in (self._head, self._tail))
        return f"{head}\n\n[… {left_out:,} bytes left out; {self._whereabouts()} …]\n\n{tail}"

    def _whereabouts(self) -> str:
        if self._fault:
            return f"they could not be kept: {self._fault}"
        if self.size_bytes > MAX_SPILL_BYTES:
            return f"the first {MAX_SPILL_BYTES:,} of {self.size_bytes:,} are in {self._spill}"
        return f"all {self.size_bytes:,} are in {self._spill}"


def _created(file: Path) -> IO[bytes]:
    """`spill/SESSION/NAME` of a home: only its owner reads it."""
    session = file.parent
    with Root.make(session.parent) as sessions, sessions.make_folder(session.name, 0o700) as folder:
        with suppress(FileNotFoundError):
            folder.remove(file.name)
        return folder.create(file.name, 0o600)


def cap(text: str, spill: Path, redactor: Redactor) -> str:
    """`text` as UTF-8 can hold it (no lone surrogates), without secrets, short enough for the model."""
    encoded = redactor.data(text.encode("utf-8", "replace"))
    if len(encoded) <= HEAD_BYTES + TAIL_BYTES + NOTICE_BYTES:
        return encoded.decode("utf-8", "replace")
    output = Output(spill, Redactor())
    output.add(encoded)
    output.close()
    return output.text()
