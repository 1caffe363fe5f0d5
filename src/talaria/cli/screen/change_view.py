"""Shows a file change for a person to judge: with line numbers, syntax colours, and the new parts of each line.

Nothing in it can look like something else: control characters are shown as escapes, and a wrapped line stays to the
right of its number.
"""

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from talaria.cli.safe import decidable
from talaria.cli.screen.palette import Palette
from talaria.cli.screen.width import width
from talaria.core.messages import FileChange

if TYPE_CHECKING:
    from pygments.lexer import Lexer

NARROW = 60
"""With fewer columns, each line has one number instead of two."""
TAB = 4
MAX_COLOURED_CHARS = 100_000
"""Longer changes have no syntax colours, because finding them takes too long."""
MAX_WORDS = 400
MIN_SIMILARITY = 0.5
"""Lines with less in common are new lines, not changed ones."""
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_OMITTED = re.compile(r"\[… ([\d,]+) more lines of this diff\]")
_WORDS = re.compile(r"\w+|\s+|[^\w\s]")
_SGR = re.compile(r"\x1b\[[\d;]*m")

Piece = tuple[str, str]
"""Text and its SGR codes."""


class _Row(NamedTuple):
    sign: str
    """As in a diff; `@` between hunks."""
    old: int | None
    new: int | None
    text: str
    words: frozenset[int] = frozenset()
    """Positions of new or replaced characters."""


class RenderedChange(NamedTuple):
    header: str
    rows: list[str]
    omitted: int
    """How many lines of the diff are not shown."""
    is_cut: bool
    """Whether some of those are known, so that details would show them."""


def render_change(
    change: FileChange, columns: int, palette: Palette, *, max_rows: int | None, has_colour: bool
) -> RenderedChange:
    """At most `max_rows`, or all of them. No row is wider than `columns`."""
    rows, left = _parse_diff(change.diff)
    highest = max([number for row in rows for number in (row.old, row.new) if number is not None], default=0)
    digits, is_narrow = len(str(highest)), columns < NARROW
    room = max(8, columns - digits - 2 if is_narrow else columns - 2 * digits - 3)
    tokens = _lex_rows(change.path, rows, palette) if has_colour and len(change.diff) <= MAX_COLOURED_CHARS else {}
    shown, is_cut = list[str](), False
    for at, row in enumerate(rows):
        painted = list(_render_row(row, tokens.get(at), digits, room, palette, is_narrow=is_narrow))
        if max_rows is not None and len(shown) + len(painted) > max_rows:
            left, is_cut = left + sum(one.sign != "@" for one in rows[at:]), True
            break
        shown += painted
    # the header: the path, facts that a diff does not show, and the counts of added and removed lines
    counts = [
        *([f"\x1b[{palette.added}m+{change.added:,}\x1b[0m"] if change.added else []),
        *([f"\x1b[{palette.removed}m\N{MINUS SIGN}{change.removed:,}\x1b[0m"] if change.removed else []),
    ]
    kind = {"created": "new file", "deleted": "deleted", "changed": ""}[change.kind]
    said = [word for word in (kind, decidable(change.note).replace("\n", " ")) if word]
    end = "  ".join([*(f"\x1b[{palette.muted}m{word}\x1b[0m" for word in said), " ".join(counts)]).rstrip()
    path = decidable(change.path).replace("\n", "\\n")
    room = columns - width(_SGR.sub("", end)) - 2
    if width(path) <= room or not end:
        header = f"\x1b[1m{path}\x1b[0m" + (f"  {end}" if end else "")
    else:
        header = "\n".join([*_break_pieces([(path, "1")], max(8, columns)), f"  {end}"])
    if has_colour:
        return RenderedChange(header, shown, left, is_cut)
    return RenderedChange(_strip_colour(header), [_strip_colour(line) for line in shown], left, is_cut)


def strip_codes(line: str) -> str:
    return _SGR.sub("", line).rstrip()


