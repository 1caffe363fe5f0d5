"""Markdown, code and diffs as a terminal shows them. rich is loaded when the first of it is painted.

Text from elsewhere is made harmless before it is painted: control signs in it are shown, never carried out.

Markdown that comes in pieces, cut into blocks: what is complete is printed for good, the rest may still change.
"""

import os
import re
from functools import cache
from io import StringIO
from typing import TYPE_CHECKING, cast

import msgspec

from talaria.cli.safe import readable, visible
from talaria.cli.screen import palette
from talaria.cli.tool_outcomes import read_steps
from talaria.core.messages import FileChange

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.syntax import SyntaxTheme
    from rich.theme import Theme


_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
TAIL_LINES = 50
TAIL_CHARS = 4_000
LONG_CODE_LINES = 20
"""Code is printed in pieces of so many lines: nobody waits for the end of a long listing."""


class MarkdownBlock(msgspec.Struct, frozen=True):
    text: str
    goes_on: bool = False
    """It is a piece of code, and the next one follows without a gap."""


class BlockSplitter:
    """Ends a block at an empty line that is followed by one which does not belong to it, and behind code."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        """Complete ones of the block that is open."""
        self._begun = ""
        """The line that is being written."""
        self._fence = ""
        self._opening = ""
        """The line that opened the code block, which every piece of it needs."""

    def add(self, text: str) -> list[MarkdownBlock]:
        """The blocks that are complete now."""
        *lines, self._begun = (self._begun + text).split("\n")
        blocks = [block for line in lines for block in self._take(line)]
        return [*blocks, *self._cut()] if not self._fence and self._is_beginning(self._begun) else blocks

    @property
    def rest(self) -> str:
        return "\n".join((*self._lines, self._begun)).strip("\n")

    @property
    def tail(self) -> str:
        """The end of it, as much as a screen may show: that is painted again and again."""
        opening = [self._opening] if self._fence else []
        lines = self._lines[len(opening) :]
        return "\n".join((*opening, *lines[-TAIL_LINES:], self._begun[-TAIL_CHARS:])).strip("\n")

    def end(self) -> list[MarkdownBlock]:
        """The rest as it stands; the next text begins anew."""
        rest = self.rest
        self._lines, self._begun, self._fence, self._opening = [], "", "", ""
        return [MarkdownBlock(rest)] if rest else []

    def _take(self, line: str) -> list[MarkdownBlock]:
        if self._fence:
            return self._take_code(line)
        found = _FENCE.fullmatch(line)
        before = self._cut() if found or self._is_beginning(line) else []
        if found and "`" not in found[2]:
            self._fence, self._opening = found[1], line
        self._lines.append(line)
        return before

    def _is_beginning(self, line: str) -> bool:
        """Of another block: it stands behind an empty line, and is not set in as the parts of a list are."""
        return bool(self._lines) and not self._lines[-1].strip() and bool(line.strip()) and not line[0].isspace()

    def _take_code(self, line: str) -> list[MarkdownBlock]:
        self._lines.append(line)
        mark = line.strip()
        if mark and set(mark) == {self._fence[0]} and len(mark) >= len(self._fence):
            self._fence = ""
            return self._cut()
        if len(self._lines) > LONG_CODE_LINES:
            piece = "\n".join((*self._lines, self._fence))
            self._lines = [self._opening]
            return [MarkdownBlock(piece, goes_on=True)]
        return []

    def _cut(self) -> list[MarkdownBlock]:
        block = "\n".join(self._lines).strip("\n")
        self._lines = []
        return [MarkdownBlock(block)] if block else []


_CODE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})(?P<language>[^\n`]*)\n(?P<code>.*?)\n?(?P=fence)?\s*", re.DOTALL)
_STYLE = re.compile(r"\x1b\[[\d;]*m")
DIM, BOLD, STRUCK, RED, GREEN, CYAN, YELLOW = "2", "1", "9", "31", "32", "36", "33"
_ROLES = {DIM: "muted", RED: "removed", GREEN: "added", CYAN: "accent", YELLOW: "warning"}
"""What the basic colours are used for, by the names of a palette."""


def has_colour() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _palette() -> palette.Palette:
    return palette.current() if has_colour() else palette.CAREFUL


def styled(text: str, *codes: str) -> str:
    """Ours, or text that is harmless already. Without colours weight is still weight."""
    if not has_colour():
        kept = tuple(code for code in codes if code in (BOLD, DIM))
    elif (colours := palette.current()).is_fixed:
        kept = tuple(getattr(colours, _ROLES[code]) if code in _ROLES else code for code in codes)
    else:
        kept = codes
    return f"\x1b[{';'.join(kept)}m{text}\x1b[0m" if kept and text else text


def warm_up() -> None:
    """Load all that painting needs, before somebody waits for it."""
    document("A `word`.\n\n```python\nx = 1\n```\n", 40)


def document(text: str, columns: int) -> str:
    """All of it at once."""
    blocks = BlockSplitter()
    painted = ""
    for block in (*blocks.add(text), *blocks.end()):
        painted += markdown(block.text, columns) + ("\n" if block.goes_on else "\n\n")
    return painted.rstrip("\n")


def markdown(text: str, columns: int) -> str:
    """A block of it."""
    harmless = readable(text)
    code = _CODE.fullmatch(harmless)
    if code is not None:
        return _code(code["code"], code["language"].split(), columns)
    from talaria.cli.screen.rich_markdown import LeftMarkdown  # noqa: PLC0415  (loaded behind the prompt)

    theme = cast("str", _code_theme(_palette()))  # what rich takes is handed on to `Syntax`, which takes both
    return _painted(LeftMarkdown(harmless, code_theme=theme, hyperlinks=False), columns)


def _code(code: str, language: list[str], columns: int) -> str:
    from rich.padding import Padding  # noqa: PLC0415
    from rich.syntax import Syntax  # noqa: PLC0415

    name = language[0] if language else "text"
    shown = Syntax(code, name, theme=_code_theme(_palette()), word_wrap=True, background_color="default")
    return _painted(Padding(shown, (0, 0, 0, 2)), columns)


def diff(text: str, columns: int) -> str:
    """With what went in red and what came in green."""
    from talaria.cli.screen.width import cut  # noqa: PLC0415

    return "\n".join(_diff_line(cut(line, columns)) for line in readable(text).split("\n"))


def file_change(change: FileChange, columns: int, *, most_lines: int | None = 24) -> str:
    """Which file, how many lines came and went, and its hunks with line numbers. `most_lines` None: all of them."""
    from talaria.cli.screen.change_view import paint_change  # noqa: PLC0415  (when the first change is shown)

    painted = paint_change(change, columns, _palette(), most_rows=most_lines, has_colour=has_colour())
    more = f"… {painted.left:,} more line{'' if painted.left == 1 else 's'}{': Ctrl-O' if painted.is_cut else ''}"
    return "\n".join([painted.header, *painted.rows, *([styled(more, DIM)] if painted.left else [])])


def checklist(result: str, columns: int) -> str:
    """The steps that the tool `todo` tells of. Empty: there are none."""
    from talaria.cli.screen.width import wrapped  # noqa: PLC0415

    lines: list[str] = []
    for step in read_steps(result):
        codes = [BOLD] if step.is_current else [] if step.is_open else [DIM]
        codes += [STRUCK] if step.is_cancelled and has_colour() else []
        first, *others = wrapped(visible(step.text), max(8, columns - 2))
        lines += [f"{styled(step.mark, GREEN if not step.is_open else CYAN)} {styled(first, *codes)}"]
        lines += [f"  {styled(other, *codes)}" for other in others]
    return "\n".join(lines)


def _diff_line(line: str) -> str:
    if line.startswith(("---", "+++")):
        return styled(line, BOLD)
    match line[:1]:
        case "+":
            return styled(line, GREEN)
        case "-":
            return styled(line, RED)
        case "@":
            return styled(line, CYAN)
        case _:
            return styled(line, DIM)


def _painted(what: "RenderableType", columns: int) -> str:
    console = _console(columns)
    console.print(what, crop=False)  # a link below a table is as long as it is
    written = console.file
    assert isinstance(written, StringIO)  # noqa: S101  (as it was made)
    lines = [line.rstrip() for line in written.getvalue().split("\n")]
    full = [place for place, line in enumerate(lines) if _STYLE.sub("", line).strip()]
    return "\n".join(lines[full[0] : full[-1] + 1]) if full else ""


@cache
def _theme(colours: palette.Palette, inline_code: str) -> "Theme":
    """Without a background of its own: it is read on dark and light terminals."""
    from rich.theme import Theme  # noqa: PLC0415

    accent, muted = _rich_style(colours.accent), _rich_style(colours.muted)
    styles = {
        "markdown.code": inline_code,
        "markdown.item.number": "bold",
        "markdown.link": accent,
        "markdown.link_url": f"underline {accent}",
        "markdown.block_quote": muted,
        "markdown.table.border": muted,
        "markdown.table.header": "bold",
        **{f"markdown.h{level}": "bold" for level in (2, 3, 4)},
    }
    return Theme(styles)


@cache
def _code_theme(colours: palette.Palette) -> "SyntaxTheme":
    from rich.style import Style  # noqa: PLC0415
    from rich.syntax import ANSISyntaxTheme  # noqa: PLC0415

    from talaria.cli.screen.change_view import roles  # noqa: PLC0415

    styles = {kind: _rich_style(getattr(colours, role)) for kind, role in roles().items()}
    return ANSISyntaxTheme({kind: Style.parse(style) for kind, style in styles.items()})


def _rich_style(code: str) -> str:
    """SGR codes in the words of rich."""
    basic = {"": "none", "1": "bold", "2": "dim", "33": "yellow", "35": "magenta", "36": "cyan"}
    return basic[code] if code in basic else f"color({code.removeprefix('38;5;')})"


def _console(columns: int) -> "Console":
    from rich.console import Console  # noqa: PLC0415

    colours = _palette()
    return Console(
        file=StringIO(),
        theme=_theme(colours, _rich_style(colours.accent) if has_colour() else "bold"),
        width=max(columns, 10),
        force_terminal=True,
        color_system="256" if colours.is_fixed else "standard",
        no_color=not has_colour(),
        legacy_windows=False,
        highlight=False,
        emoji=False,
        markup=False,
    )
