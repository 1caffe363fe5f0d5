"""Removes known secrets from whatever is stored, shown or sent, even where they are encoded or wrapped over lines.

Pure, and linear in the text. A text without secrets costs a few nanoseconds per byte, and comes back as the same
object.
"""

import os
import re
from binascii import b2a_base64
from collections.abc import Iterable, Iterator
from operator import is_
from typing import Any, TypeVar, cast
from urllib.parse import quote

import msgspec

from talaria.core.messages import Assistant, AssistantPart, Image, Text, Thinking
from talaria.core.secret_finder import (
    HIDDEN,
    MIN_CHARS,
    SecretFinder,
    UnwrappedData,
    decode_text,
    encode_text,
    replace_spans,
)

_PERCENT = re.compile("%[0-9A-F]{2}")
_UNQUOTED = ("", "/", "!'()*", "/:?#[]@!$&'()*+,;=")
"""The characters that stay unquoted: strictly, in a path, in a browser, in a whole URL."""


def encodings_of(secret: str) -> frozenset[str]:
    """The forms in which people and programs write it, itself among them."""
    raw = secret.encode("utf-8", "replace")
    return frozenset(
        (secret, secret[::-1], raw.hex(), raw.hex().upper(), *_base64(raw), *_percent(raw), *_json_forms(raw.decode()))
    )


