"""Rows → exchanges: a person's message and all that was done for it, legal on every wire. Pure.

Whatever the rows are, each exchange opens with a user message, every call has exactly one result right behind it, and
the last word is an answer. What is missing is said to be missing; what has no place is kept as a note.

What one row says: text, pictures and calls out of the forms in which Hermes has kept them. Pure; never refuses.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, cast

import msgspec

from talaria.compat.hermes_home.hermes_database import MessageRow, clean_text
from talaria.core.ids import CallId
from talaria.core.messages import (
    Assistant,
    AssistantPart,
    Context,
    Disposition,
    Image,
    Message,
    StopReason,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    User,
    UserPart,
)

_STRUCTURED = ("\0json:", "\1json:")
"""How content begins that is not plain text."""
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")

Json = Any


class ImportedCall(msgspec.Struct, frozen=True):
    """A call as the row has it; its id may be missing, or used before."""

    id: str
    name: str
    arguments: str


def parts(row: MessageRow) -> tuple[Text | Image, ...]:
    """Without parts that say nothing."""
    content = row.content or ""
    found = map(_part, _to_list(_decode_structured(content) if content.startswith(_STRUCTURED) else content))
    return tuple(part for part in found if not isinstance(part, Text) or part.text.strip())


def text(row: MessageRow) -> str:
    """Pictures are only mentioned."""
    return "\n".join(part.text if isinstance(part, Text) else "[image]" for part in parts(row))


def calls(row: MessageRow) -> list[ImportedCall]:
    found = _decode_json(row.calls)
    if isinstance(found, str):  # encoded twice
        found = _decode_json(found)
    return [_read_call(cast("dict[str, Json]", item)) for item in _to_list(found) if isinstance(item, dict)]


def _read_call(item: dict[str, Json]) -> ImportedCall:
    inner: Json = item.get("function")
    function = cast("dict[str, Json]", inner) if isinstance(inner, dict) else item
    id = _word(item.get("id")) or _word(item.get("call_id"))
    return ImportedCall(id, _word(function.get("name")) or "unknown", _arguments(function.get("arguments")))


def _arguments(given: Json) -> str:
    if isinstance(given, str):
        return clean_text(given)
    return "{}" if given is None else _as_json(given)


def _word(value: Json) -> str:
    return clean_text(value).strip() if isinstance(value, str) else ""


def _decode_structured(content: str) -> Json:
    """What cannot be decoded is taken for text."""
    written = content[len(_STRUCTURED[0]) :]
    found = _decode_json(written)
    return written if found is None else found


def _decode_json(text: str) -> Json:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _to_list(value: Json) -> list[Json]:
    """One or several, as it was written."""
    return cast("list[Json]", value) if isinstance(value, list) else [value]


def _part(item: Json) -> Text | Image:
    if isinstance(item, str):
        return Text(clean_text(item))
    if not isinstance(item, dict):
        return Text(_as_json(item))
    fields = cast("dict[str, Json]", item)
    for name in ("text", "text_summary"):
        if isinstance(fields.get(name), str):
            return Text(clean_text(fields[name]))
    return _picture(fields) or Text(_format_mention(fields))


def _picture(fields: dict[str, Json]) -> Image | None:
    """Only what the row itself holds; nothing is fetched."""
    source: Json = fields.get("source")
    if isinstance(source, dict):
        held = cast("dict[str, Json]", source)
        return _image(held.get("media_type"), held.get("data"))
    media_type, _, data = _address(fields).removeprefix("data:").partition(";base64,")
    return _image(media_type, data)


def _image(media_type: Json, data: Json) -> Image | None:
    if media_type not in _PICTURES or not isinstance(data, str) or not data:
        return None
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    return Image(cast("str", media_type), data)


def _address(fields: dict[str, Json]) -> str:
    given: Json = fields.get("image_url")
    found: Json = cast("dict[str, Json]", given).get("url") if isinstance(given, dict) else given
    return found if isinstance(found, str) else ""


def _format_mention(fields: dict[str, Json]) -> str:
    address = _address(fields)
    if address.startswith(("http://", "https://")):
        return f"[image: {clean_text(address)}]"
    return f"[{_word(fields.get('type')) or 'something that is not text'}]"


def _as_json(value: Json) -> str:
    try:
        return clean_text(json.dumps(value, ensure_ascii=False))
    except (ValueError, RecursionError):
        return ""


NO_BEGINNING = "[The beginning of this conversation was not kept.]"
NO_WORDS = "[An empty message.]"
NO_ANSWER = "[No answer to this was kept.]"
NO_RESULT = "[The result of this call was not kept: its effect is unknown.]"

_ROLES = ("user", "assistant", "tool")
_REVIEWS = (
    "Review the conversation above and update the skill library",
    "Review the conversation above and consider saving to memory",
)
"""What old versions said to themselves in the person's place; with the answer it is none of the conversation."""
_STOPS: dict[str, StopReason] = {"length": "length", "content_filter": "refused"}


@dataclass(frozen=True, slots=True)
class ImportedExchange:
    id: int
    """Of the row that it began with."""
    said: tuple[tuple[float, Message], ...]
    notes: tuple[str, ...] = ()
    is_answered: bool = True


def exchanges(rows: Iterable[MessageRow]) -> list[ImportedExchange]:
    """Times never go back: a row without one, or with an earlier one, happened when the row before it did."""
    ids, told = _CallIds(), list[ImportedExchange]()
    now = 0.0
    for group in _groups(_select_spoken(rows)):
        exchange = _Growing(ids, now).make_exchange(group)
        now = exchange.said[-1][0]
        told.append(exchange)
    return told


