"""The files below a folder, without generated ones and those that `.gitignore` excludes.

Commands of the model may change these folders meanwhile: each is entered from its open parent, no link is followed, and
private files are recognised by what was opened, not by name.
"""

import errno
import os
import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from talaria.core.trees import Root, open_in, read_all

FILE = ".gitignore"
MAX_BYTES = 1 << 20

IgnoreText = tuple[str, str]
"""The path of a folder, and the text of its `.gitignore`."""


@dataclass(frozen=True, slots=True)
class IgnoreRule:
    pattern: re.Pattern[str]
    """For paths relative to the folder of the rule's file."""
    for_folders: bool
    is_exception: bool


@dataclass(frozen=True, slots=True)
class Ignores:
    """The rules of a folder, and of the folders around it."""

    folder: str
    rules: tuple[IgnoreRule, ...]
    around: "Ignores | None" = None

    def excludes(self, path: str, *, is_folder: bool) -> bool:
        below = path[len(self.folder) :].lstrip("/")
        for rule in reversed(self.rules):
            if (is_folder or not rule.for_folders) and rule.pattern.fullmatch(below):
                return not rule.is_exception
        return self.around is not None and self.around.excludes(path, is_folder=is_folder)


def add_rules(path: str, text: str, around: Ignores | None) -> Ignores | None:
    rules = tuple(parse_rules(text.splitlines()))
    return Ignores(path, rules, around) if rules else around


