"""Changing a text by replacing pieces of it, one after the other: all of them, or none. Pure."""

from collections.abc import Sequence
from itertools import islice
from typing import Annotated

import msgspec

from talaria.core.errors import ToolFailed
from talaria.tools.builtin.matching import line_of, nearest, occurrences, similar
from talaria.tools.diffs import visible

MAX_TEXT_CHARS = 20 << 20
_LISTED = 5
_SHOWN_CHARS = 200


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    old: Annotated[
        str, msgspec.Meta(description="The exact text to replace, with enough around it to occur only once.")
    ]
    new: Annotated[str, msgspec.Meta(description="What stands there afterwards.")]
    all: Annotated[bool, msgspec.Meta(description="Replace every occurrence.")] = False


class Edited(msgspec.Struct, frozen=True):
    text: str
    count: int
    """How many pieces were replaced."""
    is_exact: bool
    """False: some were found only without regard to white space."""


def edited(text: str, edits: Sequence[Edit], where: str, *, flag: str = "all") -> Edited:
    """Each edit sees what the ones before it left. Raises `ToolFailed`; `flag` is what the model calls `Edit.all`."""
    count, is_exact = 0, True
    for number, edit in enumerate(edits, 1):
        which = f"Edit {number} of {len(edits)}, so nothing was changed: " if len(edits) > 1 else ""
        one = _edited(text, edit, where, flag, which)
        text, count, is_exact = one.text, count + one.count, is_exact and one.is_exact
    return Edited(text, count, is_exact)


def _edited(text: str, edit: Edit, where: str, flag: str, which: str) -> Edited:
    old, new = (piece if "\r\n" in text else piece.replace("\r\n", "\n") for piece in (edit.old, edit.new))
    found = list(islice(occurrences(text, old), _LISTED + 1))
    if len(found) > 1 and not edit.all:
        count = max(2, text.count(old))
        raise ToolFailed(
            f"{which}The text to replace occurs {count} times in {where}; give more of it, or set {flag}. "
            f"{_lines([line_of(text, at) for at in found])}"
        )
    if not found:
        return _edited_alike(text, old, new, where, which)
    count = text.count(old)
    if len(text) + count * (len(new) - len(old)) > MAX_TEXT_CHARS:
        raise ToolFailed(f"{which}{where} would become larger than {MAX_TEXT_CHARS >> 20} million characters.")
    return Edited(text.replace(old, new), count, is_exact=True)


def _edited_alike(text: str, old: str, new: str, where: str, which: str) -> Edited:
    found = similar(text, old, new)
    if len(found) > 1:
        lines = _lines([line_of(text, match.start) for match in found])
        raise ToolFailed(
            f"{which}The text to replace does not occur in {where}; read the file again. "
            f"Apart from white space it occurs more than once. {lines}"
        )
    if not found:
        raise ToolFailed(
            f"{which}The text to replace does not occur in {where}; read the file again.{_hint(text, old)}"
        )
    match = found[0]
    return Edited(text[: match.start] + match.new + text[match.end :], 1, is_exact=False)


def _lines(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_LISTED]))
    return f"It begins in lines {shown}{', …' if len(numbers) > _LISTED else ''}."


def _hint(text: str, old: str) -> str:
    found = nearest(text, old)
    return f" The nearest is line {found[0]}:\n{found[0]}|{visible(found[1])[:_SHOWN_CHARS]}" if found else ""
