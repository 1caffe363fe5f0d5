"""Our messages as the dictionaries that engines and plugins read, and back; and what endpoints require of a
conversation. Pure.

A dictionary that comes back unchanged is the message it was made from, with everything that it did not show. The rest
is new and made to fit: engines cut where they like, so calls and results that a cut separates are dropped, the sides
alternate, and there is something to answer. What no cut explains raises `IllegalTranscript`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import reduce
from itertools import groupby, takewhile
from typing import Any, cast

import msgspec

from talaria.core.ids import CallId
from talaria.core.messages import Assistant, Context, Image, Message, Text, ToolCall, ToolResult, User, user
from talaria.core.pictures import without_images


def transcript_problems(messages: Iterable[Message], *, is_idle: bool = True) -> list[str]:
    """Every call has exactly one result, in order, right after it; people and model take turns;
    nothing is empty; the host does not repeat itself.

    `is_idle`: no turn is running, so the last message must be the assistant's.
    """
    problems: list[str] = []
    missing: list[str] = []
    known: set[str] = set()
    before: Message | None = None
    for message in messages:
        match message:
            case ToolResult():
                if isinstance(before, Assistant) and before.stop == "interrupted":
                    problems.append("a result behind an interrupted answer")
                if not missing or missing[0] != message.call_id:
                    problems.append(f"result of {message.call_id} where {missing[:1] or 'none'} is due")
                else:
                    missing.pop(0)
            case User() | Assistant():
                if missing:
                    problems.append(f"calls without result: {missing}")
                missing = []
                problems.extend(_speaker_problems(message, before, known))
                if isinstance(message, Assistant):
                    missing = [call.id for call in message.calls]
                    known.update(missing)
        before = message
    if missing:
        problems.append(f"calls without result at the end: {missing}")
    if is_idle and before is not None and not (isinstance(before, Assistant) and not before.calls):
        problems.append("the last word is not an answer")
    return problems


def _speaker_problems(message: User | Assistant, before: Message | None, known: set[str]) -> Iterable[str]:
    if isinstance(message, User):
        if isinstance(before, User) and message.author == "person":
            yield "two messages of the person without an answer between them"
        if isinstance(before, User) and message.author == before.author == "host":
            yield "two notes of the host in a row"
        return
    if before is None:
        yield "the assistant speaks first"
    if isinstance(before, Assistant):
        yield "two answers in a row"
    if not message.text and not message.calls:
        yield "an empty answer"
    ids = [call.id for call in message.calls]
    if len(set(ids)) != len(ids) or known & set(ids):
        yield f"a call id is used twice: {ids}"


IMAGE = "[An image is here.]"
GO_ON = user("[Continue with the last request.]", author="host")
LEFT_OUT = user("[Earlier messages were left out to make room.]", author="host")


class IllegalTranscript(Exception):
    """`str()` says what is wrong with the transcript."""


def to_dicts(messages: Iterable[Message], *, with_context: bool = True) -> list[dict[str, Any]]:
    """New dictionaries each time, which the caller may change. `with_context`: include what the host added."""
    return [_as_dict(message, with_context=with_context) for message in messages]


def from_dicts(dicts: object, before: Sequence[Message]) -> tuple[Message, ...]:
    """`before`: the messages they were made from. Raises `IllegalTranscript` for what no endpoint would accept."""
    if not isinstance(dicts, list | tuple):
        raise IllegalTranscript(f"it returned {type(dicts).__name__} instead of a list of messages")
    is_idle = bool(before) and isinstance(before[-1], Assistant)
    known = {call.id for message in before if isinstance(message, Assistant) for call in message.calls}
    messages = list(
        _alternate_sides(_drop_loose_ends(list(_read_dicts(cast("Sequence[object]", dicts), before)), known))
    )
    made = tuple(_attach_last_note(messages) if is_idle else _end_with_request(messages, before))
    problems = transcript_problems(made, is_idle=is_idle)
    if problems:
        raise IllegalTranscript("; ".join(problems))
    return made


def parse_question(dicts: Iterable[Mapping[str, Any]]) -> tuple[str, tuple[Message, ...]]:
    """A question to a model: the system prompt, and the conversation. Raises `IllegalTranscript`."""
    given = list(dicts)
    system = [_text(one.get("content")) for one in given if one.get("role") == "system"]
    said = [_new(one, {}) for one in given if one.get("role") != "system"]
    messages = tuple(_alternate_sides(message for message in said if message is not None))
    if not messages or isinstance(messages[-1], Assistant):
        raise IllegalTranscript("there is nothing to answer")
    return "\n\n".join(system), messages


def _as_dict(message: Message, *, with_context: bool = True) -> dict[str, Any]:
    match message:
        case User():
            return {"role": "user", "content": _content(message, with_context=with_context)}
        case Assistant():
            shown: dict[str, Any] = {"role": "assistant", "content": message.text}
            if message.calls:
                shown["tool_calls"] = [
                    {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                    for call in message.calls
                ]
            return shown
        case ToolResult():
            content = without_images(message, IMAGE).text
            return {"role": "tool", "tool_call_id": message.call_id, "name": message.name, "content": content}


def _content(message: User, *, with_context: bool = True) -> str:
    """The content as text, because many engines know nothing else; a message that comes back unchanged keeps its
    images."""
    parts = [part for part in message.parts if with_context or not isinstance(part, Context)]
    return "\n".join(IMAGE if isinstance(part, Image) else part.text for part in parts)


def _read_dicts(dicts: Sequence[object], before: Sequence[Message]) -> Iterator[Message]:
    """In the order given."""
    shown: list[Mapping[str, Any]] = []
    for given in dicts:
        if not isinstance(given, Mapping):
            raise IllegalTranscript(f"a message is a {type(given).__name__}, not a dictionary")
        shown.append(cast("Mapping[str, Any]", given))
    places = _places(shown, before)
    last = -1
    names: dict[str, str] = {}
    for one, place in zip(shown, places, strict=True):
        if place is None:
            message = _longer(one, before, last + 1) or _new(one, names)
        else:
            message, last = before[place], place
        if isinstance(message, Assistant):
            names.update((call.id, call.name) for call in message.calls)
        if message is not None:
            yield message


def _places(shown: Sequence[Mapping[str, Any]], before: Sequence[Message]) -> list[int | None]:
    """Which message of `before` each one is: none twice, in order, and the last of equal ones, because engines keep the
    end."""
    known: dict[str, list[int]] = {}
    for place, message in enumerate(before):
        known.setdefault(_fingerprint(_as_dict(message)), []).append(place)
    found: list[int | None] = []
    limit = len(before)
    for one in reversed(shown):
        places = known.get(_fingerprint(one), [])
        while places and places[-1] >= limit:
            places.pop()
        found.append(places.pop() if places else None)
        limit = found[-1] if found[-1] is not None else limit
    return found[::-1]


def _fingerprint(shown: Mapping[str, Any]) -> str:
    """The part of a dictionary that is the message; engines add their own keys."""
    kept: list[Any] = [shown.get(key) or "" for key in ("role", "content", "tool_calls", "tool_call_id")]
    return json.dumps(kept, sort_keys=True, default=repr)


def _new(shown: Mapping[str, Any], names: Mapping[str, str]) -> Message | None:
    """None if the message is empty."""
    text = _text(shown.get("content"))
    match shown.get("role"):
        case "user" | "system" | "developer":
            return user(text, author="host") if text else None
        case "assistant":
            calls = tuple(_new_call(call) for call in shown.get("tool_calls") or ())
            parts = (*((Text(text),) if text else ()), *calls)
            return Assistant(parts, "calls" if calls else "end") if parts else None
        case "tool":
            id = _encodable(shown.get("tool_call_id") or "")
            return ToolResult(CallId(id), names.get(id) or _encodable(shown.get("name") or ""), text or "-")
        case role:
            raise IllegalTranscript(f"a message has the role {role!r}")


def _longer(shown: Mapping[str, Any], before: Sequence[Message], start: int) -> User | None:
    """The person's next message from `start`, if this text begins with it: some engines append a note."""
    if shown.get("role") != "user":
        return None
    rest = (before[place] for place in range(start, len(before)))
    said = next((message for message in rest if isinstance(message, User) and message.author == "person"), None)
    text, begins = _text(shown.get("content")), "" if said is None else _content(said)
    if said is None or not begins or not text.startswith(begins):
        return None
    return User((*said.parts, Context(text.removeprefix(begins).strip() or "-")), "person")


