"""Copies of plugins' folders. Others may still write where a plugin comes from, so links in it are followed only to
files of the plugin itself, whenever they came there."""

import errno
import os
import stat
from collections.abc import Set as AbstractSet
from pathlib import Path

from talaria.trees import Entry, Root

_CHUNK_BYTES = 1 << 20
_LEADING_ELSEWHERE = frozenset({errno.EXDEV, errno.ELOOP, errno.EINVAL, errno.ENOENT, errno.ENOTDIR})


class LeadsElsewhere(Exception):
    """`str()` of it is the name in the plugin."""


def copy_folder(source: Path, target: Path, *, skipped: AbstractSet[str]) -> None:
    """`target` is made. Folders called as one of `skipped` stay behind. Raises `OSError`, and `LeadsElsewhere` for a
    link to a folder, out of the plugin or to nothing, and for what is not a file at all."""
    with Root.open(source) as old, Root.make(target) as new:
        for place, entry in old.descend(lambda one: one.name not in skipped):
            name = f"{place}/{entry.name}" if place else entry.name
            if not entry.is_folder:
                _copy_file(old, new, name, entry)
            elif entry.name not in skipped:
                new.make_folder(name, 0o700).close()


def _copy_file(old: Root, new: Root, name: str, entry: Entry) -> None:
    try:
        content = old.open_file(name if entry.is_plain_file else old.follow(name))
    except OSError as fault:
        if fault.errno in _LEADING_ELSEWHERE:
            raise LeadsElsewhere(name) from fault
        raise
    with content:
        mode = stat.S_IMODE(os.fstat(content.fileno()).st_mode) & 0o755 | 0o600
        with new.create(name, mode) as copy:
            while chunk := content.read(_CHUNK_BYTES):
                left = memoryview(chunk)
                while left:
                    left = left[copy.write(left) :]