def _select_spoken(rows: Iterable[MessageRow]) -> Iterator[MessageRow]:
    is_after_review = False
    for row in rows:
        if row.role not in _ROLES and not row.is_summary:
            continue
        is_review = row.role == "user" and (row.content or "").lstrip().startswith(_REVIEWS)
        if not is_review and not (is_after_review and row.role == "assistant"):
            yield row
        is_after_review = is_review


@dataclass(slots=True)
class _Group:
    opening: list[MessageRow] = field(default_factory=list[MessageRow])
    """What the person said, and what was put before it."""
    work: list[MessageRow] = field(default_factory=list[MessageRow])

    @property
    def rows(self) -> list[MessageRow]:
        return [*self.opening, *self.work]

    @property
    def is_asked(self) -> bool:
        """The person has spoken: what they say next is another message."""
        return any(row.role == "user" and not row.is_summary and not row.is_observed for row in self.opening)


def _groups(rows: Iterable[MessageRow]) -> Iterator[_Group]:
    group = _Group()
    for row in rows:
        if row.role != "user" and not row.is_summary:
            group.work.append(row)
            continue
        if group.work or group.is_asked:
            yield group
            group = _Group()
        group.opening.append(row)
    if group.rows:
        yield group


class _CallIds:
    """No id is used twice in a conversation: some models count anew with every answer."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def fresh(self, wanted: str) -> CallId:
        name, number = wanted or "call", 1
        while (id := name if number == 1 and wanted else f"{name}_{number}") in self._used:
            number += 1
        self._used.add(id)
        return CallId(id)


class _Growing:
    """One exchange while its rows are read."""

    def __init__(self, ids: _CallIds, now: float) -> None:
        self._ids = ids
        self._now = now
        self._said: list[tuple[float, Message]] = []
        self._notes: list[str] = []
        self._held: tuple[AssistantPart, ...] = ()
        """Of answers without calls, until it is known what comes behind them."""
        self._stop: StopReason = "end"

    def make_exchange(self, group: _Group) -> ImportedExchange:
        self._open(group.opening)
        for row, results in _rounds(group.work):
            self._round(row, results)
        is_answered = _has_text(self._held)
        parts = self._held if is_answered else (*self._held, Text(NO_ANSWER))
        self._say(Assistant(parts, self._stop if is_answered else "interrupted"))
        return ImportedExchange(group.rows[0].id, tuple(self._said), tuple(self._notes), is_answered)

    def _open(self, opening: Sequence[MessageRow]) -> None:
        said: list[UserPart] = []
        for row in opening:
            self._pass(row)
            said.extend([Context(text(row))] if row.is_summary else parts(row) or [Text(NO_WORDS)])
        is_from_person = any(not isinstance(part, Context) for part in said)
        self._say(User(tuple(said) or (Context(NO_BEGINNING),), "person" if is_from_person else "host"))

    def _round(self, row: MessageRow | None, results: Sequence[MessageRow]) -> None:
        asked: list[ImportedCall] = []
        if row is not None:
            self._pass(row)
            asked = calls(row)
            self._hold(row)
        if not asked:
            self._notes.extend(_note(result) for result in results)
            return
        named = [(one, ToolCall(self._ids.fresh(one.id), one.name, one.arguments)) for one in asked]
        self._say(Assistant((*self._held, *(call for _, call in named)), "calls"))
        self._held = ()
        self._answer(named, list(results))

    def _hold(self, row: MessageRow) -> None:
        said, thought = text(row), clean_text(row.reasoning).strip()
        gap = "\n\n" if said and _has_text(self._held) else ""
        thinking = (Thinking(thought),) if thought else ()
        self._held += (*thinking, Text(gap + said)) if said else thinking
        self._stop = _STOPS.get(row.finish, "end")

    def _answer(self, named: Sequence[tuple[ImportedCall, ToolCall]], results: list[MessageRow]) -> None:
        for asked, call in named:
            row = _take_result(results, asked)
            if row is not None:
                self._pass(row)
            self._say(_result(call, row))
        self._notes.extend(_note(row) for row in results)

    def _pass(self, row: MessageRow) -> None:
        self._now = max(self._now, row.at or 0.0)

    def _say(self, message: Message) -> None:
        self._said.append((self._now, message))


def _rounds(work: Iterable[MessageRow]) -> Iterator[tuple[MessageRow | None, list[MessageRow]]]:
    """Each answer with the results behind it; None: results that stand before every answer."""
    answer: MessageRow | None = None
    results: list[MessageRow] = []
    for row in work:
        if row.role == "tool":
            results.append(row)
            continue
        if answer is not None or results:
            yield answer, results
        answer, results = row, []
    if answer is not None or results:
        yield answer, results


def _take_result(results: list[MessageRow], asked: ImportedCall) -> MessageRow | None:
    """The result of this call, out of `results`: by its id, else the first of the same tool that has none."""
    same = (row for row in results if asked.id and clean_text(row.call_id).strip() == asked.id)
    nobodys = (row for row in results if not row.call_id.strip() and clean_text(row.tool).strip() in ("", asked.name))
    found = next(chain(same, nobodys), None)
    if found is not None:
        results.remove(found)
    return found


def _result(call: ToolCall, row: MessageRow | None) -> ToolResult:
    if row is None:
        return ToolResult(call.id, call.name, NO_RESULT, is_error=True, disposition="unknown")
    if row.effect in ("none", "unknown"):
        disposition = cast("Disposition", row.effect)
        return ToolResult(call.id, call.name, text(row), is_error=True, disposition=disposition)
    return ToolResult(call.id, call.name, text(row))


def _note(row: MessageRow) -> str:
    return f"A result whose call was not kept ({clean_text(row.tool) or 'unknown tool'}): {text(row)}"


def _has_text(parts: Iterable[AssistantPart]) -> bool:
    return any(isinstance(part, Text) for part in parts)
