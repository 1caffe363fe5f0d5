"""Splits a long markdown answer into messages. Pure, and linear in the text.

Where a part ends depends only on the text up to there and the next character, so a text that is still being written
never moves a cut. Each part is valid by itself: a code fence that is cut is closed, and reopened in the next part.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cache
from unicodedata import category

import msgspec

_BLANK_LINES = re.compile(r"(?:[^\S\n]*+\n)*+")
_GAP = re.compile(r"[^\S\n]*+(?:\n(?:[^\S\n]*+\n)*+)?")
"""Dropped at a cut; the indentation of the next line is kept."""
_PARAGRAPH = re.compile(r"\n[^\S\n]*+\n")
_SENTENCE = re.compile(r"(?:(?<=[.!?…])|(?<=[.!?…][\"”\u2019»)*_`]))\s+|(?<=[\u3002\uff01\uff1b\uff1f])(?=\w)")
"""Chinese and Japanese have no space after a sentence."""
_HEADING = re.compile(r"#{1,6}\s")
_WORD = re.compile(r"(?<=\S)\s+")
_FENCE = re.compile(r"[^\S\n]*+(?P<marker>`{3,}+|~{3,}+)[^\S\n]*+(?P<language>[^\s`]*+)(?P<rest>[^\n]*+)")

_CONTINUING = re.compile(
    r"[\u1160-\u11ff\u200d\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]|(?<=[\ud800-\udbff])[\udc00-\udfff]"
)
"""Hangul vowels, joiners, skin tones, tags, low surrogates. Combining marks are recognised by their category."""
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
    """It looks like a line that opens or closes a fence."""
    fence: _Fence | None
    """The fence that is open before this line."""
    after: _Fence | None
    """The fence that is open after this line."""

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
    """Lower is better."""


def split(text: str, max_chars: int, length: Length = len) -> tuple[str, ...]:
    """Parts of at most `max_chars`, as counted by `length`, which must count each character by itself as one or more.

    White space at a cut is dropped, and so is a part that would be blank.
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
        at, fence = _after(_GAP, text, at + cut.end), cut.fence
        closer = _FENCE.match(text, at) if fence else None
        if fence and closer and fence.is_closed_by(closer):  # do not reopen a fence that would end at once
            at, fence = _after(_GAP, text, closer.end()), None
    return tuple(parts)


def units(text: str) -> int:
    """Length in UTF-16 code units, as many services count."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def cut_units(text: str, start: int, end: int) -> str:
    """The text between two offsets counted in `units`, without half a surrogate pair at either end."""
    return text.encode("utf-16-le", "surrogatepass")[2 * start : 2 * end].decode("utf-16-le", "ignore")


def _fitting(text: str, at: int, room: int, length: Length) -> int:
    """The end of the longest piece from `at` that fits into `room`."""
    end = min(len(text), at + room)
    if length(text[at:end]) <= room:
        return end
    return at + bisect_right(range(1, end - at), room, key=lambda size: length(text[at : at + size]))


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _cut(window: str, fence: _Fence | None, max_chars: int, length: Length) -> _Cut:
    """The best cut in a window, which holds the text that fits and one more character."""
    size = len(window) - 1
    room = max_chars - length(fence.opening if fence else "")

    @cache
    def limit(open_fence: _Fence | None) -> int:
        return size if open_fence is None else _fitting(window, 0, room - length(open_fence.closing), length)

    lines = list(_read_lines(window, fence, max_chars, length))
    places = [cut for line in lines for cut in _find_places(window, line) if cut.end <= limit(cut.fence)]
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


def _read_lines(window: str, fence: _Fence | None, max_chars: int, length: Length) -> Iterator[_Line]:
    start = 0
    for text in window.split("\n"):
        after = fence
        found = _FENCE.match(text)
        if found and fence is not None:
            after = None if fence.is_closed_by(found) else fence
        elif found and "`" not in found["rest"]:
            opened = _Fence(found["marker"], found["language"])
            # a fence that takes more than half a message could not be reopened in the next one
            after = opened if 2 * length(f"{found[0]}\n{opened.closing}") <= max_chars else None
        yield _Line(start, text, start + len(text) < len(window), found is not None, fence, after)
        start += len(text) + 1
        fence = after


def _find_places(window: str, line: _Line) -> Iterator[_Cut]:
    """Possible cuts after this line and inside it: best between paragraphs, then lines, then in code."""
    if line.is_whole and line.text.strip() and not line.opens:
        is_paragraph = _PARAGRAPH.match(window, line.start + len(line.text)) is not None
        rank = 2 if line.after else 4 if _HEADING.match(line.text) else 0 if is_paragraph else 1
        yield _Cut(line.end, line.after, rank)
    if line.is_marker:
        return
    for rank, pattern in ((3, _SENTENCE), (4, _WORD)):
        for gap in pattern.finditer(line.text):
            yield _Cut(line.start + gap.start(), line.fence, 4 if line.fence else rank)


def _between_clusters(text: str, end: int) -> int:
    """The last place up to `end` that does not split what people see as one character."""
    for place in range(end, max(0, end - _LONGEST_CLUSTER), -1):
        before, after = text[:place], text[place]
        if after in _FLAG_HALVES:
            is_split = (len(before) - len(before.rstrip(_FLAG_HALVES))) % 2 == 1
        else:
            is_mark = category(after).startswith("M")
            is_split = before.endswith("\u200d") or is_mark or bool(_CONTINUING.match(text, place))
        if not is_split:
            return place
    return end
