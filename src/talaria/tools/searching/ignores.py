"""What `.gitignore` files leave out. The last pattern that fits decides, those of deeper folders after all others."""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from talaria.core.trees import Root

FILE = ".gitignore"
MAX_BYTES = 1 << 20

Above = tuple[str, str]
"""The path of a folder, and what its `.gitignore` says."""


@dataclass(frozen=True, slots=True)
class Rule:
    fits: re.Pattern[str]
    """The path below the folder of the file that has the rule."""
    for_folders: bool
    is_exception: bool


@dataclass(frozen=True, slots=True)
class Ignores:
    """Of a folder: its own rules, and those of the folders around it."""

    folder: str
    rules: tuple[Rule, ...]
    around: "Ignores | None" = None

    def leaves_out(self, path: str, *, is_folder: bool) -> bool:
        below = path[len(self.folder) :].lstrip("/")
        for rule in reversed(self.rules):
            if (is_folder or not rule.for_folders) and rule.fits.fullmatch(below):
                return not rule.is_exception
        return self.around is not None and self.around.leaves_out(path, is_folder=is_folder)


def inside(folder: Root, path: str, around: Ignores | None) -> Ignores | None:
    """With what the folder itself says, which is called `path`."""
    return _with_rules(path, read(folder), around)


def _with_rules(path: str, text: str, around: Ignores | None) -> Ignores | None:
    rules = tuple(parsed(text.splitlines()))
    return Ignores(path, rules, around) if rules else around


def read(folder: Root) -> str:
    """What the `.gitignore` of a folder says; empty, if there is none."""
    try:
        return folder.read(FILE, MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def texts_above(folder: Root, path: str) -> list[Above]:
    """What the folders around say, up to that of the repository; the outermost first."""
    found: list[Above] = []
    here: Root | None = Root(os.dup(folder.descriptor))
    while here is not None:
        with here:
            if here.find(".git") is not None:
                break
            around, path = here.outer(), path.rpartition("/")[0]
        here = around
        if here is not None and (text := read(here)):
            found.append((path, text))
    return found[::-1]


def above(texts: Iterable[Above]) -> Ignores | None:
    found = None
    for path, text in texts:
        found = _with_rules(path, text, found)
    return found


def parsed(lines: Iterable[str]) -> Iterator[Rule]:
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
        yield Rule(fits, text.endswith("/"), is_exception)


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
