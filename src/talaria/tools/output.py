"""Captures output of any size in bounded memory: head and tail for the model, all of it in a file."""

from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from talaria.core.redaction import Redactor
from talaria.core.text import show_size
from talaria.core.trees import Root

HEAD_BYTES = 16_000
TAIL_BYTES = 16_000
MAX_SPILL_BYTES = 64 << 20
NOTICE_BYTES = 8_000
"""Room for notices around the output, so that what was cut once is not cut again."""
PIECE_BYTES = 16 << 20
"""After this much, the remaining room is checked again: several outputs may grow at once."""


class SpillLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much output is kept in files. Anything beyond is dropped, and the result says so."""

    session_bytes: int = 1 << 30
    home_bytes: int = 10 << 30


class CapturedOutput:
    """An `OutputSink` that collects bytes; past head and tail everything is also written to `spill`, if possible."""

    def __init__(self, spill: Path, redactor: Redactor, limits: SpillLimits | None = None) -> None:
        """Known secrets are removed at once, so neither the model nor the file contains any."""
        self._spill = spill
        self._limits = limits or SpillLimits()
        self._room_bytes = 0
        """How much may be written before the room is checked again."""
        self._home_room_bytes = 0
        self._clean = redactor.byte_stream()
        self._is_closed = False
        self._head = bytearray()
        self._tail = bytearray()
        self._file: IO[bytes] | None = None
        self._fault = ""
        self._kept_bytes = 0
        """Set when it is closed."""
        self.size_bytes = 0

    def add(self, chunk: bytes) -> None:
        self._append(self._clean.add(chunk))

    def _append(self, chunk: bytes) -> None:
        self.size_bytes += len(chunk)
        room = max(0, HEAD_BYTES - len(self._head))
        self._head += chunk[:room]
        rest = chunk[room:]
        if not self._fault and self.size_bytes > HEAD_BYTES + TAIL_BYTES:
            self._spill_rest(rest)
        self._tail = (self._tail + rest)[-TAIL_BYTES:]

    def _spill_rest(self, rest: bytes) -> None:
        try:
            if self._file is None:
                self._check_room()
                session = self._spill.parent
                with Root.make(session.parent) as sessions, sessions.make_folder(session.name, 0o700) as folder:
                    with suppress(FileNotFoundError):
                        folder.remove(self._spill.name)
                    self._file = folder.create(self._spill.name, 0o600)  # for its owner only
                rest = bytes(self._head + self._tail) + rest
            rest = rest[: max(0, MAX_SPILL_BYTES - self._file.tell())]
            while rest:
                if self._room_bytes <= 0:
                    self._file.flush()
                    self._check_room()
                piece, rest = rest[: self._room_bytes], rest[self._room_bytes :]
                self._file.write(piece)
                self._room_bytes -= len(piece)
                self._home_room_bytes -= len(piece)
        except OSError as fault:
            self._fault = fault.strerror
        except _SpillLimitReached as fault:
            self._fault = str(fault)

    def _check_room(self) -> None:
        """Raises `_SpillLimitReached`, `OSError`."""
        limits = self._limits
        with Root.make(self._spill.parent.parent) as sessions:
            if self._file is None:  # once: there may be many sessions
                folders = (entry.name for entry in sessions.entries() if entry.is_folder)
                self._home_room_bytes = limits.home_bytes - sum(_size_of_files(sessions, name) for name in folders)
            room_bytes = limits.session_bytes - _size_of_files(sessions, self._spill.parent.name)
        for room, most, whose, setting in (
            (room_bytes, limits.session_bytes, "this session", "kept_output"),
            (self._home_room_bytes, limits.home_bytes, "all sessions", "kept_output_total"),
        ):
            if room <= 0:
                reason = f"the kept output of {whose} has reached {show_size(most)} (terminal.limits.{setting})"
                raise _SpillLimitReached(reason)
        self._room_bytes = min(PIECE_BYTES, room_bytes, self._home_room_bytes)

    def skip(self, size_bytes: int) -> None:
        """This much was dropped before it arrived here."""
        if size_bytes:
            self._append(self._clean.end())
            self.size_bytes += size_bytes
            self._tail.clear()

    def since(self, position: int) -> bytes:
        """What came after the first `position` bytes, as far as it is still in memory."""
        fresh = self.size_bytes - position
        if position < len(self._head) and not self._left_out:
            return bytes(self._head[position:] + self._tail)
        return bytes(self._tail[-fresh:]) if fresh > 0 else b""

    @property
    def _left_out(self) -> int:
        return self.size_bytes - len(self._head) - len(self._tail)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._append(self._clean.end())
        if self._file is not None:
            self._kept_bytes = self._file.tell()
            self._file.close()

    def text(self) -> str:
        left_out = self._left_out
        if left_out == 0:
            return bytes(self._head + self._tail).decode("utf-8", "replace")
        head, tail = (bytes(part).decode("utf-8", "replace") for part in (self._head, self._tail))
        if self._fault and self._file is not None:
            kept = self._kept_bytes if self._is_closed else self._file.tell()
            known = f"the first {kept:,} of {self.size_bytes:,} are in {self._spill}"
            where = f"{known}, the rest is not kept: {self._fault}"
        elif self._fault:
            where = f"they could not be kept: {self._fault}"
        elif self.size_bytes > MAX_SPILL_BYTES:
            where = f"the first {MAX_SPILL_BYTES:,} of {self.size_bytes:,} are in {self._spill}"
        else:
            where = f"all {self.size_bytes:,} are in {self._spill}"
        return f"{head}\n\n[… {left_out:,} bytes left out; {where} …]\n\n{tail}"


class _SpillLimitReached(Exception):
    """The reason why no more output is kept."""


def _size_of_files(sessions: Root, name: str) -> int:
    with suppress(OSError), sessions.folder(name) as folder:
        found = (folder.find(entry.name) for entry in folder.entries() if entry.is_plain_file)
        return sum(info.st_size for info in found if info is not None)
    return 0


def cap(text: str, spill: Path, redactor: Redactor, limits: SpillLimits | None = None) -> str:
    """`text` as valid UTF-8 (no lone surrogates), without secrets, and short enough for the model."""
    encoded = redactor.data(text.encode("utf-8", "replace"))
    if len(encoded) <= HEAD_BYTES + TAIL_BYTES + NOTICE_BYTES:
        return encoded.decode("utf-8", "replace")
    output = CapturedOutput(spill, Redactor(), limits)
    output.add(encoded)
    output.close()
    return output.text()
