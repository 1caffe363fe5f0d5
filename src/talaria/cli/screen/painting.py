"""Renders markdown, code and diffs for the terminal. rich is loaded when first needed.

Text from elsewhere is made harmless first: control characters in it are shown, never executed. Streamed markdown is
cut into blocks: complete blocks are printed for good, the rest may still change.
"""

import os
import re
from functools import cache
from io import StringIO
from typing import TYPE_CHECKING, cast

import msgspec

from talaria.cli.safe import readable, visible
from talaria.cli.screen import palette
from talaria.cli.screen.width import cut, wrap
from talaria.cli.tool_outcomes import read_steps
from talaria.core.messages import FileChange

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.syntax import SyntaxTheme
    from rich.theme import Theme


_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
TAIL_LINES = 50
TAIL_CHARS = 4_000
LONG_CODE_LINES = 20
"""Code is printed in pieces of this length, so that nobody waits for the end of a long listing."""


class MarkdownBlock(msgspec.Struct, frozen=True):
    text: str
    is_continued: bool = False
    """A piece of code; the next block follows without a gap."""


class BlockSplitter:
    """A block ends after code, and at an empty line if the next line does not belong to it."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        """Complete lines of the current block."""
        self._partial_line = ""
        self._fence = ""
        self._opening = ""
        """The first line of the code block, which is repeated in every piece."""

    def add(self, text: str) -> list[MarkdownBlock]:
        """Returns the blocks that are now complete."""
        *lines, self._partial_line = (self._partial_line + text).split("\n")
        blocks = [block for line in lines for block in self._add_line(line)]
        return [*blocks, *self._end_block()] if not self._fence and self._starts_block(self._partial_line) else blocks

    @property
    def rest(self) -> str:
        return "\n".join((*self._lines, self._partial_line)).strip("\n")

    @property
    def tail(self) -> str:
        """The end of `rest`, at most a screenful, because it is rendered again and again."""
        opening = [self._opening] if self._fence else []
        lines = self._lines[len(opening) :]
        return "\n".join((*opening, *lines[-TAIL_LINES:], self._partial_line[-TAIL_CHARS:])).strip("\n")

    def end(self) -> list[MarkdownBlock]:
        """Returns the rest as a block; the next text starts a new one."""
        rest = self.rest
        self._lines, self._partial_line, self._fence, self._opening = [], "", "", ""
        return [MarkdownBlock(rest)] if rest else []

    def _add_line(self, line: str) -> list[MarkdownBlock]:
        if self._fence:
            self._lines.append(line)
            mark = line.strip()
            if mark and set(mark) == {self._fence[0]} and len(mark) >= len(self._fence):
                self._fence = ""
                return self._end_block()
            if len(self._lines) > LONG_CODE_LINES:
                piece = "\n".join((*self._lines, self._fence))
                self._lines = [self._opening]
                return [MarkdownBlock(piece, is_continued=True)]
            return []
        found = _FENCE.fullmatch(line)
        before = self._end_block() if found or self._starts_block(line) else []
        if found and "`" not in found[2]:
            self._fence, self._opening = found[1], line
        self._lines.append(line)
        return before

    def _starts_block(self, line: str) -> bool:
        """It follows an empty line, and is not indented like the parts of a list."""
        return bool(self._lines) and not self._lines[-1].strip() and bool(line.strip()) and not line[0].isspace()

    def _end_block(self) -> list[MarkdownBlock]:
        block = "\n".join(self._lines).strip("\n")
        self._lines = []
        return [MarkdownBlock(block)] if block else []


_CODE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})(?P<language>[^\n`]*)\n(?P<code>.*?)\n?(?P=fence)?\s*", re.DOTALL)
_STYLE = re.compile(r"\x1b\[[\d;]*m")
DIM, BOLD, STRIKETHROUGH, RED, GREEN, CYAN, YELLOW = "2", "1", "9", "31", "32", "36", "33"
_ROLES = {DIM: "muted", RED: "removed", GREEN: "added", CYAN: "accent", YELLOW: "warning"}
"""The field of `Palette` that replaces each basic colour."""


def has_colour() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _palette() -> palette.Palette:
    return palette.current() if has_colour() else palette.BASIC


def style(text: str, *codes: str) -> str:
    """For text that is our own or already harmless. Without colours, bold and dim remain."""
    if not has_colour():
        kept = tuple(code for code in codes if code in (BOLD, DIM))
    elif (colours := palette.current()).is_fixed:
        kept = tuple(getattr(colours, _ROLES[code]) if code in _ROLES else code for code in codes)
    else:
        kept = codes
    return f"\x1b[{';'.join(kept)}m{text}\x1b[0m" if kept and text else text


def warm_up() -> None:
    """Load everything that rendering needs before it is needed."""
    render_document("A `word`.\n\n```python\nx = 1\n```\n", 40)


def render_document(text: str, columns: int) -> str:
    """Render a whole text."""
    blocks = BlockSplitter()
    painted = ""
    for block in (*blocks.add(text), *blocks.end()):
        painted += render_markdown(block.text, columns) + ("\n" if block.is_continued else "\n\n")
    return painted.rstrip("\n")


def render_markdown(text: str, columns: int) -> str:
    """Render one block."""
    harmless = readable(text)
    code = _CODE.fullmatch(harmless)
    if code is not None:
        from rich.padding import Padding  # noqa: PLC0415
        from rich.syntax import Syntax  # noqa: PLC0415

        language = (code["language"].split() or ["text"])[0]
        theme = _code_theme(_palette())
        shown = Syntax(code["code"], language, theme=theme, word_wrap=True, background_color="default")
        return _render(Padding(shown, (0, 0, 0, 2)), columns)
    from talaria.cli.screen.rich_markdown import LeftMarkdown  # noqa: PLC0415  (loaded after the prompt is drawn)

    code_theme = cast("str", _code_theme(_palette()))  # rich passes it to `Syntax`, which accepts both
    return _render(LeftMarkdown(harmless, code_theme=code_theme, hyperlinks=False), columns)


def render_diff(text: str, columns: int) -> str:
    """Removed lines in red, added ones in green."""
    lines = list[str]()
    for line in readable(text).split("\n"):
        is_header = line.startswith(("---", "+++"))
        code = BOLD if is_header else {"+": GREEN, "-": RED, "@": CYAN}.get(line[:1], DIM)
        lines.append(style(cut(line, columns), code))
    return "\n".join(lines)


def render_file_change(change: FileChange, columns: int, *, max_lines: int | None = 24) -> str:
    """The file, its counts of changed lines, and its hunks with line numbers: at most `max_lines`, or all of them."""
    from talaria.cli.screen.change_view import render_change  # noqa: PLC0415  (loaded when needed)

    painted = render_change(change, columns, _palette(), max_rows=max_lines, has_colour=has_colour())
    more = f"… {painted.omitted:,} more line{'' if painted.omitted == 1 else 's'}{': Ctrl-O' if painted.is_cut else ''}"
    return "\n".join([painted.header, *painted.rows, *([style(more, DIM)] if painted.omitted else [])])


def render_checklist(result: str, columns: int) -> str:
    """The steps in a result of the tool `todo`; empty if there are none."""
    lines: list[str] = []
    for step in read_steps(result):
        codes = [BOLD] if step.is_current else [] if step.is_open else [DIM]
        codes += [STRIKETHROUGH] if step.is_cancelled and has_colour() else []
        first, *others = wrap(visible(step.text), max(8, columns - 2))
        lines += [f"{style(step.mark, GREEN if not step.is_open else CYAN)} {style(first, *codes)}"]
        lines += [f"  {style(other, *codes)}" for other in others]
    return "\n".join(lines)


def _render(what: "RenderableType", columns: int) -> str:
    from rich.console import Console  # noqa: PLC0415

    colours, written = _palette(), StringIO()
    Console(
        file=written,
        theme=_theme(colours, _rich_style(colours.accent) if has_colour() else "bold"),
        width=max(columns, 10),
        force_terminal=True,
        color_system="256" if colours.is_fixed else "standard",
        no_color=not has_colour(),
        legacy_windows=False,
        highlight=False,
        emoji=False,
        markup=False,
    ).print(what, crop=False)  # a link below a table is never broken
    lines = [line.rstrip() for line in written.getvalue().split("\n")]
    full = [place for place, line in enumerate(lines) if _STYLE.sub("", line).strip()]
    return "\n".join(lines[full[0] : full[-1] + 1]) if full else ""


@cache
def _theme(colours: palette.Palette, inline_code: str) -> "Theme":
    """Has no background colours, so that it fits dark and light terminals."""
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

    from talaria.cli.screen.change_view import token_roles  # noqa: PLC0415  (loaded when needed)

    styles = {kind: _rich_style(getattr(colours, role)) for kind, role in token_roles().items()}
    return ANSISyntaxTheme({kind: Style.parse(style) for kind, style in styles.items()})


def _rich_style(code: str) -> str:
    """Convert an SGR code to a rich style."""
    basic = {"": "none", "1": "bold", "2": "dim", "33": "yellow", "35": "magenta", "36": "cyan"}
    return basic[code] if code in basic else f"color({code.removeprefix('38;5;')})"