def _base64(raw: bytes) -> Iterator[str]:
    """Wherever the secret begins in the bytes that are encoded together, and whether or not they end with it."""
    for before in range(3):
        whole = b2a_base64(bytes(before) + raw, newline=False).decode()[-(-before * 8 // 6) :]
        own = whole[: (len(raw) * 8 - (-before * 8) % 6) // 6]
        for form in (whole, whole.rstrip("="), own):
            yield form
            yield form.replace("+", "-").replace("/", "_")


def _percent(raw: bytes) -> Iterator[str]:
    each = "".join(f"%{byte:02X}" for byte in raw)
    needed = [quote(raw, safe=kept) for kept in _UNQUOTED]
    for form in (each, *needed, *(form.replace("%20", "+") for form in needed)):
        yield form
        yield _PERCENT.sub(lambda found: found[0].lower(), form)


def _json_forms(secret: str) -> Iterator[str]:
    """As JSON usually writes it, and in other ways that it allows."""
    needed = msgspec.json.encode(secret).decode()[1:-1]
    ascii_only = "".join(char if char.isascii() else f"\\u{ord(char):04x}" for char in needed)
    each = "".join(f"\\u{ord(char):04x}" for char in secret)
    yield from (needed, needed.replace("/", "\\/"), ascii_only, ascii_only.replace("/", "\\/"))
    yield from (each, each.upper().replace("\\U", "\\u"))


MIN_DISTINCT_CHARS = 4
"""A secret with fewer different characters may be part of anything."""
PLACEHOLDERS = re.compile(
    "anonymous|changeme|development|disabled|keychain|lm-studio|localhost|not-(needed|required)|optional|password"
    "|placeholder|postgres|production|required|(sk-)?no-key-required|undefined|unlimited|your[-_](api[-_])?key([-_]here)?"
)
"""Values in the place of a secret that are not secret."""

_pack = msgspec.msgpack.Encoder().encode

T = TypeVar("T")


def is_secret(value: str) -> bool:
    """Whether the value can be told from ordinary text."""
    return (
        len(value) >= MIN_CHARS and len(set(value)) >= MIN_DISTINCT_CHARS and not PLACEHOLDERS.fullmatch(value.lower())
    )


class Redactor:
    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = frozenset(filter(is_secret, secrets))
        self._found: SecretFinder | None = None

    def learn(self, secrets: Iterable[str]) -> None:
        """From now on redact these, too, except in streams that have begun."""
        known = self._secrets.union(filter(is_secret, secrets))
        if known != self._secrets:
            self._secrets, self._found = known, None

    def text(self, text: str) -> str:
        finder = self._finder
        if finder is None or len(text) < MIN_CHARS:
            return text
        data = encode_text(text)
        shown = finder.redact(data)
        return text if shown is data else decode_text(shown)

    def data(self, data: bytes, *, keeps_lines: bool = False) -> bytes:
        """`keeps_lines`: keep the number of lines, even where a secret was wrapped."""
        return data if self._finder is None else self._finder.redact(data, keeps_lines=keeps_lines)

    def mask(self, text: str) -> "MaskedText":
        """For processing a text without revealing or changing its secrets."""
        finder = self._finder
        if finder is None or len(text) < MIN_CHARS:
            return MaskedText(text, {})
        data, words, pieces, last = encode_text(text), dict[str, str](), list[str](), 0
        flat, mark = UnwrappedData(data), os.urandom(8).hex()
        for start, end in flat.places(finder.spans(flat.data)):
            word = f"\ue000{mark}.{len(words)}\ue001"
            words[word] = decode_text(data[start:end])
            pieces += (decode_text(data[last:start]), word)
            last = end
        return MaskedText("".join((*pieces, decode_text(data[last:]))), words)

    def stream(self) -> "TextStream":
        return TextStream(self._finder)

    def byte_stream(self) -> "ByteStream":
        return ByteStream(self._finder)

    def value(self, value: T) -> T:
        """A message, entry, event or the like, with all of its text redacted. Images stay; a seal that contains a
        secret is dropped."""
        finder = self._finder
        if finder is None:
            return value
        try:
            packed = _pack(value)
        except (TypeError, ValueError):  # it holds what cannot be packed
            return self._redact(value)
        # All of its text at a glance: as it is packed, no piece of it is written in another way.
        is_clean = not _may_be_split(value) and not finder.spans(packed.translate(None, b"\r\n"))
        return value if is_clean else self._redact(value)

    @property
    def _finder(self) -> "SecretFinder | None":
        """Built when first needed."""
        if self._found is None and self._secrets:
            self._found = SecretFinder(self.forms)
        return self._found

    @property
    def forms(self) -> frozenset[str]:
        """Everything that is redacted, for another process that must not find it either."""
        return frozenset(form for secret in self._secrets for form in encodings_of(secret))

    def _redact(self, value: Any) -> Any:
        match value:
            case str():
                return self.text(value)
            case None | int() | float():
                return value
            case tuple():
                items = cast("tuple[Any, ...]", value)
                shown = tuple(map(self._redact, items))
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
            shown = self._redact(held)
            if shown is not held:
                changed[name] = shown
        return msgspec.structs.replace(value, **changed) if changed else value

    def _in_one(self, answer: Assistant) -> Assistant:
        """The parts are read as one text, because a secret may begin in one and end in another."""
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


def _may_be_split(value: object) -> bool:
    """Whether it contains an answer of several texts."""
    held = getattr(value, "message", getattr(value, "messages", value))
    if isinstance(held, tuple):
        return any(map(_may_be_split, cast("tuple[object, ...]", held)))
    return isinstance(held, Assistant) and len([part for part in held.parts if isinstance(part, Text)]) > 1


class MaskedText(msgspec.Struct, frozen=True):
    """A text with each secret replaced by a word that nobody can guess."""

    text: str
    words: dict[str, str]

    def unmask(self, text: str) -> str:
        for word, secret in self.words.items():
            text = text.replace(word, secret)
        return text

    def redact(self, text: str) -> str:
        for word in self.words:
            text = text.replace(word, HIDDEN)
        return text


class TextStream:
    """Passes on a text that comes in pieces, except what may be the beginning of a secret."""

    def __init__(self, finder: "SecretFinder | None") -> None:
        self._stream = None if finder is None else ByteStream(finder)

    def add(self, piece: str) -> str:
        return piece if self._stream is None else decode_text(self._stream.add(encode_text(piece)))

    def end(self) -> str:
        """The rest."""
        return "" if self._stream is None else decode_text(self._stream.end())


class ByteStream:
    """The same for data, wherever it is cut. Never holds back more than a few times the longest form of a secret."""

    def __init__(self, finder: "SecretFinder | None") -> None:
        self._finder = finder
        self._held = b""

    def add(self, piece: bytes) -> bytes:
        if self._finder is None:
            return piece
        held = self._held + piece
        flat = UnwrappedData(held)
        spans = self._finder.spans(flat.data)
        cut = self._finder.partial_start(flat.data)
        cut = next((start for start, end in spans if start < cut < end), cut)
        if len(held) - flat.place(cut) > self._finder.most_bytes:  # line breaks without end
            cut = len(flat.data)
        place = flat.place(cut)
        self._held = held[place:]
        return replace_spans(held[:place], flat.places(span for span in spans if span[1] <= cut))

    def end(self) -> bytes:
        """The rest."""
        held, self._held = self._held, b""
        return self._finder.redact(held) if held and self._finder is not None else held
