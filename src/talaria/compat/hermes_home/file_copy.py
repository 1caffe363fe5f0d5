"""Files and folders that are taken over as they are. What is there already is never overwritten.

The other agent and its commands may still work in its home: no link is followed that leads out of it, whenever it came
there.
"""

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from talaria.compat.hermes_home.report import ImportStep, left, taken, there
from talaria.trees import Root

MAX_FILE_BYTES = 4 << 20
MAX_FOLDER_BYTES = 64 << 20
MAX_FOLDER_FILES = 5_000
_PASSED_OVER = frozenset({".git", "__pycache__"})


@dataclass(frozen=True, slots=True)
class Way:
    """From one home to the other, under the same name. Ours is nobody else's to change: the person may have links
    there."""

    root: Path
    home: Path
    name: str

    @property
    def target(self) -> Path:
        return self.home / self.name

    @property
    def is_taken(self) -> bool:
        """Whether something is there already."""
        try:
            with Root.open(self.target.parent) as folder:
                return folder.find(self.target.name) is not None
        except (FileNotFoundError, NotADirectoryError):
            return False


def file_step(kind: str, name: str, way: Way) -> ImportStep:
    """A link is followed as long as it does not lead out of the home."""
    try:
        with Root.open(way.root) as root:
            content = root.read(root.follow(way.name), MAX_FILE_BYTES + 1)
    except OSError as fault:
        if fault.errno == errno.EXDEV:
            return left(kind, name, "a link that leads out of the Hermes home")
        return left(kind, name, f"cannot be read: {fault.strerror}")
    if len(content) > MAX_FILE_BYTES:
        return left(kind, name, f"longer than {MAX_FILE_BYTES >> 20} MB")
    if not way.is_taken:
        return taken(kind, name, lambda: _write(way, content))
    return there(kind, name) if _holds(way, content) else left(kind, name, f"{way.target} is another, and stays")


def _write(way: Way, content: bytes) -> None:
    with Root.make(way.target.parent) as folder:
        folder.replace(way.target.name, content, mode=0o600)


def _holds(way: Way, content: bytes) -> bool:
    try:
        with Root.open(way.target.parent) as folder:
            return folder.read(way.target.name, len(content) + 1) == content
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Tree:
    """The files of a folder, told without reading them; all by their names in it."""

    files: tuple[str, ...]
    links: Mapping[str, str]
    """Those that stay inside, and where they lead."""
    odd: tuple[str, ...]
    """Links that lead elsewhere, pipes, devices."""
    size_bytes: int


def tree(folder: Root) -> Tree:
    """Raises `OSError`."""
    files, links, odd, size = list[str](), dict[str, str](), list[str](), 0
    for name in _names(folder, ""):
        known = folder.info(name)
        size += known.st_size
        if stat.S_ISREG(known.st_mode):
            files.append(name)
        elif stat.S_ISLNK(known.st_mode) and _stays_inside(folder, name):
            links[name] = folder.read_link(name)
        else:
            odd.append(name)
    return Tree(tuple(files), links, tuple(odd), size)


def _names(folder: Root, around: str) -> Iterator[str]:
    """Of all that is no folder; a link to a folder is a link."""
    with folder.folder(around) as here:
        entries = sorted(here.entries())
    for entry in entries:
        name = f"{around}/{entry.name}".lstrip("/")
        if entry.is_folder:
            yield from _names(folder, name) if entry.name not in _PASSED_OVER else ()
        else:
            yield name


def _stays_inside(folder: Root, name: str) -> bool:
    if folder.read_link(name).startswith("/"):
        return False
    try:
        return folder.find(folder.follow(name)) is not None
    except OSError:
        return False


def folder_step(kind: str, name: str, way: Way) -> ImportStep:
    try:
        with Root.open(way.root) as root, root.folder(way.name) as source:
            found = tree(source)
            is_same = way.is_taken and _is_same(source, found, way)
    except OSError as fault:
        return left(kind, name, f"cannot be read: {fault.strerror}")
    if found.size_bytes > MAX_FOLDER_BYTES or len(found.files) > MAX_FOLDER_FILES:
        return left(
            kind, name, f"larger than {MAX_FOLDER_BYTES >> 20} MB or {MAX_FOLDER_FILES:,} files: copy it by hand"
        )
    if not way.is_taken:
        without = f"without {', '.join(found.odd)}, which lead elsewhere or are no files" if found.odd else ""
        return taken(kind, name, lambda: _copy(found, way), without)
    return there(kind, name) if is_same else left(kind, name, f"{way.target} is another, and stays")


def _is_same(source: Root, found: Tree, way: Way) -> bool:
    """All of it is there; what the person has put beside it does not matter."""
    if found.size_bytes > MAX_FOLDER_BYTES or len(found.files) > MAX_FOLDER_FILES:
        return False
    try:
        with Root.open(way.target) as target:
            return all(
                target.read(file, MAX_FOLDER_BYTES) == source.read(file, MAX_FOLDER_BYTES) for file in found.files
            )
    except OSError:
        return False


def _copy(found: Tree, way: Way) -> None:
    """The whole folder or nothing: it gets its name when it is complete."""
    draft = f".{way.target.name[:32]}.{os.urandom(6).hex()}"
    with Root.open(way.root) as root, root.folder(way.name) as source, Root.make(way.target.parent) as folder:
        try:
            with folder.make_folder(draft, 0o700) as made:
                for name in found.files:
                    _copy_file(source, made, name)
                for name, target in found.links.items():
                    with made.make_folder(name.rpartition("/")[0]):
                        made.make_link(name, target)
            folder.move(draft, folder, way.target.name)
        except BaseException:
            with suppress(OSError):
                folder.remove_tree(draft)
            raise


def _copy_file(source: Root, target: Root, name: str) -> None:
    """Others may no longer write it; whether it can be run stays."""
    around, _, last = name.rpartition("/")
    with (
        source.open_file(name) as file,
        target.make_folder(around) as folder,
        folder.create(last, 0o600) as made,
    ):
        made.write(file.read(MAX_FOLDER_BYTES))
        os.fchmod(made.fileno(), stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o755 | 0o600)
