"""The paragraphs of a page as they pile up, and which of them are the page."""

from dataclasses import dataclass

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
