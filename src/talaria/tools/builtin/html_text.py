"""The paragraphs of a page as they pile up, and which of them are the page.

The words of one paragraph as markdown: links, strong words and code, however their tags are mixed up.
A table's cells as they come, and what they become: a table, or paragraphs where it only served to lay things out.
"""

import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urljoin

MAX_INDENTS = 8
MAX_QUOTES = 3
MAIN_CHARS = 200
"""A main part with less text than this is not believed."""


@dataclass(frozen=True, slots=True)
class BlockPosition:
    """Where a paragraph stands."""

    rank: int
    """2 in the main part, 1 in an article, 0 elsewhere."""
    depth: int
    """Of lists."""
    quotes: int


class BlockWriter:
    def __init__(self) -> None:
        self._blocks: list[tuple[str, BlockPosition]] = []

    def put(self, text: str, place: BlockPosition, marker: str = "") -> None:
        """`marker` makes it a list's item."""
        depth = min(place.depth, MAX_INDENTS)
        quote = "> " * min(place.quotes, MAX_QUOTES)
        first = f"{quote}{'  ' * (depth - bool(marker))}{marker}"
        self._blocks.append((first + text.replace("\n", f"\n{quote}{'  ' * depth}"), place))

    def text(self) -> str:
        """Items follow each other closely."""
        pieces: list[str] = []
        was_item = False
        for text, place in self._chosen():
            is_item = place.depth > 0
            pieces += ("\n" if was_item and is_item else "\n\n", text)
            was_item = is_item
        return "".join(pieces[1:])

    def _chosen(self) -> list[tuple[str, BlockPosition]]:
        for rank in (2, 1):
            part = [block for block in self._blocks if block[1].rank >= rank]
            if sum(len(text) for text, _ in part) >= MAIN_CHARS:
                return part
        return self._blocks


MAX_LINK_CHARS = 2_000
_WHITE = re.compile(r"\s+")
_SPACES = re.compile(r" {2,}")
_OPENS_TAG = re.compile(r"<(?=[a-zA-Z/!?]|\Z)")
_BAD_IN_LINK = re.compile(r"[\s()<>\x00-\x1f]")
_TICKS = re.compile(r"`+")

Kind = Literal["link", "strong", "code"]


@dataclass(slots=True)
class _Frame:
    kind: Kind | None = None
    url: str = ""
    pieces: list[str] = field(default_factory=list[str])


class Inline:
    """At most one frame of each kind is open, so that nothing is wrapped more often than that."""

    def __init__(self, base: str) -> None:
        self.base = base
        self._frames = [_Frame()]
        self._is_blank = True

    @property
    def is_code(self) -> bool:
        return self._frames[-1].kind == "code"

    def add(self, text: str) -> None:
        """What looks like a tag in prose is not one in the markdown either."""
        white = _WHITE.sub(" ", text)
        self._is_blank = self._is_blank and white in ("", " ")
        self._frames[-1].pieces.append(white if self.is_code else _OPENS_TAG.sub("&lt;", white))

    def new_line(self) -> None:
        self._frames[-1].pieces.append("\n")

    def open(self, kind: Kind, url: str = "") -> None:
        if kind == "link":
            self.close("link")
        if not self.is_code and not self._is_open(kind):
            self._frames.append(_Frame(kind, url))

    def close(self, kind: Kind) -> None:
        while self._is_open(kind):
            frame = self._frames.pop()
            self._frames[-1].pieces.append(self._wrapped(frame))
            if frame.kind == kind:
                return

    def take(self) -> str:
        """The paragraph, ended. A frame without a word yet goes on: a link may hold a whole heading."""
        if self._is_blank:
            for frame in self._frames:
                frame.pieces.clear()
            return ""
        self._is_blank = True
        waiting = [frame for frame in self._frames[1:] if not _joined(frame).strip()]
        while len(self._frames) > 1:
            frame = self._frames.pop()
            self._frames[-1].pieces.append(self._wrapped(frame))
        text = _joined(self._frames[0])
        self._frames = [_Frame(), *(_Frame(frame.kind, frame.url) for frame in waiting)]
        lines = (_SPACES.sub(" ", line).strip() for line in text.split("\n"))
        return "\n".join(line for line in lines if line)

    def _is_open(self, kind: Kind) -> bool:
        return any(frame.kind == kind for frame in self._frames)

    def _wrapped(self, frame: _Frame) -> str:
        text = _joined(frame)
        words = " ".join(text.split())
        if not words:
            return text
        before, after = " " * text[0].isspace(), " " * text[-1].isspace()
        return f"{before}{self._marked(frame, words)}{after}"

    def _marked(self, frame: _Frame, words: str) -> str:
        match frame.kind:
            case "link":
                url = self._absolute(frame.url)
                return f"[{words}]({url})" if url else words
            case "strong":
                return f"**{words}**"
            case "code":
                ticks = fence(words, 1)
                return f"{ticks}{words}{ticks}" if ticks == "`" else f"{ticks} {words} {ticks}"
            case None:
                return words

    def _absolute(self, url: str) -> str:
        if not url or url.startswith("#") or len(url) > MAX_LINK_CHARS:
            return ""
        try:
            joined = urljoin(self.base, url)
        except ValueError:
            return ""
        is_web = joined.startswith(("http://", "https://", "mailto:"))
        return _BAD_IN_LINK.sub(_quoted, joined) if is_web else ""


def _joined(frame: _Frame) -> str:
    if len(frame.pieces) > 1:
        frame.pieces = ["".join(frame.pieces)]
    return frame.pieces[0] if frame.pieces else ""


def _quoted(sign: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in sign[0].encode("utf-8", "replace"))


def fence(text: str, least: int) -> str:
    """More ticks than stand in a row anywhere in `text`."""
    longest = max((len(run[0]) for run in _TICKS.finditer(text)), default=0)
    return "`" * max(least, min(longest, 40) + 1)


MAX_CELL_CHARS = 500


@dataclass(slots=True)
class Table:
    rows: list[list[str]] = field(default_factory=list[list[str]])
    is_in_cell: bool = False

    def begin(self, *, is_cell: bool) -> None:
        """A cell, or a row."""
        if not is_cell or not self.rows:
            self.rows.append([])
        self.is_in_cell = is_cell

    def add(self, cell: str) -> None:
        """Ends the cell."""
        self.rows[-1].append(" ".join(cell.split()))
        self.is_in_cell = False

    def blocks(self) -> list[str]:
        """Rows keep their own length: filling them up could take the square of what came."""
        rows = [row for row in self.rows if any(row)]
        if not _is_data(rows):
            return [" ".join(filter(None, row)) for row in rows]
        head, *rest = rows
        lines = [_line(head), "|" + "---|" * len(head), *map(_line, rest)]
        return ["\n".join(lines)]


def _is_data(rows: list[list[str]]) -> bool:
    cells = [cell for row in rows for cell in row]
    has_columns = sum(len(row) > 1 for row in rows) > 1
    return has_columns and max(map(len, cells)) <= MAX_CELL_CHARS


def _line(row: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
