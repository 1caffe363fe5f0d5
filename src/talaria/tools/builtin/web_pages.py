"""Converts HTML to clean markdown: only the main part if one is marked, without scripts, menus and invisible text.

Works on the tags in order, in linear time and with bounded output. Loads nothing; images become their descriptions.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from urllib.parse import quote, urljoin

from talaria.tools.builtin.html_tokens import Outline, PagePart, Tag, tokenize

MAX_INDENTS = 8
MAX_QUOTES = 3
MAIN_CHARS = 200
"""A main part with less text is not taken for one."""


class _Block(NamedTuple):
    """A paragraph, as markdown."""

    text: str
    rank: int
    """2 in the main part, 1 in an article, 0 elsewhere."""
    is_item: bool


def _join_blocks(blocks: list[_Block]) -> str:
    """The main part if there is one. List items follow each other without a blank line."""
    for rank in (2, 1):
        part = [block for block in blocks if block.rank >= rank]
        if sum(len(block.text) for block in part) >= MAIN_CHARS:
            blocks = part
            break
    pieces: list[str] = []
    was_item = False
    for block in blocks:
        pieces += ("\n" if was_item and block.is_item else "\n\n", block.text)
        was_item = block.is_item
    return "".join(pieces[1:])


MAX_LINK_CHARS = 2_000
_WHITE = re.compile(r"\s+")
_SPACES = re.compile(r" {2,}")
_OPENS_TAG = re.compile(r"<(?=[a-zA-Z/!?]|\Z)")
_BAD_IN_LINK = re.compile(r"[\s()<>\x00-\x1f]")
_TICKS = re.compile(r"`+")

InlineKind = Literal["link", "strong", "code"]


@dataclass(slots=True)
class _Frame:
    kind: InlineKind | None = None
    url: str = ""
    pieces: list[str] = field(default_factory=list[str])


class InlineWriter:
    """At most one frame of each kind is open, which bounds the nesting."""

    def __init__(self, base: str) -> None:
        self.base = base
        self._frames = [_Frame()]
        self._is_blank = True

    @property
    def is_code(self) -> bool:
        return self._frames[-1].kind == "code"

    def add(self, text: str) -> None:
        """Text that looks like a tag is escaped, so that it is not one in the markdown."""
        white = _WHITE.sub(" ", text)
        self._is_blank = self._is_blank and white in ("", " ")
        self._frames[-1].pieces.append(white if self.is_code else _OPENS_TAG.sub("&lt;", white))

    def add_line_break(self) -> None:
        self._frames[-1].pieces.append("\n")

    def open(self, kind: InlineKind, url: str = "") -> None:
        if kind == "link":
            self.close("link")
        if not self.is_code and not self._is_open(kind):
            self._frames.append(_Frame(kind, url))

    def close(self, kind: InlineKind) -> None:
        while self._is_open(kind):
            frame = self._frames.pop()
            self._frames[-1].pieces.append(self._wrap(frame))
            if frame.kind == kind:
                return

    def take(self) -> str:
        """Ends the paragraph and returns it. A frame still without text stays open: a link may hold a whole heading."""
        if self._is_blank:
            for frame in self._frames:
                frame.pieces.clear()
            return ""
        self._is_blank = True
        waiting = [frame for frame in self._frames[1:] if not _join_pieces(frame).strip()]
        while len(self._frames) > 1:
            frame = self._frames.pop()
            self._frames[-1].pieces.append(self._wrap(frame))
        text = _join_pieces(self._frames[0])
        self._frames = [_Frame(), *(_Frame(frame.kind, frame.url) for frame in waiting)]
        lines = (_SPACES.sub(" ", line).strip() for line in text.split("\n"))
        return "\n".join(line for line in lines if line)

    def _is_open(self, kind: InlineKind) -> bool:
        return any(frame.kind == kind for frame in self._frames)

    def _wrap(self, frame: _Frame) -> str:
        text = _join_pieces(frame)
        words = " ".join(text.split())
        if not words:
            return text
        before, after = " " * text[0].isspace(), " " * text[-1].isspace()
        match frame.kind:
            case "link":
                url = self._resolve(frame.url)
                words = f"[{words}]({url})" if url else words
            case "strong":
                words = f"**{words}**"
            case "code":
                ticks = _fence(words, 1)
                words = f"{ticks}{words}{ticks}" if ticks == "`" else f"{ticks} {words} {ticks}"
            case None:
                pass
        return f"{before}{words}{after}"

    def _resolve(self, url: str) -> str:
        if not url or url.startswith("#") or len(url) > MAX_LINK_CHARS:
            return ""
        try:
            joined = urljoin(self.base, url)
        except ValueError:
            return ""
        is_web = joined.startswith(("http://", "https://", "mailto:"))
        return _BAD_IN_LINK.sub(lambda found: quote(found[0], safe="", errors="replace"), joined) if is_web else ""


def _join_pieces(frame: _Frame) -> str:
    if len(frame.pieces) > 1:
        frame.pieces = ["".join(frame.pieces)]
    return frame.pieces[0] if frame.pieces else ""


def _fence(text: str, least: int) -> str:
    """More backticks than occur in a row anywhere in `text`."""
    longest = max((len(run[0]) for run in _TICKS.finditer(text)), default=0)
    return "`" * max(least, min(longest, 40) + 1)


MAX_CELL_CHARS = 500


@dataclass(slots=True)
class Table:
    rows: list[list[str]] = field(default_factory=list[list[str]])
    is_in_cell: bool = False

    def begin(self, *, is_cell: bool) -> None:
        """Begins a cell, or else a row."""
        if not is_cell or not self.rows:
            self.rows.append([])
        self.is_in_cell = is_cell

    def add(self, cell: str) -> None:
        """Ends the cell."""
        self.rows[-1].append(" ".join(cell.split()))
        self.is_in_cell = False

    def blocks(self) -> list[str]:
        """Rows keep their own length: padding them could square the size of the input."""
        rows = [row for row in self.rows if any(row)]
        has_columns = sum(len(row) > 1 for row in rows) > 1
        if not has_columns or max(len(cell) for row in rows for cell in row) > MAX_CELL_CHARS:
            return [" ".join(filter(None, row)) for row in rows]
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        lines.insert(1, "|" + "---|" * len(rows[0]))
        return ["\n".join(lines)]


MAX_CHARS = 1_000_000
MAX_TAGS = 500_000
MAX_TITLE_CHARS = 300

_BLOCKS = frozenset(
    ("address", "caption", "dd", "dl", "dt", "figcaption", "hgroup", "label", "legend", "li", "option", "p", "summary")
)
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_CELLS = ("td", "th")
_ROWS = ("tr", "thead", "tbody", "tfoot")
_MARKS: dict[str, InlineKind] = {
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


def convert_page(html: str, url: str) -> WebPage:
    """Never raises. If nothing is left without menus and the like, they are included."""
    found = _Reader(url, is_lenient=False).read(html)
    return found if found.markdown or found.is_cut else _Reader(url, is_lenient=True).read(html)


class _Reader:
    def __init__(self, url: str, *, is_lenient: bool) -> None:
        self._outline = Outline(is_lenient=is_lenient)
        self._inline = InlineWriter(url)
        self._url = url
        self._blocks: list[_Block] = []
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
        for token in tokenize(html):
            if isinstance(token, str):
                if self._is_in_title:
                    self._title.append(token)
                elif not self._outline.is_noise:
                    self._room -= len(token)
                    if self._pre is None:
                        self._inline.add(token)
                    else:
                        self._pre.append(token)
                is_cut = self._room < 0
            else:
                tags += 1
                self._read_tag(token)
                is_cut = tags > MAX_TAGS
            if is_cut:
                break
        self._close(self._outline.close_all())
        self._break()
        title = " ".join("".join(self._title).split())[:MAX_TITLE_CHARS]
        return WebPage(title, _join_blocks(self._blocks)[:MAX_CHARS], is_cut)

    def _read_tag(self, tag: Tag) -> None:
        name = tag.name
        if name == "title":
            self._is_in_title = not tag.is_end and not self._title and not self._outline.is_noise
        elif name == "base" and "href" in tag.attributes:
            with suppress(ValueError):
                self._inline.base = urljoin(self._url, tag.attributes["href"])
        elif not tag.is_end:
            self._read_start(tag)
        else:
            self._close(self._outline.close(name))
            if self._outline.is_noise or self._pre is not None:
                return
            if name in _MARKS:
                self._inline.close(_MARKS[name])
            elif name in _CELLS or name in _ROWS:
                self._end_cell()
            elif name in _BLOCKS or name in _HEADINGS:
                self._break()
                self._heading = 0

    def _read_start(self, tag: Tag) -> None:
        name = tag.name
        self._close(self._outline.close_implied(tag))
        part = self._outline.open(tag)
        if self._outline.is_noise:
            self._inline.add(" ")
        elif self._pre is not None:
            self._language = self._language or _language(tag)
            if name in ("br", "div", "li", "p", "tr") and self._pre:
                self._pre.append("\n")
        elif part is not None:
            self._open(part, tag)
        elif name in _MARKS:
            self._inline.open(_MARKS[name], tag.attributes.get("href", ""))
        elif name == "br":
            self._inline.add_line_break()
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
                self._marker = "- "
                if self._lists and self._lists[-1]:
                    self._marker = f"{self._lists[-1]}. "
                    self._lists[-1] += 1

    def _open(self, part: PagePart, tag: Tag) -> None:
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

    def _close(self, parts: Iterable[PagePart]) -> None:
        for part in parts:
            if part == "noise":
                continue
            if part == "pre":
                code = "".join(self._pre or []).strip("\n").rstrip()
                self._pre = None
                if code:
                    ticks = _fence(code, 3)
                    self._put(f"{ticks}{self._language}\n{code}\n{ticks}")
            self._break()
            if part == "table":
                self._end_table()
            elif part == "list":
                self._lists.pop()
                self._marker = ""

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
        """Ends the paragraph; inside a cell it only leaves a space."""
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

    def _put(self, text: str) -> None:
        depth = min(len(self._lists), MAX_INDENTS)
        prefix = "> " * min(self._outline.quotes, MAX_QUOTES)
        first = f"{prefix}{'  ' * (depth - bool(self._marker))}{self._marker}"
        markdown = first + text.replace("\n", f"\n{prefix}{'  ' * depth}")
        self._blocks.append(_Block(markdown, self._outline.rank, bool(self._lists)))
        self._marker = ""


def _language(tag: Tag) -> str:
    found = _LANGUAGE.search(tag.attributes.get("class", ""))
    return found[1] if found else ""
