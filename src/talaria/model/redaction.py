"""Known secrets taken out of whatever is written down, shown or told, also in disguise and where lines were wrapped.

Pure, and linear in the text: what holds no secret costs a few nanoseconds per byte and comes back as the very same
object.
"""

import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from operator import is_
from typing import Any, TypeVar, cast

import msgspec

from talaria.model.disguises import disguises
from talaria.model.messages import Assistant, AssistantPart, Image, Text, Thinking

HIDDEN = "•••"
MIN_CHARS = 8
MIN_SIGNS = 4
"""What is shorter, or of fewer different signs, may be part of anything."""
PLACEHOLDERS = re.compile(
    "anonymous|changeme|development|disabled|keychain|lm-studio|localhost|not-(needed|required)|optional|password"
    "|placeholder|postgres|production|required|(sk-)?no-key-required|undefined|unlimited|your[-_](api[-_])?key([-_]here)?"
)
"""What stands where a secret may stand, and is none."""

_GRAM = 4
_MAX_STRIDE = 4
_MAX_STRETCH = 4
"""Times its length: so long is what was wrapped, at most."""
_NO_BREAKS = {ord("\r"): None, ord("\n"): None}
_HIDDEN = HIDDEN.encode()

_pack = msgspec.msgpack.Encoder().encode

T = TypeVar("T")
Span = tuple[int, int]


def is_secret(value: str) -> bool:
    """Whether it can be told apart from ordinary text."""
    return len(value) >= MIN_CHARS and len(set(value)) >= MIN_SIGNS and not PLACEHOLDERS.fullmatch(value.lower())


class Redactor:
    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = frozenset(filter(is_secret, secrets))
        self._found: _Finder | None = None

    def learn(self, secrets: Iterable[str]) -> None:
        """From now on these are some, too; not for streams that have begun."""
        known = self._secrets.union(filter(is_secret, secrets))
        if known != self._secrets:
            self._secrets, self._found = known, None

    def text(self, text: str) -> str:
        finder = self._finder
        if finder is None or len(text) < MIN_CHARS:
            return text
        data = _encoded(text)
        shown = finder.redacted(data)
        return text if shown is data else _decoded(shown)

    def data(self, data: bytes) -> bytes:
        return data if self._finder is None else self._finder.redacted(data)

    def stream(self) -> "TextStream":
        return TextStream(self._finder)

    def byte_stream(self) -> "ByteStream":
        return ByteStream(self._finder)

    def value(self, value: T) -> T:
        """A message, entry, event or the like, redacted in all its text. Pictures stay, and so do seals: or they go."""
        finder = self._finder
        return value if finder is None or _is_clean(value, finder) else self._redacted(value)

    @property
    def _finder(self) -> "_Finder | None":
        """Made when it is first needed."""
        if self._found is None and self._secrets:
            self._found = _Finder(form for secret in self._secrets for form in disguises(secret))
        return self._found

    def _redacted(self, value: Any) -> Any:
        match value:
            case str():
                return self.text(value)
            case None | int() | float():
                return value
            case tuple():
                items = cast("tuple[Any, ...]", value)
                shown = tuple(map(self._redacted, items))
                return items if all(map(is_, items, shown)) else shown
            case Image():
                return value
            case Thinking() if self.text(value.sealed) is not value.sealed:
                return Thinking(self.text(value.text))
            case Assistant():
                return self._struct(self._in_one(value))
            case msgspec.Struct():
                return self._struct(value)
            case _:
                return value

    def _struct(self, value: msgspec.Struct) -> msgspec.Struct:
        changed: dict[str, Any] = {}
        for name in value.__struct_fields__:
            held = getattr(value, name)
            shown = self._redacted(held)
            if shown is not held:
                changed[name] = shown
        return msgspec.structs.replace(value, **changed) if changed else value

    def _in_one(self, answer: Assistant) -> Assistant:
        """Its text is read as one: a secret may begin in one part and end in another."""
        text = answer.text
        if self.text(text) is text:
            return answer
        stream = self.stream()
        parts: list[AssistantPart] = [
            Text(stream.add(part.text)) if isinstance(part, Text) else part for part in answer.parts
        ]
        last = max(place for place, part in enumerate(parts) if isinstance(part, Text))
        parts[last] = Text(cast("Text", parts[last]).text + stream.end())
        return msgspec.structs.replace(answer, parts=tuple(parts))


