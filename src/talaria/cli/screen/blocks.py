"""Markdown that comes in pieces, cut into blocks: what is complete is printed for good, the rest may still change."""

import re

import msgspec

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
