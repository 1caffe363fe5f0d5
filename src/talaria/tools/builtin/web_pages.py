"""HTML as clean markdown: its main part if it marks one, without scripts, menus and what people do not see.

Works on tags as they come: linear in time, bounded in its output. Nothing is loaded, images are their descriptions.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urljoin

from talaria.tools.builtin.html_text import BlockPosition, BlockWriter, Inline, Kind, Table, fence
from talaria.tools.builtin.html_tokens import Outline, Part, Tag, tokens

MAX_CHARS = 1_000_000
MAX_TAGS = 500_000
MAX_TITLE_CHARS = 300

_BLOCKS = frozenset(
    ("address", "caption", "dd", "dl", "dt", "figcaption", "hgroup", "label", "legend", "li", "option", "p", "summary")
)
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_CELLS = ("td", "th")
_ROWS = ("tr", "thead", "tbody", "tfoot")
_MARKS: dict[str, Kind] = {
    **dict.fromkeys(("code", "kbd", "samp", "tt"), "code"),
    **dict.fromkeys(("b", "strong"), "strong"),
    "a": "link",
}
_LANGUAGE = re.compile(r"(?:^|\s)(?:lang|language|highlight-source)-([\w+#.-]{1,20})")


@dataclass(frozen=True, slots=True)
class WebPage:
    title: str
    markdown: str
    is_cut: bool


def page(html: str, url: str) -> WebPage:
    """Never raises, whatever the bytes were. Where nothing is left without menus and the like, they are shown."""
    found = _Reader(url, is_lenient=False).read(html)
    return found if found.markdown or found.is_cut else _Reader(url, is_lenient=True).read(html)


class _Reader:
    def __init__(self, url: str, *, is_lenient: bool) -> None:
        self._outline = Outline(is_lenient=is_lenient)
        self._inline = Inline(url)
        self._url = url
        self._blocks = BlockWriter()
        self._title: list[str] = []
        self._is_in_title = False
        self._lists: list[int] = []
        """The next number of each open list; 0 for one without numbers."""
        self._marker = ""
        self._heading = 0
        self._table: Table | None = None
        self._pre: list[str] | None = None
        self._language = ""
        self._room = MAX_CHARS

    def read(self, html: str) -> WebPage:
        tags = 0
        is_cut = False
        for token in tokens(html):
            if isinstance(token, str):
                self._text(token)
                is_cut = self._room < 0
            else:
                tags += 1
                self._tag(token)
                is_cut = tags > MAX_TAGS
            if is_cut:
                break
        self._end(self._outline.close_all())
        self._break()
        title = " ".join("".join(self._title).split())[:MAX_TITLE_CHARS]
        return WebPage(title, self._blocks.text()[:MAX_CHARS], is_cut)

    def _text(self, text: str) -> None:
        if self._is_in_title:
            self._title.append(text)
        elif not self._outline.is_noise:
            self._room -= len(text)
            if self._pre is None:
                self._inline.add(text)
            else:
                self._pre.append(text)

    def _tag(self, tag: Tag) -> None:
        if tag.name == "title":
            self._is_in_title = not tag.is_end and not self._title and not self._outline.is_noise
        elif tag.name == "base" and "href" in tag.attributes:
            self._rebase(tag.attributes["href"])
        elif tag.is_end:
            self._end_tag(tag.name)
        else:
            self._start_tag(tag)

    def _rebase(self, href: str) -> None:
        try:
            self._inline.base = urljoin(self._url, href)
        except ValueError:
            return

    def _start_tag(self, tag: Tag) -> None:
        self._end(self._outline.ended_by(tag))
        part = self._outline.open(tag)
        if self._outline.is_noise:
            self._inline.add(" ")
        elif self._pre is not None:
            self._in_pre(tag)
        elif part is not None:
            self._begin(part, tag)
        elif tag.name in _MARKS:
            self._inline.open(_MARKS[tag.name], tag.attributes.get("href", ""))
        else:
            self._element(tag)

    def _element(self, tag: Tag) -> None:
        name = tag.name
        if name == "br":
            self._inline.new_line()
        elif name == "img":
            self._inline.add(tag.attributes.get("alt", ""))
        elif name in _CELLS or name in _ROWS:
            self._end_cell()
            if self._table is not None:
                self._table.begin(is_cell=name in _CELLS)
        elif name in _BLOCKS or name in _HEADINGS or name == "hr":
            self._break()
            self._heading = _HEADINGS.get(name, 0)
            if name == "li":
                self._marker = self._next_marker()

    def _in_pre(self, tag: Tag) -> None:
        self._language = self._language or _language(tag)
        if tag.name in ("br", "div", "li", "p", "tr") and self._pre:
            self._pre.append("\n")

    def _begin(self, part: Part, tag: Tag) -> None:
        self._break()
        if part == "list":
            start = tag.attributes.get("start", "")
            first = int(start) if start.isdecimal() and len(start) < 7 else 1
            self._lists.append(first if tag.name == "ol" else 0)
        elif part == "pre":
            self._pre = []
            self._language = _language(tag)
        elif part == "table":
            self._end_table()
            self._table = Table()

    def _end_tag(self, name: str) -> None:
        self._end(self._outline.close(name))
        if self._outline.is_noise or self._pre is not None:
            return
        if name in _MARKS:
            self._inline.close(_MARKS[name])
        elif name in _CELLS or name in _ROWS:
            self._end_cell()
        elif name in _BLOCKS or name in _HEADINGS:
            self._break()
            self._heading = 0

    def _end(self, parts: Iterable[Part]) -> None:
        for part in parts:
            if part == "noise":
                continue
            if part == "pre":
                self._end_pre()
            self._break()
            if part == "table":
                self._end_table()
            elif part == "list":
                self._lists.pop()
                self._marker = ""

    def _end_pre(self) -> None:
        code = "".join(self._pre or []).strip("\n").rstrip()
        self._pre = None
        if code:
            ticks = fence(code, 3)
            self._put(f"{ticks}{self._language}\n{code}\n{ticks}")

    def _end_cell(self) -> None:
        if self._table is not None and self._table.is_in_cell:
            self._table.add(self._inline.take())
        else:
            self._break()

    def _end_table(self) -> None:
        self._end_cell()
        table, self._table = self._table, None
        for block in table.blocks() if table else ():
            self._put(block)

    def _break(self) -> None:
        """A paragraph ends here; within a cell that is only a gap."""
        if self._table is not None and self._table.is_in_cell:
            self._inline.add(" ")
            return
        text = self._inline.take()
        if not text:
            return
        if self._heading:
            text = f"{'#' * self._heading} {' '.join(text.split())}"
            self._heading = 0
        self._put(text)

    def _next_marker(self) -> str:
        if not self._lists or not self._lists[-1]:
            return "- "
        self._lists[-1] += 1
        return f"{self._lists[-1] - 1}. "

    def _put(self, text: str) -> None:
        place = BlockPosition(self._outline.rank, len(self._lists), self._outline.quotes)
        self._blocks.put(text, place, self._marker)
        self._marker = ""


def _language(tag: Tag) -> str:
    found = _LANGUAGE.search(tag.attributes.get("class", ""))
    return found[1] if found else ""
