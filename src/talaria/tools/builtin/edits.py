"""Changing a text by replacing pieces of it, one after the other: all of them, or none. Pure.

Where a piece of text stands in another: literally, or line by line without regard to white space. Pure.
"""

from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import islice
from typing import Annotated

import msgspec

from talaria.core.errors import ToolFailed
from talaria.tools.diffs import replace_surrogates

MAX_COMPARED_LINES = 5_000
MAX_COMPARED_CHARS = 200
_LIKELY = 0.5


class Match(msgspec.Struct, frozen=True):
    start: int
    end: int
    new: str
    """What belongs there instead, indented as the text is."""


def find_occurrences(text: str, piece: str) -> Iterator[int]:
    """Where it begins, also where two of them share signs."""
    at = text.find(piece) if piece else -1
    while at >= 0:
        yield at
        at = text.find(piece, at + 1)


def line_number(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def find_similar(text: str, old: str, new: str) -> list[Match]:
    """Whole lines that differ from `old` only behind them; if none do, only in their white space."""
    wanted = old.removesuffix("\n").split("\n")
    if not any(line.strip() for line in wanted):
        return []
    lines = text.split("\n")
    for key in (str.rstrip, _squeeze):
        found = list(islice(_windows(lines, wanted, key), 10))
        if found:
            return [_make_match(text, lines, at, old, new) for at in found]
    return []


def _squeeze(line: str) -> str:
    return " ".join(line.split())


def _windows(lines: list[str], wanted: list[str], key: Callable[[str], str]) -> Iterator[int]:
    keys, sought = [key(line) for line in lines], [key(line) for line in wanted]
    for at in range(len(keys) - len(sought) + 1):
        if keys[at] == sought[0] and keys[at : at + len(sought)] == sought:
            yield at


def _make_match(text: str, lines: list[str], at: int, old: str, new: str) -> Match:
    """From the first sign of its first line to the last of its last, with the line's end if `old` has it, too."""
    wanted = old.removesuffix("\n").split("\n")
    found = lines[at : at + len(wanted)]
    start = sum(len(line) + 1 for line in lines[:at])
    end = start + sum(len(line) + 1 for line in found) - 1
    put = _reindent(new, dict(_indents(wanted, found)))
    if all(line.endswith("\r") for line in found if line.strip()):
        put = put.replace("\r\n", "\n").replace("\n", "\r\n")
        end -= len(found[-1]) - len(found[-1].removesuffix("\r"))
    if not old.endswith("\n"):
        return Match(start, end, put)
    if end == len(text):
        return Match(start, end, put.removesuffix("\n"))
    after = text.index("\n", end) + 1
    return Match(start, after, put)


def _indents(wanted: list[str], found: list[str]) -> Iterator[tuple[str, str]]:
    """Those of `old`, and what they are in the text."""
    for ours, theirs in zip(reversed(wanted), reversed(found), strict=True):
        if ours.strip():
            yield _indent(ours), _indent(theirs)


def _reindent(new: str, indents: dict[str, str]) -> str:
    known = sorted(indents, key=len, reverse=True)

    def line_as_theirs(line: str) -> str:
        ours = next((one for one in known if line.startswith(one)), None)
        return line if ours is None or not line.strip() else indents[ours] + line[len(ours) :]

    return "\n".join(map(line_as_theirs, new.split("\n")))


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def find_nearest_line(text: str, old: str) -> tuple[int, str] | None:
    """The number of the line that is most like the longest of `old`, and the line."""
    sought = max(old.split("\n"), key=lambda line: len(line.strip())).strip()[:MAX_COMPARED_CHARS]
    if not sought:
        return None
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(sought)
    best, found = _LIKELY, None
    for number, line in enumerate(islice(text.split("\n"), MAX_COMPARED_LINES), 1):
        matcher.set_seq1(line.strip()[:MAX_COMPARED_CHARS])
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and (ratio := matcher.ratio()) > best:
            best, found = ratio, (number, line)
    return found


MAX_TEXT_CHARS = 20 << 20
_LISTED = 5
_SHOWN_CHARS = 200


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    old: Annotated[
        str, msgspec.Meta(description="The exact text to replace, with enough around it to occur only once.")
    ]
    new: Annotated[str, msgspec.Meta(description="The text to put in its place.")]
    all: Annotated[bool, msgspec.Meta(description="Replace every occurrence.")] = False


class EditResult(msgspec.Struct, frozen=True):
    text: str
    count: int
    """How many pieces were replaced."""
    is_exact: bool
    """False: some were found only without regard to white space."""


def apply_edits(text: str, edits: Sequence[Edit], where: str, *, flag: str = "all") -> EditResult:
    """Each edit sees what the ones before it left. Raises `ToolFailed`; `flag` is what the model calls `Edit.all`."""
    count, is_exact = 0, True
    for number, edit in enumerate(edits, 1):
        which = f"Edit {number} of {len(edits)}, so nothing was changed: " if len(edits) > 1 else ""
        one = _apply_edit(text, edit, where, flag, which)
        text, count, is_exact = one.text, count + one.count, is_exact and one.is_exact
    return EditResult(text, count, is_exact)


def _apply_edit(text: str, edit: Edit, where: str, flag: str, which: str) -> EditResult:
    old, new = (piece if "\r\n" in text else piece.replace("\r\n", "\n") for piece in (edit.old, edit.new))
    found = list(islice(find_occurrences(text, old), _LISTED + 1))
    if len(found) > 1 and not edit.all:
        count = max(2, text.count(old))
        raise ToolFailed(
            f"{which}The text to replace occurs {count} times in {where}; give more of it, or set {flag}. "
            f"{_describe_lines([line_number(text, at) for at in found])}"
        )
    if not found:
        return _apply_similar(text, old, new, where, which)
    count = text.count(old)
    if len(text) + count * (len(new) - len(old)) > MAX_TEXT_CHARS:
        raise ToolFailed(f"{which}{where} would become larger than {MAX_TEXT_CHARS >> 20} million characters.")
    return EditResult(text.replace(old, new), count, is_exact=True)


def _apply_similar(text: str, old: str, new: str, where: str, which: str) -> EditResult:
    found = find_similar(text, old, new)
    if len(found) > 1:
        lines = _describe_lines([line_number(text, match.start) for match in found])
        raise ToolFailed(
            f"{which}The text to replace does not occur in {where}; read the file again. "
            f"Ignoring white space, it occurs more than once. {lines}"
        )
    if not found:
        raise ToolFailed(
            f"{which}The text to replace does not occur in {where}; read the file again.{_hint(text, old)}"
        )
    match = found[0]
    return EditResult(text[: match.start] + match.new + text[match.end :], 1, is_exact=False)


def _describe_lines(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_LISTED]))
    return f"It begins in lines {shown}{', …' if len(numbers) > _LISTED else ''}."


def _hint(text: str, old: str) -> str:
    found = find_nearest_line(text, old)
    return (
        f" The nearest is line {found[0]}:\n{found[0]}|{replace_surrogates(found[1])[:_SHOWN_CHARS]}" if found else ""
    )
