"""The markdown that is written to chats, and what renderers of several services make of it alike."""

from collections.abc import Sequence
from typing import Any

from markdown_it import MarkdownIt


def parser(**options: Any) -> MarkdownIt:
    """CommonMark without HTML, with tables and strikethrough."""
    return MarkdownIt("commonmark", {"html": False, **options}).enable(["table", "strikethrough"])


def align_table(rows: Sequence[Sequence[str]], between: str = " | ", joint: str = "-+-") -> str:
    """A table as lines of a fixed-width font; a rule is below its first row."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=False)]
    lines = [between.join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([lines[0], joint.join("-" * width for width in widths), *lines[1:]])