def _strip_colour(line: str) -> str:
    """Keeps dim, and bold, which marks the new parts of a line."""

    def keep_weight(found: re.Match[str]) -> str:
        codes = found[0][2:-1]
        return found[0] if codes in ("0", "1", "2") else "\x1b[1m" if codes.startswith("1;") else ""

    return _SGR.sub(keep_weight, line)


def _parse_diff(diff: str) -> tuple[list[_Row], int]:
    """The lines of a diff with their numbers, and how many lines it omits."""
    rows, left, old, new = list[_Row](), 0, 0, 0
    for line in diff.split("\n") if diff else ():
        sign, text = line[:1], decidable(line[1:].expandtabs(TAB))
        if found := _HUNK.match(line):
            if rows:
                rows.append(_Row("@", None, None, ""))
            old, new = (int(found[at]) for at in (1, 3))
        elif cut := _OMITTED.fullmatch(line):
            left = int(cut[1].replace(",", ""))
        elif sign == "-":
            rows.append(_Row(sign, old, None, text))
            old += 1
        elif sign == "+":
            rows.append(_Row(sign, None, new, text))
            new += 1
        elif sign == "\\":
            rows.append(_Row(sign, None, None, "no newline at the end of the file"))
        else:
            rows.append(_Row(" ", old, new, text))
            old, new = old + 1, new + 1
    return _mark_words(rows), left


def _mark_words(rows: list[_Row]) -> list[_Row]:
    """In lines that were replaced one by one, mark the differences."""
    at = 0
    while at < len(rows):
        gone = _find_run(rows, at, "-")
        here = _find_run(rows, gone[-1] + 1, "+") if gone else []
        for one, other in zip(gone, here, strict=False):
            was, now = _compare_words(rows[one].text, rows[other].text)
            rows[one], rows[other] = rows[one]._replace(words=was), rows[other]._replace(words=now)
        at = (here or gone or [at])[-1] + 1
    return rows


def _find_run(rows: Sequence[_Row], start: int, sign: str) -> list[int]:
    """The positions of consecutive rows with this sign, from `start` on. Notes about a missing newline are skipped."""
    found = list[int]()
    for at in range(start, len(rows)):
        if rows[at].sign == sign:
            found.append(at)
        elif rows[at].sign != "\\" or not (found or sign == "+"):
            break
    return found


def _compare_words(old: str, new: str) -> tuple[frozenset[int], frozenset[int]]:
    before, after = (_WORDS.findall(text) for text in (old, new))
    if max(len(before), len(after)) > MAX_WORDS:
        return frozenset(), frozenset()
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    codes = matcher.get_opcodes()
    same = sum(len("".join(before[i1:i2]).strip()) for kind, i1, i2, _, _ in codes if kind == "equal")
    if same < MIN_SIMILARITY * min(len(old.strip()), len(new.strip())):
        return frozenset(), frozenset()
    changed = [code[1:] for code in codes if code[0] != "equal"]
    return _char_positions(before, [code[:2] for code in changed]), _char_positions(
        after, [code[2:] for code in changed]
    )


def _char_positions(words: Sequence[str], runs: Sequence[tuple[int, int]]) -> frozenset[int]:
    starts = [0]
    for word in words:
        starts.append(starts[-1] + len(word))
    return frozenset(place for first, last in runs for place in range(starts[first], starts[last]))


def _render_row(
    row: _Row, tokens: Sequence[Piece] | None, digits: int, room: int, palette: Palette, *, is_narrow: bool
) -> Iterator[str]:
    if row.sign == "@":
        yield f"\x1b[{palette.muted}m{'⋯':>{digits}}\x1b[0m"
        return
    ink = {"+": palette.added, "-": palette.removed}.get(row.sign, palette.muted)
    numbers = [row.new if row.new is not None else row.old] if is_narrow else [row.old, row.new]
    gutter = " ".join(f"{'' if number is None else number:>{digits}}" for number in numbers)
    plain = {"+": palette.added_text, "-": palette.removed_text, "\\": palette.muted}.get(row.sign, "")
    pieces = [(text, code or plain) for text, code in tokens or [(row.text, plain)]]
    if row.words:
        emphasis = palette.added_word if row.sign == "+" else palette.removed_word
        chars = [(char, code) for text, code in pieces for char in text]
        pieces = [(char, emphasis if at in row.words else code) for at, (char, code) in enumerate(chars)]
    for number, text in enumerate(_break_pieces(pieces, room)):
        start, sign = (gutter, row.sign) if not number else (" " * len(gutter), " ")
        yield f"\x1b[{ink}m{start} {sign}\x1b[0m{text}".rstrip()