def read_ignore_file(folder: Root) -> str:
    """The text of a folder's `.gitignore`; empty if there is none."""
    try:
        return folder.read(FILE, MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def read_texts_above(folder: Root, path: str) -> list[IgnoreText]:
    """Of the folders around this one, up to that of the repository; the outermost first."""
    found: list[IgnoreText] = []
    here: Root | None = Root(os.dup(folder.descriptor))
    while here is not None:
        with here:
            if here.find(".git") is not None:
                break
            around, path = here.outer(), path.rpartition("/")[0]
        here = around
        if here is not None and (text := read_ignore_file(here)):
            found.append((path, text))
    return found[::-1]


def parse_rules(lines: Iterable[str]) -> Iterator[IgnoreRule]:
    """Ignores lines that are not valid patterns."""
    for line in lines:
        text = re.sub(r"(?<!\\)\s+$", "", line)
        is_exception = text.startswith("!")
        text = text[1:] if is_exception else text
        bare = text.rstrip("/")
        if not bare or line.startswith("#"):
            continue
        start = "" if "/" in bare else "(?:.*/)?"  # a slash anchors the pattern at its folder
        pieces = map(_translate_piece, _PIECES.finditer(bare.removeprefix("/")))
        try:
            pattern = re.compile(start + "".join(pieces), re.DOTALL)
        except (re.error, RecursionError, OverflowError):
            continue
        yield IgnoreRule(pattern, text.endswith("/"), is_exception)


_PIECES = re.compile(
    r"(?P<deep>(?:^|(?<=/))\*\*/)|(?P<rest>(?<=/)\*\*$)|(?P<many>\*+)|(?P<one>\?)"
    r"|\[(?P<negation>[!^]?)(?P<set>\]?(?:\\.|[^\]\\])*)\]|\\(?P<literal>.)|(?P<char>.)",
    re.DOTALL,
)


def _translate_piece(found: re.Match[str]) -> str:
    """A piece of a glob, as a regular expression."""
    match found.lastgroup:
        case "deep":
            return "(?:.*/)?"
        case "rest":
            return ".+"
        case "many":
            return "[^/]*"
        case "one":
            return "[^/]"
        case "set":
            chars = re.sub(r"(\\.)|([\[\]&~|^])", lambda one: one[1] or f"\\{one[2]}", found["set"])
            return f"(?!/)[{'^' if found['negation'] else ''}{chars}]"
        case _:
            return re.escape(found["literal"] or found[0])


SKIPPED_FOLDERS = frozenset({".git", ".hg", "node_modules", "__pycache__", ".venv", ".mypy_cache", ".ruff_cache"})
MAX_FILE_BYTES = 4 << 20
_SNIFFED_BYTES = 8192

Identity = tuple[int, int]
"""Device and inode."""


class FileToRead(NamedTuple):
    """Read it before you request the next one."""

    path: str
    folder: Root
    name: str


class PrivateFolders(NamedTuple):
    """What is not searched, except for the folders in it that are shown."""

    hidden: frozenset[Identity]
    shown: frozenset[Identity]

    def contains(self, folder: Root) -> bool:
        """The nearest folder around it that is hidden or shown decides."""
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
def open_files(
    path: str, private: PrivateFolders, around: Iterable[IgnoreText] | None
) -> Generator[Iterator[FileToRead]]:
    """Sorted by name, folder by folder, from a resolved path. The root itself is never ignored; private files are never
    included. `around`: the ignore files above; None: look there. Raises `OSError`."""
    root, name = _open_start(path)
    with root:
        is_private = private.contains(root)
        if name and not is_private:
            info = root.info(name)
            is_private = (info.st_dev, info.st_ino) in private.hidden
        if is_private:
            raise PermissionError(errno.EACCES, "it is private")
        if name:
            yield iter((FileToRead(path, root, name),))
        else:
            ignores = None
            for folder, text in read_texts_above(root, path) if around is None else around:
                ignores = add_rules(folder, text, ignores)
            yield _walk_files(root, path, ignores, private.hidden)


def read_ignores_above(path: str) -> list[IgnoreText]:
    """For a search that cannot see the folders above."""
    try:
        root, name = _open_start(path)
        with root:
            return [] if name else read_texts_above(root, path)
    except OSError:  # the search itself reports what is wrong
        return []


def _open_start(path: str) -> tuple[Root, str]:
    """A folder, or that of a file and the file's name in it."""
    with Root.open("/") as top:
        below = path.strip("/")
        try:
            return top.folder(below), ""
        except NotADirectoryError:
            around, _, name = below.rpartition("/")
            return top.folder(around), name


class _Level(NamedTuple):
    folder: Root
    path: str
    ignores: Ignores | None
    files: list[str]
    """Still to come, the next one last."""
    folders: list[str]


def _walk_files(root: Root, path: str, ignores: Ignores | None, hidden: frozenset[Identity]) -> Iterator[FileToRead]:
    """Files first. Not recursive, since folders may be nested deeper than the stack allows."""
    levels = [_list_folder(Root(os.dup(root.descriptor)), path.rstrip("/"), ignores, hidden)]
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
            except OSError:  # gone, a link by now, not permitted, or too deep
                continue
            if inner.identity in hidden:
                inner.close()
            else:
                levels.append(_list_folder(inner, f"{level.path}/{name}", level.ignores, hidden))
    finally:
        for level in levels:
            level.folder.close()


def _list_folder(folder: Root, path: str, around: Ignores | None, hidden: frozenset[Identity]) -> _Level:
    ignores = add_rules(path, read_ignore_file(folder), around)
    try:
        entries, (device, _) = folder.entries(), folder.identity
    except OSError:
        entries, device = [], 0
    level = _Level(folder, path, ignores, [], [])
    for entry in sorted(entries, reverse=True):
        is_skipped = entry.is_folder and entry.name in SKIPPED_FOLDERS
        if is_skipped or (device, entry.inode) in hidden:
            continue
        if ignores is None or not ignores.excludes(f"{path}/{entry.name}", is_folder=entry.is_folder):
            (level.folders if entry.is_folder else level.files).append(entry.name)
    return level


def read_content(file: FileToRead, hidden: frozenset[Identity]) -> bytes:
    """Empty if it is not a text file, is too large, is a link, may not be read, or may never end."""
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
