"""Markdown, code and diffs as a terminal shows them. rich is loaded when the first of it is painted.

Text from elsewhere is made harmless before it is painted: control signs in it are shown, never carried out.
"""

import os
import re
from functools import cache
from io import StringIO
from typing import TYPE_CHECKING

from talaria.cli.safe import readable
from talaria.cli.screen.blocks import Blocks

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.theme import Theme

_CODE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})(?P<language>[^\n`]*)\n(?P<code>.*?)\n?(?P=fence)?\s*", re.DOTALL)
_STYLE = re.compile(r"\x1b\[[\d;]*m")
DIM, BOLD, RED, GREEN, CYAN, YELLOW = "2", "1", "31", "32", "36", "33"


def has_colour() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, *codes: str) -> str:
    """Ours, or text that is harmless already. Without colours weight is still weight."""
    kept = codes if has_colour() else tuple(code for code in codes if code in (BOLD, DIM))
    return f"\x1b[{';'.join(kept)}m{text}\x1b[0m" if kept and text else text


def warm_up() -> None:
    """Load all that painting needs, before somebody waits for it."""
    document("A `word`.\n\n```python\nx = 1\n```\n", 40)


def document(text: str, columns: int) -> str:
    """All of it at once."""
    blocks = Blocks()
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

    return _painted(LeftMarkdown(harmless, code_theme="ansi_dark", hyperlinks=False), columns)


def _code(code: str, language: list[str], columns: int) -> str:
    from rich.padding import Padding  # noqa: PLC0415
    from rich.syntax import Syntax  # noqa: PLC0415

    shown = Syntax(
        code, language[0] if language else "text", theme="ansi_dark", word_wrap=True, background_color="default"
    )
    return _painted(Padding(shown, (0, 0, 0, 2)), columns)


def diff(text: str, columns: int) -> str:
    """With what went in red and what came in green."""
    from talaria.cli.screen.width import cut  # noqa: PLC0415

    return "\n".join(_diff_line(cut(line, columns)) for line in readable(text).split("\n"))


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
def _theme(inline_code: str) -> "Theme":
    """Without a background of its own: it is read on dark and light terminals."""
    from rich.theme import Theme  # noqa: PLC0415

    return Theme({"markdown.code": inline_code})


def _console(columns: int) -> "Console":
    from rich.console import Console  # noqa: PLC0415

    return Console(
        file=StringIO(),
        theme=_theme("cyan" if has_colour() else "bold"),
        width=max(columns, 10),
        force_terminal=True,
        color_system="standard",
        no_color=not has_colour(),
        legacy_windows=False,
        highlight=False,
        emoji=False,
        markup=False,
    )