def _new_call(call: Any) -> ToolCall:
    try:
        function = call["function"]
        arguments = function.get("arguments") or "{}"
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return ToolCall(CallId(_encodable(call["id"])), _encodable(function["name"]), _encodable(written))
    except (KeyError, TypeError, AttributeError) as fault:
        raise IllegalTranscript("a tool call is malformed") from fault


def _text(content: object) -> str:
    if isinstance(content, list):
        parts = [cast("Mapping[str, Any]", part) for part in cast("list[object]", content) if isinstance(part, Mapping)]
        return _encodable("\n".join(str(part.get("text") or "") for part in parts)).strip()
    return _encodable(content or "")


def _encodable(text: object) -> str:
    return str(text).encode("utf-8", "replace").decode()


def _drop_loose_ends(messages: Sequence[Message], known: AbstractSet[CallId]) -> Iterator[Message]:
    """Without what a cut has separated: results whose call is gone, and calls whose results are. `known`: the calls
    that existed before, because others are not the fault of a cut."""
    missing: set[CallId] = set()
    for index, message in enumerate(messages):
        if isinstance(message, ToolResult):
            if message.call_id in missing or message.call_id not in known:
                missing.discard(message.call_id)
                yield message
            continue
        mended = message
        if isinstance(message, Assistant) and message.calls:
            invented = {call.id for call in message.calls} - known
            following = (messages[place] for place in range(index + 1, len(messages)))
            results = takewhile(lambda message: isinstance(message, ToolResult), following)
            answered = {result.call_id for result in results if isinstance(result, ToolResult)}
            mended = _with_calls(message, answered | invented)
        missing = {call.id for call in mended.calls} if isinstance(mended, Assistant) else set()
        if mended is not None:
            yield mended


