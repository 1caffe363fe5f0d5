"""Files at paths that were resolved once. From then on no link is followed, wherever one has come to stand meanwhile.

All functions raise `OSError`.
"""

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from talaria.files import FOLDER, open_in, replace_in

Stamp = tuple[int, int, int, int]
"""Device, inode, size, time of change in ns: other than before means that somebody has changed it."""


class Found(msgspec.Struct, frozen=True):
    """What a file holds."""

    content: bytes
    mode: int
    stamp: Stamp
    is_whole: bool
    """False: it goes on after `content`."""


@contextmanager
def opened(path: Path) -> Generator[BinaryIO]:
    """To be read. Raises also for a link, folder, device or pipe: those may never end."""
    with _folder(path) as folder:
        descriptor = open_in(folder, path.name or ".")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def read(path: Path, limit_bytes: int) -> Found | None:
    """None: it is not there."""
    try:
        with opened(path) as file:
            known = os.fstat(file.fileno())
            content = file.read(limit_bytes + 1) or b""  # None from files of the system that have nothing to say yet
    except FileNotFoundError:
        return None
    is_whole = len(content) <= limit_bytes
    return Found(content[:limit_bytes], stat.S_IMODE(known.st_mode), stamp_of(known), is_whole)


def write(path: Path, content: bytes, before: Found | None, *, mode: int | None = None) -> None:
    """Whole or not at all, if it still is as it was `before`; folders on the way are made. Without `mode` it stays."""
    with _folder(path, is_made=True) as folder:
        if _stamp(folder, path.name) != (before.stamp if before else None):
            raise OSError(errno.ESTALE, "it was changed at the same time; read it again")
        replace_in(folder, path.name, content, mode=mode)


def remove(path: Path) -> None:
    with _folder(path) as folder:
        os.unlink(path.name, dir_fd=folder)


def stamp(path: Path) -> Stamp | None:
    """None: it is not there."""
    with _folder(path) as folder:
        return _stamp(folder, path.name)


def stamp_of(known: os.stat_result) -> Stamp:
    return known.st_dev, known.st_ino, known.st_size, known.st_mtime_ns


def _stamp(folder: int, name: str) -> Stamp | None:
    try:
        return stamp_of(os.stat(name, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        return None


@contextmanager
def _folder(path: Path, *, is_made: bool = False) -> Generator[int]:
    """The open folder of a path, entered step by step."""
    folder = os.open(path.anchor, FOLDER)
    try:
        for name in path.parts[1:-1]:
            inner = _entered(folder, name, is_made=is_made)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def _entered(folder: int, name: str, *, is_made: bool) -> int:
    with suppress(FileNotFoundError):
        return os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    if is_made:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
    return os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=folder)
