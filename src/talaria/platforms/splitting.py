"""Cuts a long markdown answer into messages. Pure, and linear in the text.

Where a part ends depends only on what stands up to there and on the sign after it: a text that is still being written
never moves a cut. A part stands alone: a code fence that is cut is closed, and opened again in the next.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cache
from unicodedata import category

import msgspec

_BLANK_LINES = re.compile(r"(?:[^\S\n]*+\n)*+")
_GAP = re.compile(r"[^\S\n]*+(?:\n(?:[^\S\n]*+\n)*+)?")
"""What is dropped at a cut; the indentation of the next line stays."""
_PARAGRAPH = re.compile(r"\n[^\S\n]*+\n")
_SENTENCE = re.compile(r"(?:(?<=[.!?…])|(?<=[.!?…][\"”\u2019»)*_`]))\s+|(?<=[\u3002\uff01\uff1b\uff1f])(?=\w)")
"""Chinese and Japanese put no space after it."""
_HEADING = re.compile(r"#{1,6}\s")
_WORD = re.compile(r"(?<=\S)\s+")
_FENCE = re.compile(r"[^\S\n]*+(?P<marker>`{3,}+|~{3,}+)[^\S\n]*+(?P<language>[^\s`]*+)(?P<rest>[^\n]*+)")

_CONTINUING = re.compile(
    r"[\u1160-\u11ff\u200d\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]|(?<=[\ud800-\udbff])[\udc00-\udfff]"
)
"""Vowels of Hangul, joiners, colours of skin, tags, the second half of a pair; marks are known by their category."""
_FLAG_HALVES = "".join(map(chr, range(0x1F1E6, 0x1F200)))
_LONGEST_CLUSTER = 32

Length = Callable[[str], int]


class _Fence(msgspec.Struct, frozen=True):
    marker: str
    language: str

    @property
    def opening(self) -> str:
        return f"{self.marker}{self.language}\n"

    @property
    def closing(self) -> str:
        return f"\n{self.marker}"

    def is_closed_by(self, found: re.Match[str]) -> bool:
        return found["marker"].startswith(self.marker) and not (found["language"] or found["rest"].strip())


class _Line(msgspec.Struct, frozen=True):
    start: int
    text: str
    is_whole: bool
    is_marker: bool
    """It looks like the line that begins or ends a fence."""
    fence: _Fence | None
    after: _Fence | None
    """The fence that is open after it."""

    @property
    def end(self) -> int:
        return self.start + len(self.text.rstrip())

    @property
    def opens(self) -> bool:
        return self.fence is None and self.after is not None


class _Cut(msgspec.Struct, frozen=True):
    end: int
    fence: _Fence | None = None
    """The fence that is open there."""
    rank: int = 0
    """The lower, the better."""


def split(text: str, max_chars: int, length: Length = len) -> tuple[str, ...]:
    """Parts of at most `max_chars` each, as `length` counts, which counts each character by itself and as one or more.

    Blank space at a cut is dropped, and so is a part that would be blank.
    """
    parts: list[str] = []
    at, fence = _after(_BLANK_LINES, text, 0), None
    while at < len(text):
        opening = fence.opening if fence else ""
        end = _fitting(text, at, max_chars - length(opening), length)
        cut = _Cut(end - at) if end == len(text) else _cut(text[at : end + 1], fence, max_chars, length)
        body = text[at : at + cut.end].rstrip()
        if body:
            parts.append(f"{opening}{body}{cut.fence.closing if cut.fence else ''}")
        at, fence = _find_next_part(text, at + cut.end, cut.fence)
    return tuple(parts)


def units(text: str) -> int:
    """As services count that think in UTF-16."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def cut_units(text: str, start: int, end: int) -> str:
    """The part between two places, counted in `units`; half a pair is left out."""
    return text.encode("utf-16-le", "surrogatepass")[2 * start : 2 * end].decode("utf-16-le", "ignore")


