"""Reads and writes files for the file tools.

A path is resolved once; after that no link is followed, whatever has been put in its place since. Text round-trips to
the same bytes: byte order mark, line ends and bytes that are not UTF-8 are kept. `ReadFiles` remembers, per session,
the content of each file when the model last read or wrote it.

Functions that take a path raise `OSError`.
"""

import codecs
import errno
import os
import stat
import threading
from collections import OrderedDict
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import msgspec

from talaria.core.errors import ToolFailed
from talaria.core.ids import SessionId
from talaria.core.redaction import Redactor
from talaria.core.trees import Root

FileStamp = tuple[int, int, int, int]
"""Device, inode, size, time of change in ns: if it differs, somebody has changed the file."""


class FileContent(msgspec.Struct, frozen=True):
    content: bytes
    mode: int
    stamp: FileStamp
    is_whole: bool
    """False: the file goes on after `content`."""


def open_file(path: Path) -> BinaryIO:
    """For reading. Also raises for a link, folder, device or pipe: those may never end."""
    with Root.open(path.anchor) as root:
        return root.open_file(_below_root(path))


def read_file(path: Path, limit_bytes: int) -> FileContent | None:
    """None: it does not exist."""
    try:
        with open_file(path) as file:
            known = os.fstat(file.fileno())
            content = file.read(limit_bytes + 1) or b""  # system files return None if they have no data yet
    except FileNotFoundError:
        return None
    is_whole = len(content) <= limit_bytes
    return FileContent(content[:limit_bytes], stat.S_IMODE(known.st_mode), make_stamp(known), is_whole)


def write_file(path: Path, content: bytes, before: FileContent | None, *, mode: int | None = None) -> None:
    """All or nothing, and only if the file is unchanged since `before`. Creates missing folders. Keeps the mode if
    `mode` is None."""
    with Root.open(path.anchor) as root, root.make_folder(_below_root(path.parent)) as folder:
        if _find_stamp_in(folder, path.name) != (before.stamp if before else None):
            raise OSError(errno.ESTALE, "it was changed in the meantime; read it again")
        folder.replace(path.name, content, mode=mode)


def remove(path: Path) -> None:
    with Root.open(path.anchor) as root:
        root.remove(_below_root(path))


def fingerprint(found: FileContent | None) -> str:
    """Equal as long as the content is the same; empty: no file. For a file that is too large, its stamp."""
    if found is None:
        return ""
    return sha256(found.content).hexdigest() if found.is_whole else ".".join(map(str, found.stamp))


def find_stamp(path: Path) -> FileStamp | None:
    """None: it does not exist."""
    with Root.open(path.anchor) as root:
        return _find_stamp_in(root, _below_root(path))


def make_stamp(known: os.stat_result) -> FileStamp:
    return known.st_dev, known.st_ino, known.st_size, known.st_mtime_ns


def _find_stamp_in(folder: Root, name: str) -> FileStamp | None:
    try:
        return make_stamp(folder.info(name))
    except FileNotFoundError:
        return None


def _below_root(path: Path) -> str:
    return str(path.relative_to(path.anchor))


_BOM = b"\xef\xbb\xbf"
_SNIFFED_BYTES = 8192


class TextFile(msgspec.Struct, frozen=True):
    body: str
    """If all lines end with CRLF, they end with LF here; otherwise unchanged."""
    has_bom: bool = False
    has_crlf: bool = False

    def encode(self) -> bytes:
        body = self.body.replace("\n", "\r\n") if self.has_crlf else self.body
        return (_BOM if self.has_bom else b"") + body.encode("utf-8", "surrogateescape")

    def like(self, before: "TextFile") -> "TextFile":
        """With the byte order mark of `before`, and its line ends unless this text has its own."""
        has_crlf = self.has_crlf or (before.has_crlf and "\r" not in self.body)
        return msgspec.structs.replace(self, has_bom=self.has_bom or before.has_bom, has_crlf=has_crlf)


def decode_text(content: bytes) -> TextFile:
    has_bom = content.startswith(_BOM)
    body = content.removeprefix(_BOM).decode("utf-8", "surrogateescape")
    has_crlf = 0 < body.count("\n") == body.count("\r\n")
    return TextFile(body.replace("\r\n", "\n") if has_crlf else body, has_bom, has_crlf)


def is_binary(content: bytes) -> bool:
    return b"\0" in content[:_SNIFFED_BYTES]


MAX_SESSIONS = 64
MAX_KNOWN_FILES = 512


class KnownContent(msgspec.Struct, frozen=True):
    stamp: FileStamp
    sha256: str

    def matches(self, found: FileContent) -> bool:
        """Whether the content is still the same. Files that are too large are compared by their stamps."""
        if found.is_whole:
            return sha256(found.content).hexdigest() == self.sha256
        return found.stamp == self.stamp


class ReadFiles:
    """Bounded: the model must read forgotten files again. Used from several threads."""

    def __init__(self, max_sessions: int = MAX_SESSIONS, max_files: int = MAX_KNOWN_FILES) -> None:
        self._max_sessions = max_sessions
        self._max_files = max_files
        self._lock = threading.Lock()
        self._sessions: OrderedDict[SessionId, OrderedDict[Path, KnownContent]] = OrderedDict()

    def note(self, session: SessionId, path: Path, sight: KnownContent) -> None:
        with self._lock:
            files = self._sessions.setdefault(session, OrderedDict())
            self._sessions.move_to_end(session)
            files[path] = sight
            files.move_to_end(path)
            while len(files) > self._max_files:
                files.popitem(last=False)
            while len(self._sessions) > self._max_sessions:
                self._sessions.popitem(last=False)

    def find(self, session: SessionId, path: Path) -> KnownContent | None:
        with self._lock:
            files = self._sessions.get(session)
            return None if files is None else files.get(path)


MAX_READ_BYTES = 64 << 20
MAX_LINE_CHARS = 2_000
MAX_SHOWN_BYTES = 32_000
_CHUNK_BYTES = 64 << 10


class LineWindow(msgspec.Struct):
    start: int
    most: int
    shown: list[str] = []
    ended: int = 0
    """The number of complete lines so far."""
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


def too_large_error(path: Path, limit_bytes: int) -> ToolFailed:
    return ToolFailed(f"{path} is larger than {limit_bytes >> 20} MB; use the terminal to look at parts.")


def read_page(file: BinaryIO, path: Path, start: int, most: int, redactor: Redactor) -> tuple[str, KnownContent]:
    """What the model is shown, and what it knows about the file from that. Raises `ToolFailed`.

    Secrets are removed before lines are cut: half a secret could not be recognised.
    """
    known = os.fstat(file.fileno())
    if known.st_size > MAX_READ_BYTES:
        raise too_large_error(path, MAX_READ_BYTES)
    window, sha, decode = LineWindow(max(1, start), max(1, most)), sha256(), codecs.getincrementaldecoder("utf-8-sig")
    decoder, stream, size = decode("replace"), redactor.stream(), 0
    while chunk := file.read(_CHUNK_BYTES):
        if size == 0 and is_binary(chunk):
            raise ToolFailed(f"{path} is not a text file; if it is an image, use view_image.")
        size += len(chunk)
        if size > MAX_READ_BYTES:  # it grows, or is a system file without a size
            raise too_large_error(path, MAX_READ_BYTES)
        sha.update(chunk)
        window.add(stream.add(decoder.decode(chunk)))
    window.add(stream.add(decoder.decode(b"", final=True)) + stream.end())
    window.close()
    return window.text(), KnownContent(make_stamp(known), sha.hexdigest())
