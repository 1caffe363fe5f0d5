"""Rows → exchanges: a person's message and everything that was done for it, valid on every wire. Pure; never refuses.

Whatever the rows are, each exchange opens with a user message, every call is followed by exactly one result, and the
last message is an answer. What is missing is marked as missing; what belongs nowhere is kept as a note.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
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

NO_BEGINNING = "[The beginning of this conversation was not kept.]"
NO_WORDS = "[An empty message.]"
NO_ANSWER = "[No answer to this was kept.]"
NO_RESULT = "[The result of this call was not kept: its effect is unknown.]"

_ROLES = ("user", "assistant", "tool")
_REVIEWS = (
    "Review the conversation above and update the skill library",
    "Review the conversation above and consider saving to memory",
)
"""What old versions told themselves in the person's name; neither this nor the answer is part of the conversation."""
_STOPS: dict[str, StopReason] = {"length": "length", "content_filter": "refused"}
_STRUCTURED = ("\0json:", "\1json:")
"""How content begins that is not plain text."""
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")

Json = Any


# What one row says.


class ImportedCall(msgspec.Struct, frozen=True):
    """A call as the row has it; its id may be missing, or used before."""

    id: str
    name: str
    arguments: str


def parts(row: MessageRow) -> tuple[Text | Image, ...]:
    """Without empty texts."""
    written: Json = row.content or ""
    if written.startswith(_STRUCTURED):
        encoded = written[len(_STRUCTURED[0]) :]
        decoded = _decode_json(encoded)
        written = encoded if decoded is None else decoded
    found = [_read_part(item) for item in _to_list(written)]
    return tuple(part for part in found if not isinstance(part, Text) or part.text.strip())


def text(row: MessageRow) -> str:
    """Pictures are only mentioned."""
    return "\n".join(part.text if isinstance(part, Text) else "[image]" for part in parts(row))


def calls(row: MessageRow) -> list[ImportedCall]:
    found = _decode_json(row.calls)
    if isinstance(found, str):  # encoded twice
        found = _decode_json(found)
    named: list[ImportedCall] = []
    for item in _to_list(found):
        if not isinstance(item, dict):
            continue
        call = cast("dict[str, Json]", item)
        inner: Json = call.get("function")
        function = cast("dict[str, Json]", inner) if isinstance(inner, dict) else call
        given: Json = function.get("arguments")
        given = {} if given is None else given
        arguments = clean_text(given) if isinstance(given, str) else _as_json(given)
        id = _word(call.get("id")) or _word(call.get("call_id"))
        named.append(ImportedCall(id, _word(function.get("name")) or "unknown", arguments))
    return named


def _read_part(item: Json) -> Text | Image:
    """A picture only if the row itself holds it; nothing is fetched."""
    if isinstance(item, str):
        return Text(clean_text(item))
    if not isinstance(item, dict):
        return Text(_as_json(item))
    fields = cast("dict[str, Json]", item)
    for name in ("text", "text_summary"):
        if isinstance(fields.get(name), str):
            return Text(clean_text(fields[name]))
    linked: Json = fields.get("image_url")
    url: Json = cast("dict[str, Json]", linked).get("url") if isinstance(linked, dict) else linked
    address: str = url if isinstance(url, str) else ""
    media_type, _, data = cast("tuple[Json, str, Json]", address.removeprefix("data:").partition(";base64,"))
    source: Json = fields.get("source")
    if isinstance(source, dict):
        held = cast("dict[str, Json]", source)
        media_type, data = held.get("media_type"), held.get("data")
    if media_type in _PICTURES and isinstance(data, str) and data:
        with suppress(ValueError):
            base64.b64decode(data, validate=True)
            return Image(cast("str", media_type), data)
    if address.startswith(("http://", "https://")):
        return Text(f"[image: {clean_text(address)}]")
    return Text(f"[{_word(fields.get('type')) or 'something that is not text'}]")


def _word(value: Json) -> str:
    return clean_text(value).strip() if isinstance(value, str) else ""


def _decode_json(text: str) -> Json:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _as_json(value: Json) -> str:
    try:
        return clean_text(json.dumps(value, ensure_ascii=False))
    except (ValueError, RecursionError):
        return ""


def _to_list(value: Json) -> list[Json]:
    return cast("list[Json]", value) if isinstance(value, list) else [value]


# What the rows of a conversation say together.


@dataclass(frozen=True, slots=True)
class ImportedExchange:
    id: int
    """Of its first row."""
    said: tuple[tuple[float, Message], ...]
    notes: tuple[str, ...] = ()
    is_answered: bool = True


def exchanges(rows: Iterable[MessageRow]) -> list[ImportedExchange]:
    """Times never go backwards: a row without a time, or with an earlier one, gets that of the row before it."""
    ids, made = _CallIds(), list[ImportedExchange]()
    now = 0.0
    for group in _groups(rows):
        exchange = _make_exchange(group, ids, now)
        now = exchange.said[-1][0]
        made.append(exchange)
    return made


