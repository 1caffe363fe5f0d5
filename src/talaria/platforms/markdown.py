"""Parsing markdown for chats, and what the renderers of several services share."""

from collections.abc import Sequence
from typing import Any

from markdown_it import MarkdownIt


def parser(**options: Any) -> MarkdownIt:
    """CommonMark without HTML, with tables and strikethrough."""
    return MarkdownIt("commonmark", {"html": False, **options}).enable(["table", "strikethrough"])


def align_table(rows: Sequence[Sequence[str]], between: str = " | ", joint: str = "-+-") -> str:
    """A table as lines for a fixed-width font, with a rule below the first row."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=False)]
    lines = [between.join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([lines[0], joint.join("-" * width for width in widths), *lines[1:]])
