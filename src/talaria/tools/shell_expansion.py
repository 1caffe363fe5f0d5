"""What the words of a command stand for: options, values of variables, and patterns for file names.

Commands are not run, so a variable may have several possible values, or an unknown one.
"""

import fnmatch
import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

from talaria.tools.shell_commands import Part, Word, literal, render

UNKNOWN = "\0"
"""In a pattern: what is only known at run time."""
_ESCAPED = re.compile(r"\[([*?[])\]")


def escape(text: str) -> str:
    """A pattern that matches exactly this text."""
    return re.sub(r"([*?[])", r"[\1]", text)


def unescape(part: str) -> str:
    return _ESCAPED.sub(r"\1", part)


def is_plain(part: str) -> bool:
    """Whether a pattern matches one name only."""
    return UNKNOWN not in part and not re.search(r"[*?[]", _ESCAPED.sub("", part))


def name_matches(name: str, part: str) -> bool:
    return fnmatch.fnmatchcase(name, part.replace(UNKNOWN, "*").replace("[^", "[!"))


MAX_WORDS = 5_000
MAX_CHARS = 200_000
"""Of all values of one word: variables can double each other endlessly."""
_TEMPORARY_PATH = "/tmp/talaria-unknown"  # noqa: S108
"""What `mktemp` prints: a path that is in no project."""
_ANYTHING: Word = (Part("unknown", "…"),)


def _size(word: Word) -> int:
    return 1 + sum(len(part.text) + 1 for part in word)


def _temporary(part: Part) -> Part:
    return Part("text", _TEMPORARY_PATH) if part == ("unknown", "$(mktemp)") else part


def _split(value: Word) -> list[Word]:
    """What a variable becomes outside quotes."""
    text = literal(value)
    if text is None or not re.search(r"[\s*?]", text):
        return [value]
    pieces = (re.split(r"([*?])", piece) for piece in text.split())
    return [tuple(Part("glob" if one in ("*", "?") else "text", one) for one in piece if one) for piece in pieces]


def _normalize(pattern: str) -> tuple[str, ...] | None:
    done: list[str] = []
    for part in pattern.split("/"):
        if part == "..":
            if done and not is_plain(done[-1]):
                return None
            done = done[:-1]
        elif part not in ("", "."):
            done.append(part)
    return tuple(done)


def as_path(pattern: tuple[str, ...] | None) -> str | None:
    """None: it stands for several paths, or for an unknown one."""
    if pattern is None or not all(map(is_plain, pattern)):
        return None
    return f"/{'/'.join(map(unescape, pattern))}"


class ExpansionSnapshot(NamedTuple):
    """State that is restored when a subshell ends."""

    places: tuple[str | None, ...]
    variables: dict[str, tuple[Word, ...]]


