"""The files below a folder, without what machines made and what `.gitignore` leaves out. No link is followed."""

import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from talaria.tools.searching.ignores import Ignores, above, inside

SKIPPED_FOLDERS = frozenset({".git", ".hg", "node_modules", "__pycache__", ".venv", ".mypy_cache", ".ruff_cache"})
MAX_FILE_BYTES = 4 << 20
_SNIFFED_BYTES = 8192
_READING = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC


def files(root: Path, hidden: Collection[str] = ()) -> Iterator[str]:
    """Sorted by name, folder by folder; the root itself is never left out, what is `hidden` always."""
    if root.is_dir():
        yield from _below(str(root), above(root), hidden)
    else:
        yield str(root)


def _below(folder: str, around: Ignores | None, hidden: Collection[str]) -> Iterator[str]:
    """Files first; in a list of its own, as folders may lie deeper than a stack allows."""
    waiting = [(folder, around)]
    while waiting:
        here, outer = waiting.pop()
        ignores = inside(here, outer)
        folders: list[str] = []
        for path, is_folder in _entries(here):
            if path in hidden or (ignores is not None and ignores.leaves_out(path, is_folder=is_folder)):
                continue
            if is_folder:
                folders.append(path)
            else:
                yield path
        waiting += [(path, ignores) for path in reversed(folders)]


def _entries(folder: str) -> list[tuple[str, bool]]:
    try:
        with os.scandir(folder) as entries:
            found = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except OSError:
        return []
    return sorted(one for one in found if not (one[1] and one[0].rpartition("/")[2] in SKIPPED_FOLDERS))


def content(path: str) -> bytes:
    """Nothing of what is no text, too large, a link, not ours to read, or may never end."""
    try:
        descriptor = os.open(path, _READING)
    except OSError:
        return b""
    try:
        known = os.fstat(descriptor)
        if not stat.S_ISREG(known.st_mode) or known.st_size > MAX_FILE_BYTES:
            return b""
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            read = file.read(MAX_FILE_BYTES) or b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    return b"" if b"\0" in read[:_SNIFFED_BYTES] else read