def _fitting(text: str, at: int, room: int, length: Length) -> int:
    """The end of the longest piece from `at` on that fits."""
    end = min(len(text), at + room)
    if length(text[at:end]) <= room:
        return end
    return at + bisect_right(range(1, end - at), room, key=lambda size: length(text[at : at + size]))


def _find_next_part(text: str, at: int, fence: _Fence | None) -> tuple[int, _Fence | None]:
    """Where the next part begins. A fence that would end there at once is not opened again."""
    at = _after(_GAP, text, at)
    closer = _FENCE.match(text, at) if fence else None
    if fence and closer and fence.is_closed_by(closer):
        return _after(_GAP, text, closer.end()), None
    return at, fence


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _cut(window: str, fence: _Fence | None, max_chars: int, length: Length) -> _Cut:
    """The window is what fits, and one sign more."""
    size = len(window) - 1
    room = max_chars - length(fence.opening if fence else "")

    @cache
    def limit(open_fence: _Fence | None) -> int:
        return size if open_fence is None else _fitting(window, 0, room - length(open_fence.closing), length)

    lines = list(_lines(window, fence, lambda overhead: 2 * length(overhead) <= max_chars))
    places = [cut for line in lines for cut in _places(window, line) if cut.end <= limit(cut.fence)]
    filling = [cut for cut in places if 2 * cut.end >= size]
    if filling:
        return min(filling, key=lambda cut: (cut.rank, -cut.end))
    if places:
        return max(places, key=lambda cut: cut.end)
    for line in reversed(lines):
        end = min(line.end, limit(line.fence))
        if not line.is_marker and end > line.start:
            return _Cut(_between_clusters(window, end), line.fence)
    return _Cut(_between_clusters(window, max(1, limit(fence))), fence)


def _lines(window: str, fence: _Fence | None, is_short: Callable[[str], bool]) -> Iterator[_Line]:
    start = 0
    for text in window.split("\n"):
        is_whole = start + len(text) < len(window)
        found = _FENCE.match(text)
        after = _fence_after(found, fence, is_short) if found else fence
        yield _Line(start, text, is_whole, found is not None, fence, after)
        start += len(text) + 1
        fence = after


def _fence_after(found: re.Match[str], fence: _Fence | None, is_short: Callable[[str], bool]) -> _Fence | None:
    if fence is not None:
        return None if fence.is_closed_by(found) else fence
    opened = _Fence(found["marker"], found["language"])
    is_opener = "`" not in found["rest"] and is_short(f"{found[0]}\n{opened.closing}")
    return opened if is_opener else None


def _places(window: str, line: _Line) -> Iterator[_Cut]:
    """Where to cut after this line or in it."""
    if line.is_whole and line.text.strip() and not line.opens:
        yield _Cut(line.end, line.after, _rank_of_end(window, line))
    if line.is_marker:
        return
    for rank, pattern in ((3, _SENTENCE), (4, _WORD)):
        for gap in pattern.finditer(line.text):
            yield _Cut(line.start + gap.start(), line.fence, 4 if line.fence else rank)


def _rank_of_end(window: str, line: _Line) -> int:
    """Rather between paragraphs, then lines, then code; hardly below a heading."""
    if line.after:
        return 2
    if _HEADING.match(line.text):
        return 4
    return 0 if _PARAGRAPH.match(window, line.start + len(line.text)) else 1


def _between_clusters(text: str, end: int) -> int:
    """The last place up to `end` that does not tear what people see as one sign."""
    for place in range(end, max(0, end - _LONGEST_CLUSTER), -1):
        if not _is_torn(text, place):
            return place
    return end


def _is_torn(text: str, place: int) -> bool:
    before, after = text[:place], text[place]
    if after in _FLAG_HALVES:
        return (len(before) - len(before.rstrip(_FLAG_HALVES))) % 2 == 1
    return before.endswith("\u200d") or category(after).startswith("M") or bool(_CONTINUING.match(text, place))