@dataclass(slots=True)
class _Round:
    answer: MessageRow | None
    """None: the results came before any answer."""
    results: list[MessageRow] = field(default_factory=list[MessageRow])


@dataclass(slots=True)
class _Group:
    id: int
    """Of its first row."""
    opening: list[MessageRow] = field(default_factory=list[MessageRow])
    """What the person said, and what was put before it."""
    rounds: list[_Round] = field(default_factory=list[_Round])

    @property
    def is_complete(self) -> bool:
        """The next message of a person starts another group."""
        has_asked = any(row.role == "user" and not row.is_summary and not row.is_observed for row in self.opening)
        return bool(self.rounds) or has_asked


def _groups(rows: Iterable[MessageRow]) -> Iterator[_Group]:
    """The rows of each exchange; rows that are not part of the conversation are skipped."""
    group: _Group | None = None
    is_after_review = False
    for row in rows:
        if row.role not in _ROLES and not row.is_summary:
            continue
        is_review = row.role == "user" and (row.content or "").lstrip().startswith(_REVIEWS)
        is_reviewing = is_review or (is_after_review and row.role == "assistant")
        is_after_review = is_review
        if is_reviewing:
            continue
        is_opening = row.role == "user" or row.is_summary
        if group is not None and is_opening and group.is_complete:
            yield group
            group = None
        if group is None:
            group = _Group(row.id)
        if is_opening:
            group.opening.append(row)
        elif row.role != "tool":
            group.rounds.append(_Round(row))
        elif group.rounds:
            group.rounds[-1].results.append(row)
        else:
            group.rounds.append(_Round(None, [row]))
    if group is not None:
        yield group


class _CallIds:
    """No id is used twice in a conversation: some models start counting again with every answer."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def fresh(self, wanted: str) -> CallId:
        name, number = wanted or "call", 1
        while (id := name if number == 1 and wanted else f"{name}_{number}") in self._used:
            number += 1
        self._used.add(id)
        return CallId(id)


def _make_exchange(group: _Group, ids: _CallIds, now: float) -> ImportedExchange:
    said: list[tuple[float, Message]] = []
    notes: list[str] = []
    opening: list[UserPart] = []
    for row in group.opening:
        now = max(now, row.at or 0.0)
        opening.extend([Context(text(row))] if row.is_summary else parts(row) or [Text(NO_WORDS)])
    is_from_person = any(not isinstance(part, Context) for part in opening)
    said.append((now, User(tuple(opening) or (Context(NO_BEGINNING),), "person" if is_from_person else "host")))
    held: tuple[AssistantPart, ...] = ()  # of answers without calls, until it is known what follows them
    stop: StopReason = "end"
    for one in group.rounds:
        asked: list[tuple[ImportedCall, ToolCall]] = []
        if one.answer is not None:
            now = max(now, one.answer.at or 0.0)
            asked = [(call, ToolCall(ids.fresh(call.id), call.name, call.arguments)) for call in calls(one.answer)]
            answer, thought = text(one.answer), clean_text(one.answer.reasoning).strip()
            gap = "\n\n" if _has_text(held) else ""
            held += (Thinking(thought),) if thought else ()
            held += (Text(gap + answer),) if answer else ()
            stop = _STOPS.get(one.answer.finish, "end")
        if asked:
            said.append((now, Assistant((*held, *(call for _, call in asked)), "calls")))
            held = ()
        for wanted, call in asked:
            row = _take_result(one.results, wanted)
            if row is None:
                result = ToolResult(call.id, call.name, NO_RESULT, is_error=True, disposition="unknown")
            elif row.effect in ("none", "unknown"):
                disposition = cast("Disposition", row.effect)
                result = ToolResult(call.id, call.name, text(row), is_error=True, disposition=disposition)
            else:
                result = ToolResult(call.id, call.name, text(row))
            now = max(now, row.at or 0.0) if row is not None else now
            said.append((now, result))
        notes.extend(
            f"A result whose call was not kept ({clean_text(row.tool) or 'unknown tool'}): {text(row)}"
            for row in one.results
        )
    is_answered = _has_text(held)
    ending = Assistant(held, stop) if is_answered else Assistant((*held, Text(NO_ANSWER)), "interrupted")
    said.append((now, ending))
    return ImportedExchange(group.id, tuple(said), tuple(notes), is_answered)


def _take_result(results: list[MessageRow], asked: ImportedCall) -> MessageRow | None:
    """Removes the result of this call from `results`: by its id, else the first of the same tool without an id."""
    same = (row for row in results if asked.id and clean_text(row.call_id).strip() == asked.id)
    names = ("", asked.name)
    without_id = (row for row in results if not row.call_id.strip() and clean_text(row.tool).strip() in names)
    found = next(chain(same, without_id), None)
    if found is not None:
        results.remove(found)
    return found


def _has_text(parts: Iterable[AssistantPart]) -> bool:
    return any(isinstance(part, Text) for part in parts)