def _with_calls(answer: Assistant, kept: AbstractSet[CallId]) -> Assistant | None:
    """The same object if all calls are kept; None if nothing is left."""
    if all(call.id in kept for call in answer.calls):
        return answer
    parts = tuple(part for part in answer.parts if not isinstance(part, ToolCall) or part.id in kept)
    if not any(isinstance(part, ToolCall) for part in parts):
        return Assistant((Text(answer.text),)) if answer.text else None
    return msgspec.structs.replace(answer, parts=parts)


def _end_with_request(messages: Sequence[Message], before: Sequence[Message]) -> Iterator[Message]:
    """For an open turn: the person's request must be there, at the end."""
    yield from messages
    if messages and not isinstance(messages[-1], Assistant):
        return
    asked = [message for message in before if isinstance(message, User) and message.author == "person"]
    yield asked[-1] if asked and asked[-1] not in messages else GO_ON


def _attach_last_note(messages: list[Message]) -> Sequence[Message]:
    """Without an open turn: a note at the end becomes part of the last message from the person's side."""
    *rest, last = messages or [GO_ON]
    place = next((place for place in reversed(range(len(rest))) if isinstance(rest[place], User)), None)
    if not isinstance(last, User) or last.author != "host" or place is None:
        return messages
    carrier = rest[place]
    assert isinstance(carrier, User)  # noqa: S101  (looked for)
    return [*rest[:place], _join(last, carrier), *rest[place + 1 :]]


def _alternate_sides(messages: Iterable[Message]) -> Iterator[Message]:
    """Makes the sides alternate, wherever an engine has cut and whatever it has inserted."""
    before: Message | None = None
    for is_user, run in groupby(messages, lambda message: isinstance(message, User)):
        for message in _merge_side([one for one in run if isinstance(one, User)]) if is_user else run:
            if isinstance(message, Assistant) and (before is None or isinstance(before, Assistant)):
                yield LEFT_OUT
            yield message
            before = message


def _merge_side(run: Sequence[User]) -> Iterator[User]:
    """Merges messages of one side: all up to the person's last message, and adjacent notes."""
    last = max((place for place, message in enumerate(run) if message.author == "person"), default=0)
    before = reduce(_join, run[: last + 1])
    for message in run[last + 1 :]:
        if before.author == message.author == "host":
            before = _join(before, message)
        else:
            yield before
            before = message
    yield before


def _join(before: User, message: User) -> User:
    """One message, the person's if either is; a note becomes an addition by the host."""
    if before.author == message.author:
        return msgspec.structs.replace(before, parts=(*before.parts, *message.parts))
    return User((*_as_context(before), *_as_context(message)), "person")


def _as_context(message: User) -> Iterator[Text | Context | Image]:
    for part in message.parts:
        yield Context(part.text) if message.author == "host" and isinstance(part, Text) else part
