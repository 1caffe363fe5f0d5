"""The files below a folder, without what is generated and what `.gitignore` leaves out.

Commands of the model change these folders meanwhile: each is entered from its open parent, no link is followed, and
what is private is recognised by what was opened, not by its name.
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
"""The path of a folder, and what its `.gitignore` says."""


@dataclass(frozen=True, slots=True)
class IgnoreRule:
    fits: re.Pattern[str]
    """The path below the folder of the file that has the rule."""
    for_folders: bool
    is_exception: bool


@dataclass(frozen=True, slots=True)
class Ignores:
    """Of a folder: its own rules, and those of the folders around it."""

    folder: str
    rules: tuple[IgnoreRule, ...]
    around: "Ignores | None" = None

    def leaves_out(self, path: str, *, is_folder: bool) -> bool:
        below = path[len(self.folder) :].lstrip("/")
        for rule in reversed(self.rules):
            if (is_folder or not rule.for_folders) and rule.fits.fullmatch(below):
                return not rule.is_exception
        return self.around is not None and self.around.leaves_out(path, is_folder=is_folder)


def enter_folder(folder: Root, path: str, around: Ignores | None) -> Ignores | None:
    """With what the folder itself says, which is called `path`."""
    return _with_rules(path, read_ignore_file(folder), around)


def _with_rules(path: str, text: str, around: Ignores | None) -> Ignores | None:
    rules = tuple(parse_rules(text.splitlines()))
    return Ignores(path, rules, around) if rules else around


def read_ignore_file(folder: Root) -> str:
    """What the `.gitignore` of a folder says; empty, if there is none."""
    try:
        return folder.read(FILE, MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def read_texts_above(folder: Root, path: str) -> list[IgnoreText]:
    """What the folders around say, up to that of the repository; the outermost first."""
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


def combine_ignores(texts: Iterable[IgnoreText]) -> Ignores | None:
    found = None
    for path, text in texts:
        found = _with_rules(path, text, found)
    return found


def parse_rules(lines: Iterable[str]) -> Iterator[IgnoreRule]:
    """A line that is no pattern counts for nothing."""
    for line in lines:
        text = re.sub(r"(?<!\\)\s+$", "", line)
        is_exception = text.startswith("!")
        text = text[1:] if is_exception else text
        bare = text.rstrip("/")
        if not bare or line.startswith("#"):
            continue
        try:
            fits = re.compile(_pattern(bare), re.DOTALL)
        except (re.error, RecursionError, OverflowError):
            continue
        yield IgnoreRule(fits, text.endswith("/"), is_exception)


_PIECES = re.compile(
    r"(?P<deep>(?:^|(?<=/))\*\*/)|(?P<rest>(?<=/)\*\*$)|(?P<many>\*+)|(?P<one>\?)"
    r"|(?P<kind>\[[!^]?\]?(?:\\.|[^\]\\])*\])|\\(?P<literal>.)|(?P<sign>.)",
    re.DOTALL,
)


def _pattern(glob: str) -> str:
    """Anchored at the folder if a slash says so; else at any depth."""
    start = "" if "/" in glob else "(?:.*/)?"
    return start + "".join(map(_piece, _PIECES.finditer(glob.removeprefix("/"))))


def _piece(found: re.Match[str]) -> str:
    match found.lastgroup:
        case "deep":
            return "(?:.*/)?"
        case "rest":
            return ".+"
        case "many":
            return "[^/]*"
        case "one":
            return "[^/]"
        case "kind":
            return f"(?!/){_kind(found[0])}"
        case _:
            return re.escape(found["literal"] or found[0])


def _kind(text: str) -> str:
    inner = text[1:-1]
    is_other = inner.startswith(("!", "^"))
    signs = inner[1:] if is_other else inner
    safe = re.sub(r"\\.|[\[\]&~|^]", lambda one: one[0] if one[0].startswith("\\") else f"\\{one[0]}", signs)
    return f"[{'^' if is_other else ''}{safe}]"


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


class PrivateFolders(NamedTuple):
    """What is not searched, with all that is in it; but for some folders in there."""

    hidden: frozenset[Identity]
    shown: frozenset[Identity]

    def contains(self, folder: Root) -> bool:
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
def open_files(
    path: str, private: PrivateFolders, around: Iterable[IgnoreText] | None
) -> Generator[Iterator[FileToRead]]:
    """Sorted by name, folder by folder, from a resolved path on; the root itself is never left out, what is private
    always. `around`: what the folders above ignore; None: look there. Raises `OSError`."""
    root, name = _start(path)
    with root:
        if private.contains(root) or (name and _identity(root, name) in private.hidden):
            raise PermissionError(errno.EACCES, "it is private")
        if name:
            yield iter((FileToRead(path, root, name),))
        else:
            ignores = combine_ignores(read_texts_above(root, path) if around is None else around)
            yield _walk_files(root, path, ignores, private.hidden)


def read_ignores_above(path: str) -> list[IgnoreText]:
    """What the folders above ignore, for a search that does not see them."""
    try:
        root, name = _start(path)
        with root:
            return [] if name else read_texts_above(root, path)
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


def _walk_files(root: Root, path: str, ignores: Ignores | None, hidden: frozenset[Identity]) -> Iterator[FileToRead]:
    """Files first; in a list of its own, as folders may lie deeper than a stack allows."""
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
            except OSError:  # gone, a link by now, not ours to enter, or too deep
                continue
            if inner.identity in hidden:
                inner.close()
            else:
                levels.append(_list_folder(inner, f"{level.path}/{name}", level.ignores, hidden))
    finally:
        for level in levels:
            level.folder.close()


def _list_folder(folder: Root, path: str, around: Ignores | None, hidden: frozenset[Identity]) -> _Level:
    ignores = enter_folder(folder, path, around)
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


def read_content(file: FileToRead, hidden: frozenset[Identity]) -> bytes:
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
