"""Git's index: which files git tracks, and what they held when git last saw them.

Read without running git, which in a hostile repository would run what its settings name. Versions 2 to 4, with SHA-1 or
SHA-256. A split or damaged index, or one that is too large, is not read: then no file counts as tracked.
"""

import hashlib
import os
import stat
import struct
from collections.abc import Mapping

import msgspec

MAX_BYTES = 48 << 20
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
    """The lowest 32 bits of it."""
    mtime: tuple[int, int]
    """Seconds and nanoseconds, when git looked last."""
    digest: bytes
    """Of its content as a blob; empty: git has no content that could be checked out."""

    def matches_times(self, found: os.stat_result, written_at_ns: int) -> bool:
        """Whether it looks untouched since git saw it. `written_at_ns`: when the index was written; what was changed
        at the very same time may have been changed after it."""
        seconds, nanoseconds = divmod(found.st_mtime_ns, 1_000_000_000)
        is_same_time = self.mtime[0] == seconds & 0xFFFFFFFF and self.mtime[1] in (0, nanoseconds)
        is_same_kind = stat.S_IFMT(found.st_mode) == stat.S_IFMT(self.mode)
        is_older = found.st_mtime_ns < written_at_ns
        return is_same_kind and is_same_time and is_older and found.st_size & 0xFFFFFFFF == self.size

    def matches_content(self, content: bytes) -> bool:
        """Files that git changes on checkout (line ends, filters) do not match."""
        algorithm = hashlib.sha1 if len(self.digest) == 20 else hashlib.sha256
        return bool(self.digest) and algorithm(b"blob %d\0" % len(content) + content).digest() == self.digest


class GitIndex(msgspec.Struct, frozen=True):
    entries: Mapping[str, IndexEntry]
    """By their names below the work tree. Bytes that are not UTF-8 are surrogates."""
    has_staged_changes: bool
    """Something was added since the last commit or checkout, as far as the index tells."""


def read_index(content: bytes) -> GitIndex | None:
    """None: it cannot be read."""
    try:
        return _read(content)
    except (ValueError, struct.error, IndexError):
        return None


def _read(content: bytes) -> GitIndex:
    size, body = _checked(content)
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
            dropped, position = _number(body, position)
            end = body.index(b"\0", position)
            if dropped > len(name):
                raise ValueError("a name that is too short")
            name = name[: len(name) - dropped] + body[position:end]
            position = end + 1
        else:
            end = body.index(b"\0", position)
            name = body[position:end]
            position = start + ((end - start) // 8 + 1) * 8
        if flags & _STAGES or extended & _INTENT_TO_ADD:  # a conflict, or only announced: nothing to check out
            digest = b""
        entries[name.decode("utf-8", "surrogateescape")] = IndexEntry(mode, length, (seconds, nanoseconds), digest)
    return GitIndex(entries, _has_staged_changes(body, position))


def _checked(content: bytes) -> tuple[int, bytes]:
    """How long digests are here, and all but the checksum at the end. With `index.skipHash` that is zeros."""
    for size, name in _CHECKSUMS:
        if hashlib.new(name, content[:-size]).digest() == content[-size:]:
            return size, content[:-size]
    if content[-20:] == bytes(20):
        return 20, content[:-20]
    raise ValueError("damaged")


def _number(body: bytes, position: int) -> tuple[int, int]:
    """As in packs: seven bits at a time, the highest first."""
    byte = body[position]
    value = byte & 0x7F
    while byte & 0x80:
        position += 1
        byte = body[position]
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, position + 1


def _has_staged_changes(body: bytes, position: int) -> bool:
    """Git keeps the tree that the index was committed as or checked out from, and forgets it when a file is added."""
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
