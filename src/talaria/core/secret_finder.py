"""Finds any of many secrets in data, even across wrapped lines, and replaces them.

Uses only the standard library, because the search program is started without site-packages.
"""

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate

HIDDEN = "•••"
MIN_CHARS = 8

_GRAM = 4
_MAX_STRIDE = 4
_MAX_STRETCH = 4
"""By which factor wrapping may make a secret longer."""
_NO_BREAKS = {ord("\r"): None, ord("\n"): None}
_HIDDEN = HIDDEN.encode()

Span = tuple[int, int]


class SecretFinder:
    """Finds any of many forms. The last bytes of each form are stored as grams, enough of them that wherever the form
    begins, one gram is at a multiple of the stride. So a text is searched only at those places."""

    def __init__(self, forms: Iterable[str]) -> None:
        joined = {form.translate(_NO_BREAKS) for form in forms}
        self._forms = sorted(encode_text(form) for form in joined if len(form) >= MIN_CHARS)
        sizes = [len(form) for form in self._forms]
        self._longest = max(sizes)
        self.most_bytes = self._longest * _MAX_STRETCH
        self._beginnings = frozenset(form[:_GRAM] for form in self._forms)
        self._stride = min((min(sizes) - _GRAM + 1) // _GRAM, _MAX_STRIDE)
        self._by_gram: dict[int, list[bytes]] = {}
        for form in self._forms:
            for gram in _last_grams(form, self._stride * _GRAM):
                self._by_gram.setdefault(gram, []).append(form)
        self._grams = frozenset(self._by_gram)

    def redact(self, data: bytes, *, keeps_lines: bool = False) -> bytes:
        """`keeps_lines`: keep the line breaks inside a wrapped secret, so that all lines keep their numbers."""
        flat = UnwrappedData(data)
        spans = self.spans(flat.data)
        return replace_spans(data, flat.places(spans), keeps_lines=keeps_lines) if spans else data

    def spans(self, data: bytes) -> list[Span]:
        """Where forms are found; overlapping ones are merged."""
        aligned = memoryview(data)[: len(data) // _GRAM * _GRAM].cast("I")[:: self._stride]
        hits = self._grams.intersection(aligned)
        merged: list[Span] = []
        if not hits:
            return merged
        suspects = {form for gram in hits for form in self._by_gram[gram]}
        for start, end in sorted(span for form in suspects for span in _occurrences(data, form)):
            if merged and start < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return merged

    def partial_start(self, data: bytes) -> int:
        """Where a form may begin of which more is to come; the end of the data if none does."""
        forms, size = self._forms, len(data)
        for start in range(max(0, size - self._longest + 1), size):
            if data[start : start + _GRAM] in self._beginnings or size - start < _GRAM:
                tail = data[start:]
                place = bisect_right(forms, tail)
                if place < len(forms) and forms[place].startswith(tail):
                    return start
        return size


def _last_grams(form: bytes, count: int) -> Iterator[int]:
    last = len(form) - _GRAM
    return (int.from_bytes(form[at : at + _GRAM], sys.byteorder) for at in range(last - count + 1, last + 1))


def _occurrences(data: bytes, form: bytes) -> Iterator[Span]:
    start = data.find(form)
    while start >= 0:
        yield start, start + len(form)
        start = data.find(form, start + 1)


class UnwrappedData:
    """Data without line breaks, which a program that wraps text may put anywhere."""

    def __init__(self, data: bytes) -> None:
        self._raw = data
        self._breaks: list[int] = []
        """How many other bytes come before each; computed when needed."""
        self.data = data.translate(None, b"\r\n")

    def place(self, at: int) -> int:
        """The place of that byte in the data with line breaks."""
        if len(self.data) == len(self._raw):
            return at
        if not self._breaks:
            self._breaks = list(accumulate(map(len, self._raw.replace(b"\r", b"\n").split(b"\n"))))[:-1]
        return at + bisect_right(self._breaks, at)

    def places(self, spans: Iterable[Span]) -> Iterator[Span]:
        return ((self.place(start), self.place(end - 1) + 1) for start, end in spans)


def replace_spans(data: bytes, spans: Iterable[Span], *, keeps_lines: bool = False) -> bytes:
    shown: list[bytes] = []
    last = 0
    for start, end in spans:
        shown += (data[last:start], _HIDDEN, b"\n" * data.count(b"\n", start, end) if keeps_lines else b"")
        last = end
    return b"".join((*shown, data[last:])) if shown else data


def encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def decode_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
