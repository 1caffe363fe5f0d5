"""Reads git's index: which files git tracks, and what they held when git last saw them.

Git is not run: in a hostile repository it would run what the settings name. Reads versions 2 to 4, with SHA-1 or
SHA-256. If an index is split, damaged or too large, no file counts as tracked.
"""

import hashlib
import os
import stat
import struct
from collections.abc import Mapping
from pathlib import Path

import msgspec

from talaria.core.trees import Root

MAX_INDEX_BYTES = 48 << 20
"""About 400,000 files."""
_HEADER = struct.Struct(">4sII")
_STATS = struct.Struct(">10I")
_FLAGS = struct.Struct(">H")
_CHECKSUMS = ((20, "sha1"), (32, "sha256"))
_EXTENDED = 0x4000
_INTENT_TO_ADD = 0x2000
_STAGES = 0x3000


class IndexEntry(msgspec.Struct, frozen=True, gc=False):
    mode: int
    size: int
    """The lowest 32 bits."""
    mtime: tuple[int, int]
    """Seconds and nanoseconds, as git last saw it."""
    digest: bytes
    """Of its content as a blob; empty: git has no content to check out."""

    def matches_times(self, found: os.stat_result, written_at_ns: int) -> bool:
        """Whether it looks unchanged since git saw it. `written_at_ns`: when the index was written; a change at the
        same moment may have come after it."""
        seconds, nanoseconds = divmod(found.st_mtime_ns, 1_000_000_000)
        is_same_time = self.mtime[0] == seconds & 0xFFFFFFFF and self.mtime[1] in (0, nanoseconds)
        is_same_kind = stat.S_IFMT(found.st_mode) == stat.S_IFMT(self.mode)
        is_older = found.st_mtime_ns < written_at_ns
        return is_same_kind and is_same_time and is_older and found.st_size & 0xFFFFFFFF == self.size

    def matches_content(self, content: bytes) -> bool:
        """Files that git converts on checkout (line ends, filters) do not match."""
        algorithm = hashlib.sha1 if len(self.digest) == 20 else hashlib.sha256
        return bool(self.digest) and algorithm(b"blob %d\0" % len(content) + content).digest() == self.digest


class GitIndex(msgspec.Struct, frozen=True):
    entries: Mapping[str, IndexEntry]
    """By name below the work tree. Bytes that are not UTF-8 are surrogates."""
    has_staged_changes: bool
    """Something was added since the last commit or checkout, as far as the index shows."""


def read_index(content: bytes) -> GitIndex | None:
    """None: it cannot be read."""
    try:
        return _parse_index(content)
    except (ValueError, struct.error, IndexError):
        return None


def _parse_index(content: bytes) -> GitIndex:
    for size, algorithm in _CHECKSUMS:
        if hashlib.new(algorithm, content[:-size]).digest() == content[-size:]:
            break
    else:
        size = 20
        if content[-size:] != bytes(size):  # with `index.skipHash` the checksum is zeros
            raise ValueError("damaged")
    body = content[:-size]
    signature, version, count = _HEADER.unpack_from(body)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("not an index")
    entries: dict[str, IndexEntry] = {}
    position, name = _HEADER.size, b""
    for _ in range(count):
        start = position
        _, _, seconds, nanoseconds, _, _, mode, _, _, length = _STATS.unpack_from(body, position)
        position += _STATS.size
        digest = body[position : position + size]
        (flags,) = _FLAGS.unpack_from(body, position + size)
        position += size + _FLAGS.size
        extended = 0
        if flags & _EXTENDED:
            (extended,) = _FLAGS.unpack_from(body, position)
            position += _FLAGS.size
        if version == 4:
            byte = body[position]  # a number as in packs: seven bits at a time, the highest first
            dropped = byte & 0x7F
            while byte & 0x80:
                position += 1
                byte = body[position]
                dropped = ((dropped + 1) << 7) | (byte & 0x7F)
            position += 1
            end = body.index(b"\0", position)
            if dropped > len(name):
                raise ValueError("a name that is too short")
            name = name[: len(name) - dropped] + body[position:end]
            position = end + 1
        else:
            end = body.index(b"\0", position)
            name = body[position:end]
            position = start + ((end - start) // 8 + 1) * 8
        if flags & _STAGES or extended & _INTENT_TO_ADD:  # a conflict, or not added yet: nothing to check out
            digest = b""
        entries[name.decode("utf-8", "surrogateescape")] = IndexEntry(mode, length, (seconds, nanoseconds), digest)
    return GitIndex(entries, _has_staged_changes(body, position))


def _has_staged_changes(body: bytes, position: int) -> bool:
    """Git stores the tree that was committed or checked out, and drops it when a file is added."""
    while position + 8 <= len(body):
        name = body[position : position + 4]
        (length,) = struct.unpack_from(">I", body, position + 4)
        inner = body[position + 8 : position + 8 + length]
        position += 8 + length
        if name == b"TREE":
            return inner[1:].startswith(b"-1")  # the root's own name is empty: a NUL, then how many entries it has
        if name == b"link":
            raise ValueError("split: most entries are in another file")
    return True


class Repository(msgspec.Struct, frozen=True):
    prefix: str
    """The project's name below the work tree, or, for a nested repository, its own name below the project."""
    is_nested: bool
    index: GitIndex
    written_at_ns: int

    def index_name(self, file: str) -> str | None:
        """The name in the index of a file of the project."""
        if self.is_nested:
            return file.removeprefix(f"{self.prefix}/") if file.startswith(f"{self.prefix}/") else None
        return f"{self.prefix}/{file}" if self.prefix else file

    def project_name(self, name: str) -> str | None:
        """The reverse of `index_name`."""
        if self.is_nested:
            return f"{self.prefix}/{name}"
        if not self.prefix:
            return name
        return name.removeprefix(f"{self.prefix}/") if name.startswith(f"{self.prefix}/") else None


def open_repository(tree: Root, path: str, folder: str, found: os.stat_result) -> Repository | None:
    """The repository whose `.git` is in a folder of `tree`. None: its index cannot be read."""
    git = f"{folder}/.git" if folder else ".git"
    try:
        if stat.S_ISDIR(found.st_mode):
            return _read_repository(tree, f"{git}/index", folder)
        pointer = tree.read(git, 1 << 13).decode("utf-8", "surrogateescape").removeprefix("gitdir:").strip()
        with Root.open(os.path.normpath(os.path.join(path, folder, pointer))) as elsewhere:  # noqa: PTH118
            return _read_repository(elsewhere, "index", folder)
    except (OSError, ValueError):
        return None


def _read_repository(tree: Root, file: str, folder: str) -> Repository | None:
    written = tree.info(file)
    index = read_index(tree.read(file, MAX_INDEX_BYTES)) if written.st_size <= MAX_INDEX_BYTES else None
    return None if index is None else Repository(folder, bool(folder), index, written.st_mtime_ns)


def find_repository_around(project: str) -> Repository | None:
    """The project may be a folder of a larger repository."""
    for around in Path(project).parents:
        try:
            with Root.open(around) as tree:
                found = tree.find(".git")
                if found is not None:
                    made = open_repository(tree, str(around), "", found)
                    prefix = str(Path(project).relative_to(around))
                    return None if made is None else msgspec.structs.replace(made, prefix=prefix)
        except OSError:
            continue
    return None