class ExpansionState:
    """The state of a shell after the commands that were read so far."""

    def __init__(self, place: str, home: str, unknown: dict[str, None]) -> None:
        """`unknown` collects what is only known at run time."""
        self.home = home
        self.places: tuple[str | None, ...] = (place,)
        """Where the next command may run; None: unknown."""
        self.variables: dict[str, tuple[Word, ...]] = {}
        self._unknown = unknown

    def save(self) -> ExpansionSnapshot:
        return ExpansionSnapshot(self.places, dict(self.variables))

    def restore(self, snapshot: ExpansionSnapshot) -> None:
        self.places, self.variables = snapshot

    def expand(self, words: Sequence[Word]) -> list[Word]:
        """Replaces variables by their values."""
        done: list[Word] = []
        for word in words:
            done += self.substitute(word)
            if len(done) > MAX_WORDS:
                self._unknown[f"a command of more than {MAX_WORDS:,} words"] = None
                break
        return done[:MAX_WORDS]

    def substitute(self, word: Word) -> list[Word]:
        """Returns several words if a variable in it may have several values."""
        if all(part.kind not in ("variable", "unquoted") for part in word):
            return [tuple(_temporary(part) for part in word)]
        made: list[Word] = [()]
        for part in word:
            values: Sequence[Word] = ((_temporary(part),),)
            if part.kind in ("variable", "unquoted"):
                name = part.text
                if name in self.variables:
                    values = self.variables[name] or ((),)
                else:
                    known = {"HOME": self.home, "TMPDIR": "/tmp", "PWD": self.places[0]}.get(name)  # noqa: S108
                    values = ((Part("text", known) if known is not None else Part("unknown", f"${name}"),),)
                if part.kind == "unquoted" and len(word) == 1:
                    values = [piece for value in values for piece in _split(value)]
            size = sum(map(_size, made)) * len(values) + sum(map(_size, values)) * len(made)
            if size > MAX_CHARS:
                return [_ANYTHING]
            made = [(*one, *value) for one in made for value in values]
        return made

    def to_patterns(self, word: Word) -> list[tuple[str, ...] | None]:
        """As absolute paths in parts, one for each place. None: it may be anywhere."""
        text = "".join(
            escape(part.text) if part.kind == "text" else part.text if part.kind == "glob" else UNKNOWN for part in word
        )
        if not text:
            return []
        if text.startswith("/"):
            return [_normalize(text)]
        if text.startswith(UNKNOWN):
            return [None]
        return [None if place is None else _normalize(f"{escape(place)}/{text}") for place in self.places]


class Options(NamedTuple):
    flags: list[str]
    operands: list[Word]

    def has(self, short: str, *long: str) -> bool:
        letters = "".join(one[1:] for one in self.flags if not one.startswith("--"))
        return any(char in letters for char in short) or any(
            one == name or one.startswith(f"{name}=") for one in self.flags for name in long
        )


def program_name(words: Sequence[Word]) -> str:
    text = literal(words[0]) if words else None
    return (text or "").rpartition("/")[2]


def parse_options(words: Sequence[Word], with_values: Collection[str] = ()) -> Options:
    """`with_values`: options whose value is the next word."""
    given: list[str] = []
    operands: list[Word] = []
    rest = iter(words[1:])
    for word in rest:
        text = render(word)
        if text == "--":
            operands += rest
        elif len(text) > 1 and text.startswith("-") and word[0].kind == "text":
            given.append(text)
            if text in with_values:
                next(rest, None)
        else:
            operands.append(word)
    return Options(given, operands)


def find_target_directory(words: Sequence[Word]) -> Word:
    """The value of `-t` of mv, cp and the like; empty: not given."""
    for at, word in enumerate(words[:-1]):
        if literal(word) in ("-t", "--target-directory"):
            return words[at + 1]
        if word and word[0].kind == "text" and word[0].text.startswith("--target-directory="):
            return (Part("text", word[0].text.partition("=")[2]), *word[1:])
    return ()


class FindTests(NamedTuple):
    names: list[str]
    paths: list[str]
    kinds: str
    max_depth: int
    is_any: bool
    """Matching one of them is enough."""


def parse_find_tests(words: Sequence[str]) -> FindTests:
    """The tests of `find`, as far as they are known; what `!` excludes is assumed to match."""
    names: list[str] = []
    paths: list[str] = []
    kinds, max_depth = "", 1 << 20
    for at, (option, value) in enumerate(pairwise(words)):
        is_excluded = at > 0 and words[at - 1] in ("!", "-not")
        if option in ("!", "-not") and value == "(":
            return FindTests([], [], "", 1 << 20, is_any=True)
        if is_excluded:
            continue
        if option in ("-name", "-iname"):
            names.append(value)
        elif option in ("-path", "-wholename", "-ipath"):
            paths.append(value)
        elif option == "-type":
            kinds += value
        elif option == "-maxdepth" and value.isdecimal():
            max_depth = int(value)
    return FindTests(names, paths, kinds, max_depth, is_any=any(one in ("-o", "-or", "-prune") for one in words))
