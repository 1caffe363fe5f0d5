"""Files at paths that were resolved once. From then on no link is followed, wherever one has come to stand meanwhile.

All functions raise `OSError`.
"""

import errno
import os
import stat
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import msgspec

from talaria.core.trees import Root

Stamp = tuple[int, int, int, int]
"""Device, inode, size, time of change in ns: other than before means that somebody has changed it."""


class FileContent(msgspec.Struct, frozen=True):
    """What a file holds."""

    content: bytes
    mode: int
    stamp: Stamp
    is_whole: bool
    """False: it goes on after `content`."""


def opened(path: Path) -> BinaryIO:
    """To be read. Raises also for a link, folder, device or pipe: those may never end."""
    with Root.open(path.anchor) as root:
        return root.open_file(_below(path))


def read(path: Path, limit_bytes: int) -> FileContent | None:
    """None: it is not there."""
    try:
        with opened(path) as file:
            known = os.fstat(file.fileno())
            content = file.read(limit_bytes + 1) or b""  # None from files of the system that have nothing to say yet
    except FileNotFoundError:
        return None
    is_whole = len(content) <= limit_bytes
    return FileContent(content[:limit_bytes], stat.S_IMODE(known.st_mode), stamp_of(known), is_whole)


def write(path: Path, content: bytes, before: FileContent | None, *, mode: int | None = None) -> None:
    """Whole or not at all, if it still is as it was `before`; folders on the way are made. Without `mode` it stays."""
    with Root.open(path.anchor) as root, root.make_folder(_below(path.parent)) as folder:
        if _stamp(folder, path.name) != (before.stamp if before else None):
            raise OSError(errno.ESTALE, "it was changed at the same time; read it again")
        folder.replace(path.name, content, mode=mode)


def remove(path: Path) -> None:
    with Root.open(path.anchor) as root:
        root.remove(_below(path))


def fingerprint(found: FileContent | None) -> str:
    """Equal as long as a file holds the same; empty: it is not there. Of one too large to be read, its stamp."""
    if found is None:
        return ""
    return sha256(found.content).hexdigest() if found.is_whole else ".".join(map(str, found.stamp))


def stamp(path: Path) -> Stamp | None:
    """None: it is not there."""
    with Root.open(path.anchor) as root:
        return _stamp(root, _below(path))


def stamp_of(known: os.stat_result) -> Stamp:
    return known.st_dev, known.st_ino, known.st_size, known.st_mtime_ns


def _stamp(folder: Root, name: str) -> Stamp | None:
    try:
        return stamp_of(folder.info(name))
    except FileNotFoundError:
        return None


def _below(path: Path) -> str:
    return str(path.relative_to(path.anchor))
