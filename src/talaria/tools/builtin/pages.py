"""A window of numbered lines of a file of any size, read in bounded memory."""

import codecs
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from talaria.core.errors import ToolFailed
from talaria.core.redaction import Redactor
from talaria.tools.builtin.seen import Sight
from talaria.tools.builtin.texts import is_binary
from talaria.tools.places import stamp_of

MAX_FILE_BYTES = 64 << 20
MAX_LINE_CHARS = 2_000
MAX_SHOWN_BYTES = 32_000
_CHUNK_BYTES = 64 << 10


@dataclass(slots=True)
class LineWindow:
    start: int
    most: int
    shown: list[str] = field(default_factory=list[str])
    ended: int = 0
    """How many lines have ended so far."""
    _line: str = ""
    _cut: int = 0
    _has_begun: bool = False
    _room: int = MAX_SHOWN_BYTES

    def add(self, text: str) -> None:
        first, *others = text.split("\n")
        self._grow(first)
        for piece in others:
            self._end()
            self._grow(piece)

    def close(self) -> None:
        if self._has_begun:
            self._end()

    def text(self) -> str:
        if not self.shown:
            return f"[the file ends at line {self.ended}]" if self.ended else "[empty]"
        body = "\n".join(self.shown)
        following = self.start + len(self.shown)
        left = self.ended - following + 1
        return f"{body}\n[{left} more lines; continue with offset={following}]" if left > 0 else body

    def _grow(self, piece: str) -> None:
        if not piece:
            return
        self._has_begun = True
        if self._is_wanted():
            kept = piece[: MAX_LINE_CHARS - len(self._line)]
            self._line += kept
            self._cut += len(piece) - len(kept)

    def _is_wanted(self) -> bool:
        is_next = self.ended + 1 == self.start + len(self.shown)
        return is_next and len(self.shown) < self.most and self._room > 0

    def _end(self) -> None:
        if self._is_wanted():
            text = f"{self._line}[… {self._cut:,} more characters]" if self._cut else self._line.removesuffix("\r")
            line = f"{self.ended + 1}|{text}"
            self._room -= len(line.encode()) + 1
            if self._room >= 0 or not self.shown:
                self.shown.append(line)
        self.ended += 1
        self._line, self._cut, self._has_begun = "", 0, False


def too_large(path: Path, limit_bytes: int) -> ToolFailed:
    return ToolFailed(f"{path} is larger than {limit_bytes >> 20} MB; use the terminal to look at parts.")


def read_page(file: BinaryIO, path: Path, start: int, most: int, redactor: Redactor) -> tuple[str, Sight]:
    """What the model is shown, and what it knows of the file by that. Raises `ToolFailed`.

    Secrets go before lines are cut: of half a secret nobody could tell that it is one.
    """
    known = os.fstat(file.fileno())
    if known.st_size > MAX_FILE_BYTES:
        raise too_large(path, MAX_FILE_BYTES)
    window, sha, decode = LineWindow(max(1, start), max(1, most)), sha256(), codecs.getincrementaldecoder("utf-8-sig")
    decoder, stream = decode("replace"), redactor.stream()
    for chunk in _chunks(file, path):
        sha.update(chunk)
        window.add(stream.add(decoder.decode(chunk)))
    window.add(stream.add(decoder.decode(b"", final=True)) + stream.end())
    window.close()
    return window.text(), Sight(stamp_of(known), sha.hexdigest())


def _chunks(file: BinaryIO, path: Path) -> Iterator[bytes]:
    size = 0
    while chunk := file.read(_CHUNK_BYTES):
        if size == 0 and is_binary(chunk):
            raise ToolFailed(f"{path} is not a text file; if it is an image, use view_image.")
        size += len(chunk)
        if size > MAX_FILE_BYTES:  # it grows, or belongs to the system and has no size
            raise too_large(path, MAX_FILE_BYTES)
        yield chunk
