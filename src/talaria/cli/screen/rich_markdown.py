"""rich's markdown for a terminal: plain headings on the left, and tables that lose nothing.

A link that does not fit its cell is written in full below the table, so that it can be opened and copied.
"""

import re
from typing import ClassVar

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown, MarkdownElement, TableElement
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_PARENTHESIZED = r"\([^\s()<>]*\)"
_ADDRESS = rf"\b[a-zA-Z][a-zA-Z\d+.-]*://(?:[^\s()<>]|{_PARENTHESIZED})*(?:[^\s()<>.,;:!?'\"\]]|{_PARENTHESIZED})"
_LINK = re.compile(rf"(?P<bare>{_ADDRESS})(?: \((?P=bare)\))?|\((?P<target>{_ADDRESS})\)")
"""The forms in which rich writes links: an address alone, as its own text, or after a text."""
_AROUND_CELL = 3
"""Columns for padding and rules."""


class _LeftHeading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        self.text.stylize("bold underline" if self.tag == "h1" else "bold")
        yield self.text


class _WholeTable(TableElement):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        heads = [cell.content for cell in self.header.row.cells] if self.header and self.header.row else []
        rows = [[cell.content for cell in row.cells] for row in self.body.rows] if self.body else []
        links: list[str] = []
        table = _table(heads, rows)
        if Measurement.get(console, options.update(max_width=_ENDLESS), table).maximum > options.max_width:
            room = options.max_width // max(1, len(heads)) - _AROUND_CELL  # no column is made narrower than that
            table = _table(heads, [[_with_notes(cell, room, links) for cell in row] for row in rows])
        yield table
        for number, link in enumerate(links, 1):
            yield Text(f"[{number}] {link}", no_wrap=True, overflow="ignore")


_ENDLESS = 1_000_000


def _table(heads: list[Text], rows: list[list[Text]]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, style="markdown.table.border", collapse_padding=True)
    for head in heads:
        heading = head.copy()
        heading.stylize("markdown.table.header")
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _with_notes(cell: Text, room: int, links: list[str]) -> Text:
    """Replaces every link wider than `room` with a number, and adds it to `links`."""
    shown, last = Text(justify=cell.justify), 0
    for found in _LINK.finditer(cell.plain):
        link = found["bare"] or found["target"]
        if cell_len(link) <= room:
            continue
        if link not in links:
            links.append(link)
        shown.append_text(cell[last : found.start()]).append(f"[{links.index(link) + 1}]")
        last = found.end()
    return shown.append_text(cell[last:]) if last else cell


class LeftMarkdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "table_open": _WholeTable,
    }
