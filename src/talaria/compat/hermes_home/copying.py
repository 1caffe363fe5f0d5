"""Files and folders that are taken over as they are. What is there already is never overwritten."""

import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from talaria.compat.hermes_home.report import Step, left, taken, there
from talaria.files import read_bytes, replace_file

MAX_FILE_BYTES = 4 << 20
MAX_FOLDER_BYTES = 64 << 20
MAX_FOLDER_FILES = 5_000
_PASSED_OVER = frozenset({".git", "__pycache__"})


def file_step(kind: str, name: str, source: Path, target: Path, root: Path) -> Step:
    """A link is followed as long as it does not lead out of `root`."""
    if not source.resolve().is_relative_to(root.resolve()):
        return left(kind, name, "a link that leads out of the Hermes home")
    try:
        content = read_bytes(source, MAX_FILE_BYTES + 1)
    except OSError as fault:
        return left(kind, name, f"cannot be read: {fault.strerror}")
    if len(content) > MAX_FILE_BYTES:
        return left(kind, name, f"longer than {MAX_FILE_BYTES >> 20} MB")
    if not os.path.lexists(target):
        return taken(kind, name, lambda: _write(target, content))
    return there(kind, name) if _holds(target, content) else left(kind, name, f"{target} is another, and stays")


def _write(target: Path, content: bytes) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(target, content, mode=0o600)


def _holds(file: Path, content: bytes) -> bool:
    try:
        return read_bytes(file, len(content) + 1) == content
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Tree:
    """The files of a folder, told without reading them."""

    files: tuple[Path, ...]
    """As seen from the folder, as `links` and `odd`."""
    links: tuple[Path, ...]
    """Those that stay inside."""
    odd: tuple[Path, ...]
    """Links that lead elsewhere, pipes, devices."""
    size_bytes: int


def tree(folder: Path) -> Tree:
    """Raises `OSError`."""
    files, links, odd, size = list[Path](), list[Path](), list[Path](), 0
    for path in _walk(folder):
        known = path.lstat()
        size += known.st_size
        if stat.S_ISREG(known.st_mode):
            files.append(path.relative_to(folder))
        elif _stays_inside(path, folder):
            links.append(path.relative_to(folder))
        else:
            odd.append(path.relative_to(folder))
    return Tree(tuple(files), tuple(links), tuple(odd), size)


def _walk(folder: Path) -> Iterator[Path]:
    """All that is no folder; a link to a folder is a link."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry)) if entry.name not in _PASSED_OVER else ()
        else:
            yield Path(entry)


def _stays_inside(path: Path, folder: Path) -> bool:
    return (
        path.is_symlink()
        and not path.readlink().is_absolute()
        and path.exists()
        and path.resolve().is_relative_to(folder.resolve())
    )


def folder_step(kind: str, name: str, source: Path, target: Path) -> Step:
    try:
        found = tree(source)
    except OSError as fault:
        return left(kind, name, f"cannot be read: {fault.strerror}")
    if found.size_bytes > MAX_FOLDER_BYTES or len(found.files) > MAX_FOLDER_FILES:
        return left(
            kind, name, f"larger than {MAX_FOLDER_BYTES >> 20} MB or {MAX_FOLDER_FILES:,} files: copy it by hand"
        )
    if not os.path.lexists(target):
        without = f"without {', '.join(map(str, found.odd))}, which lead elsewhere or are no files" if found.odd else ""
        return taken(kind, name, lambda: _copy(source, found, target), without)
    return there(kind, name) if _is_same(source, found, target) else left(kind, name, f"{target} is another, and stays")


def _is_same(source: Path, found: Tree, target: Path) -> bool:
    """All of it is there; what the person has put beside it does not matter."""
    try:
        return all(
            read_bytes(target / file, MAX_FOLDER_BYTES) == read_bytes(source / file, MAX_FOLDER_BYTES)
            for file in found.files
        )
    except OSError:
        return False


def _copy(source: Path, found: Tree, target: Path) -> None:
    """The whole folder or nothing: it gets its name when it is complete."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name[:32]}.{os.urandom(6).hex()}")
    try:
        draft.mkdir(mode=0o700)
        for file in found.files:
            _copy_file(source / file, draft / file)
        for link in found.links:
            (draft / link).parent.mkdir(parents=True, exist_ok=True)
            (draft / link).symlink_to((source / link).readlink())
        draft.rename(target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _copy_file(source: Path, target: Path) -> None:
    """Others may no longer write it; whether it can be run stays."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(read_bytes(source, MAX_FOLDER_BYTES))
    target.chmod(stat.S_IMODE(source.stat().st_mode) & 0o755 | 0o600)
