"""Replaces pieces of a text one after the other: all of them or none. Pure.

A piece is found literally, or line by line ignoring white space.
"""

from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import islice
from typing import Annotated

import msgspec

from talaria.core.errors import ToolFailed
from talaria.tools.diffs import replace_surrogates

MAX_TEXT_CHARS = 20 << 20
MAX_COMPARED_LINES = 5_000
MAX_COMPARED_CHARS = 200
_LIKELY = 0.5
_LISTED = 5
_SHOWN_CHARS = 200


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    old: Annotated[str, msgspec.Meta(description="The exact text to replace, with enough context to occur only once.")]
    new: Annotated[str, msgspec.Meta(description="The text to put in its place.")]
    all: Annotated[bool, msgspec.Meta(description="Replace every occurrence.")] = False


class EditResult(msgspec.Struct, frozen=True):
    text: str
    count: int
    """The number of replacements."""
    is_exact: bool
    """False: at least one match ignored white space."""


def apply_edits(text: str, edits: Sequence[Edit], where: str, *, flag: str = "all") -> EditResult:
    """Each edit sees the result of those before it. Raises `ToolFailed`; `flag` is the model's name for `Edit.all`."""
    count, is_exact = 0, True
    for number, edit in enumerate(edits, 1):
        which = f"Edit {number} of {len(edits)}, so nothing was changed: " if len(edits) > 1 else ""
        old, new = (piece if "\r\n" in text else piece.replace("\r\n", "\n") for piece in (edit.old, edit.new))
        found: list[int] = []
        at = text.find(old) if old else -1
        while at >= 0 and len(found) <= _LISTED:
            found.append(at)
            at = text.find(old, at + 1)
        if not found:
            start, end, put = _find_one_similar(text, old, new, f"{which}The text to replace does not occur in {where}")
            text, count, is_exact = text[:start] + put + text[end:], count + 1, False
            continue
        if len(found) > 1 and not edit.all:
            raise ToolFailed(
                f"{which}The text to replace occurs {max(2, text.count(old))} times in {where}; give more of it, or "
                f"set {flag}. {_describe_lines(text, found)}"
            )
        replaced = text.count(old)
        if len(text) + replaced * (len(new) - len(old)) > MAX_TEXT_CHARS:
            raise ToolFailed(f"{which}{where} would become larger than {MAX_TEXT_CHARS >> 20} million characters.")
        text, count = text.replace(old, new), count + replaced
    return EditResult(text, count, is_exact)


def _find_one_similar(text: str, old: str, new: str, failure: str) -> tuple[int, int, str]:
    """Raises `ToolFailed`, with `failure` as its beginning, if there is not exactly one match."""
    matches = _find_similar(text, old, new)
    if len(matches) == 1:
        return matches[0]
    failure += "; read the file again."
    if matches:
        lines = _describe_lines(text, [start for start, _, _ in matches])
        raise ToolFailed(f"{failure} Ignoring white space, it occurs more than once. {lines}")
    if (nearest := _find_nearest_line(text, old)) is not None:
        number, line = nearest
        failure += f" The nearest is line {number}:\n{number}|{replace_surrogates(line)[:_SHOWN_CHARS]}"
    raise ToolFailed(failure)


def _describe_lines(text: str, starts: Sequence[int]) -> str:
    shown = ", ".join(str(text.count("\n", 0, at) + 1) for at in starts[:_LISTED])
    return f"It begins in lines {shown}{', …' if len(starts) > _LISTED else ''}."


def _find_similar(text: str, old: str, new: str) -> list[tuple[int, int, str]]:
    """Whole lines that differ from `old` only in trailing white space; if there are none, in any white space.

    For each match its start, its end, and `new` indented to fit there. It ends with the last character of its last
    line, or after that line's end if `old` has one.
    """
    wanted = old.removesuffix("\n").split("\n")
    if not any(line.strip() for line in wanted):
        return []
    lines = text.split("\n")
    starts: list[int] = []
    for is_loose in (False, True):
        keys, sought = (
            [" ".join(line.split()) if is_loose else line.rstrip() for line in each] for each in (lines, wanted)
        )
        last = len(keys) - len(sought)
        starts = [at for at in range(last + 1) if keys[at] == sought[0] and keys[at : at + len(sought)] == sought]
        if starts:
            break
    matches: list[tuple[int, int, str]] = []
    for at in starts[:10]:
        found = lines[at : at + len(wanted)]
        start = sum(len(line) + 1 for line in lines[:at])
        end = start + sum(len(line) + 1 for line in found) - 1
        put = _reindent(new, wanted, found)
        if all(line.endswith("\r") for line in found if line.strip()):
            put = put.replace("\r\n", "\n").replace("\n", "\r\n")
            end -= len(found[-1]) - len(found[-1].removesuffix("\r"))
        if old.endswith("\n") and end == len(text):
            put = put.removesuffix("\n")
        elif old.endswith("\n"):
            end = text.index("\n", end) + 1
        matches.append((start, end, put))
    return matches


def _reindent(new: str, wanted: list[str], found: list[str]) -> str:
    """Each indent of the wanted lines becomes that of the first line found for it."""
    indents: dict[str, str] = {}
    for ours, theirs in zip(reversed(wanted), reversed(found), strict=True):
        if ours.strip():
            indents[_indent(ours)] = _indent(theirs)
    known = sorted(indents, key=len, reverse=True)
    lines = new.split("\n")
    for number, line in enumerate(lines):
        ours = next((one for one in known if line.startswith(one)), None)
        if ours is not None and line.strip():
            lines[number] = indents[ours] + line[len(ours) :]
    return "\n".join(lines)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _find_nearest_line(text: str, old: str) -> tuple[int, str] | None:
    """The line most like the longest one of `old`, and its number."""
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