def _is_clean(value: object, finder: "_Finder") -> bool:
    """All of its text at a glance: as it is packed, no piece of it is written in another way. False: look closer."""
    try:
        packed = _pack(value)
    except (TypeError, ValueError):  # it holds what cannot be packed
        return False
    return not _may_be_split(value) and not finder.spans(packed.translate(None, b"\r\n"))


def _may_be_split(value: object) -> bool:
    """There is an answer of several texts in it."""
    held = getattr(value, "message", getattr(value, "messages", value))
    if isinstance(held, tuple):
        return any(map(_may_be_split, cast("tuple[object, ...]", held)))
    return isinstance(held, Assistant) and sum(isinstance(part, Text) for part in held.parts) > 1


class TextStream:
    """Shows of a text that comes in pieces whatever cannot be the beginning of a secret."""

    def __init__(self, finder: "_Finder | None") -> None:
        self._stream = None if finder is None else ByteStream(finder)

    def add(self, piece: str) -> str:
        return piece if self._stream is None else _decoded(self._stream.add(_encoded(piece)))

    def end(self) -> str:
        """The rest."""
        return "" if self._stream is None else _decoded(self._stream.end())


class ByteStream:
    """The same for data, wherever it is cut. What waits is never more than a few times the longest form of a secret."""

    def __init__(self, finder: "_Finder | None") -> None:
        self._finder = finder
        self._held = b""

    def add(self, piece: bytes) -> bytes:
        if self._finder is None:
            return piece
        held = self._held + piece
        flat = _Flat(held)
        spans = self._finder.spans(flat.data)
        cut = self._finder.opening(flat.data)
        cut = next((start for start, end in spans if start < cut < end), cut)
        if len(held) - flat.place(cut) > self._finder.most_bytes:  # line breaks without end
            cut = len(flat.data)
        place = flat.place(cut)
        self._held = held[place:]
        return _without(held[:place], flat.places(span for span in spans if span[1] <= cut))

    def end(self) -> bytes:
        """The rest."""
        held, self._held = self._held, b""
        return held if self._finder is None else self._finder.redacted(held)


class _Finder:
    """Finds any of many forms. Of each, the last bytes are kept as grams, so many that one of them comes to stand at a
    multiple of the stride wherever the form begins: a text is asked only for what stands there."""

    def __init__(self, forms: Iterable[str]) -> None:
        joined = {form.translate(_NO_BREAKS) for form in forms}
        self._forms = sorted(_encoded(form) for form in joined if len(form) >= MIN_CHARS)
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

    def redacted(self, data: bytes) -> bytes:
        flat = _Flat(data)
        spans = self.spans(flat.data)
        return _without(data, flat.places(spans)) if spans else data

    def spans(self, data: bytes) -> list[Span]:
        """Where forms stand, those that overlap as one."""
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

    def opening(self, data: bytes) -> int:
        """From where on the data may be the beginning of a form that is still to come; its end, if it is not."""
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


class _Flat:
    """Data without its line breaks, which may stand anywhere in what a program has wrapped."""

    def __init__(self, data: bytes) -> None:
        self._raw = data
        self._breaks: list[int] = []
        """How many other bytes stand before each; told when it is asked for."""
        self.data = data.translate(None, b"\r\n")

    def place(self, at: int) -> int:
        """Where that byte stands among the line breaks."""
        if len(self.data) == len(self._raw):
            return at
        if not self._breaks:
            self._breaks = list(accumulate(map(len, self._raw.replace(b"\r", b"\n").split(b"\n"))))[:-1]
        return at + bisect_right(self._breaks, at)

    def places(self, spans: Iterable[Span]) -> Iterator[Span]:
        return ((self.place(start), self.place(end - 1) + 1) for start, end in spans)


def _without(data: bytes, spans: Iterable[Span]) -> bytes:
    shown: list[bytes] = []
    last = 0
    for start, end in spans:
        shown += (data[last:start], _HIDDEN)
        last = end
    return b"".join((*shown, data[last:])) if shown else data


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