def _break_pieces(pieces: Sequence[Piece], room: int) -> Iterator[str]:
    """Break into rows of at most `room` columns, each with its own codes."""
    if len(pieces) == 1 and pieces[0][0].isascii():  # a faster way for text that may be very long
        text, code = pieces[0]
        start, end = (f"\x1b[{code}m", "\x1b[0m") if code else ("", "")
        yield from (f"{start}{text[at : at + room]}{end}" for at in range(0, max(1, len(text)), room))
        return
    row, used, last = list[str](), 0, ""
    for text, code in pieces:
        for char in text:
            wide = width(char)
            if used and used + wide > room:
                yield "".join([*row, "\x1b[0m" if last else ""])
                row, used, last = [], 0, ""
            if code != last:
                row += ["\x1b[0m" if last else "", f"\x1b[{code}m" if code else ""]
                last = code
            row.append(char)
            used += wide
    yield "".join([*row, "\x1b[0m" if last else ""])


def _lex_rows(path: str, rows: Sequence[_Row], palette: Palette) -> dict[int, list[Piece]]:
    """The tokens of each row, by its position. Each side of a hunk is lexed as a whole, because strings may span
    lines."""
    lexer = _lexer(path.rpartition("/")[2])
    if lexer is None:
        return {}
    found = dict[int, list[Piece]]()
    for signs in (" -", " +"):
        side = list[int]()
        for at, row in enumerate((*rows, _Row("@", None, None, ""))):
            if row.sign == "@":
                found.update(_lex_side(lexer, side, rows, palette))
                side = []
            elif row.sign in signs:
                side.append(at)
    return found


def _lex_side(
    lexer: "Lexer", side: Sequence[int], rows: Sequence[_Row], palette: Palette
) -> Iterator[tuple[int, list[Piece]]]:
    text = "\n".join(rows[at].text for at in side)
    lines: list[list[Piece]] = [[]]
    for kind, value in cast("Iterator[tuple[Any, str]]", lexer.get_tokens(text)):
        known = kind
        while known is not None and known not in token_roles():
            known = known.parent
        code = "" if known is None else cast("str", getattr(palette, token_roles()[known]))
        first, *others = value.split("\n")
        lines[-1].append((first, code))
        lines += [[(other, code)] for other in others]
    for at, pieces in zip(side, lines, strict=False):
        if "".join(piece for piece, _ in pieces) == rows[at].text:  # otherwise the lexer changed it
            yield at, pieces


@cache
def token_roles() -> "dict[Any, str]":
    """For each token type, the field of `Palette`; types not listed have no colour."""
    from pygments.token import Comment, Keyword, Literal, Name, Number, Operator, String  # noqa: PLC0415  (lazy)

    return {
        Comment: "comment",
        String.Doc: "comment",
        Keyword: "keyword",
        Operator.Word: "keyword",
        Name.Tag: "keyword",
        Keyword.Constant: "number",
        Number: "number",
        Literal: "number",
        Keyword.Type: "type",
        Name.Class: "type",
        Name.Exception: "type",
        Name.Function: "function",
        Name.Attribute: "function",
        Name.Builtin: "builtin",
        Name.Decorator: "builtin",
        Name.Constant: "builtin",
        String: "string",
    }


@cache
def _lexer(name: str) -> "Lexer | None":
    from pygments.lexers import find_lexer_class_for_filename  # noqa: PLC0415  (lazy)

    found = find_lexer_class_for_filename(name)
    return None if found is None else found(stripnl=False, ensurenl=False)
