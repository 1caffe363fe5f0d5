"""The files below a folder, without what machines made and what `.gitignore` leaves out.

Commands of the model change these folders meanwhile: each is entered from its open parent, no link is followed, and
what is private is known by what was opened, not by its name.
"""

import errno
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from talaria.core.trees import Root, open_in, read_all
from talaria.tools.searching.ignores import Above, Ignores, above, inside, texts_above

SKIPPED_FOLDERS = frozenset({".git", ".hg", "node_modules", "__pycache__", ".venv", ".mypy_cache", ".ruff_cache"})
MAX_FILE_BYTES = 4 << 20
_SNIFFED_BYTES = 8192

Identity = tuple[int, int]
"""Device and inode."""


class FileToRead(NamedTuple):
    """To be read before the next one is asked for."""

    path: str
    folder: Root
    name: str


class Private(NamedTuple):
    """What is not searched, with all that is in it; but for some folders in there."""

    hidden: frozenset[Identity]
    shown: frozenset[Identity]

    def holds(self, folder: Root) -> bool:
        """By the nearest folder around it that is one of either."""
        here: Root | None = Root(os.dup(folder.descriptor))
        while here is not None:
            with here:
                if here.identity in self.shown:
                    return False
                if here.identity in self.hidden:
                    return True
                around = here.outer()
            here = around
        return False


@contextmanager
def opened(path: str, private: Private, around: Iterable[Above] | None) -> Generator[Iterator[FileToRead]]:
    """Sorted by name, folder by folder, from a resolved path on; the root itself is never left out, what is private
    always. `around`: what the folders above ignore; None: look there. Raises `OSError`."""
    root, name = _start(path)
    with root:
        if private.holds(root) or (name and _identity(root, name) in private.hidden):
            raise PermissionError(errno.EACCES, "it is private")
        if name:
            yield iter((FileToRead(path, root, name),))
        else:
            ignores = above(texts_above(root, path) if around is None else around)
            yield _below(root, path, ignores, private.hidden)


def ignored_above(path: str) -> list[Above]:
    """What the folders above ignore, for a search that does not see them."""
    try:
        root, name = _start(path)
        with root:
            return [] if name else texts_above(root, path)
    except OSError:  # the search itself says what is wrong
        return []


def _start(path: str) -> tuple[Root, str]:
    """A folder; or that of a file, and its name there."""
    with Root.open("/") as top:
        below = path.strip("/")
        try:
            return top.folder(below), ""
        except NotADirectoryError:
            around, _, name = below.rpartition("/")
            return top.folder(around), name


def _identity(folder: Root, name: str) -> Identity:
    found = folder.info(name)
    return found.st_dev, found.st_ino


class _Level(NamedTuple):
    folder: Root
    path: str
    ignores: Ignores | None
    files: list[str]
    """Those that are still to come, the next one last."""
    folders: list[str]


def _below(root: Root, path: str, ignores: Ignores | None, hidden: frozenset[Identity]) -> Iterator[FileToRead]:
    """Files first; in a list of its own, as folders may lie deeper than a stack allows."""
    levels = [_listed(Root(os.dup(root.descriptor)), path.rstrip("/"), ignores, hidden)]
    try:
        while levels:
            level = levels[-1]
            while level.files:
                name = level.files.pop()
                yield FileToRead(f"{level.path}/{name}", level.folder, name)
            if not level.folders:
                levels.pop().folder.close()
                continue
            name = level.folders.pop()
            try:
                inner = level.folder.folder(name)
            except OSError:  # gone, a link by now, not ours to enter, or too deep
                continue
            if inner.identity in hidden:
                inner.close()
            else:
                levels.append(_listed(inner, f"{level.path}/{name}", level.ignores, hidden))
    finally:
        for level in levels:
            level.folder.close()


def _listed(folder: Root, path: str, around: Ignores | None, hidden: frozenset[Identity]) -> _Level:
    ignores = inside(folder, path, around)
    try:
        entries, (device, _) = folder.entries(), folder.identity
    except OSError:
        entries, device = [], 0
    level = _Level(folder, path, ignores, [], [])
    for entry in sorted(entries, reverse=True):
        is_skipped = entry.is_folder and entry.name in SKIPPED_FOLDERS
        if is_skipped or (device, entry.inode) in hidden:
            continue
        if ignores is None or not ignores.leaves_out(f"{path}/{entry.name}", is_folder=entry.is_folder):
            (level.folders if entry.is_folder else level.files).append(entry.name)
    return level


def content(file: FileToRead, hidden: frozenset[Identity]) -> bytes:
    """Nothing of what is no text, too large, a link, not ours to read, or may never end."""
    try:
        descriptor = open_in(file.folder.descriptor, file.name)
    except OSError:
        return b""
    try:
        known = os.fstat(descriptor)
        if known.st_size > MAX_FILE_BYTES or (known.st_dev, known.st_ino) in hidden:
            return b""
        read = read_all(descriptor, MAX_FILE_BYTES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    return b"" if b"\0" in read[:_SNIFFED_BYTES] else read
