"""Our messages as the dictionaries that engines and plugins read, and back. Pure.

What comes back unchanged is the message it was made of, with everything that the dictionary did not show. The rest is
new, and is made to fit in: engines cut where they like, so what hangs loose at a cut is dropped, and the sides take
turns. What no cut explains is `Illegal`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, cast

import msgspec

from talaria.model.ids import CallId
from talaria.model.messages import Assistant, Context, Image, Message, Text, ToolCall, ToolResult, User, user
from talaria.model.transcripts import transcript_problems

IMAGE = "[An image is here.]"
LEFT_OUT = user("[What was said before this was left out to make room.]", author="host")


class Illegal(Exception):
    """`str()` of it says what is wrong with a transcript."""


def as_dicts(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """New ones each time: whoever gets them may change them."""
    return [_as_dict(message) for message in messages]


def from_dicts(dicts: object, before: Sequence[Message]) -> tuple[Message, ...]:
    """`before` is what they were made of. Raises `Illegal` for what no endpoint would take."""
    if not isinstance(dicts, list | tuple):
        raise Illegal(f"it returned {type(dicts).__name__} in place of a list of messages")
    is_open = not (before and isinstance(before[-1], Assistant))
    read = list(_read(cast("Sequence[object]", dicts), before))
    messages = tuple(_placed(_mended(read)))
    problems = transcript_problems(messages, is_idle=not is_open)
    if is_open and (not messages or isinstance(messages[-1], Assistant)):
        problems.append("there is nothing to answer any more")
    if problems:
        raise Illegal("; ".join(problems))
    return messages


def question(dicts: Iterable[Mapping[str, Any]]) -> tuple[str, tuple[Message, ...]]:
    """What somebody wants to ask a model: the system prompt, and the conversation. Raises `Illegal`."""
    given = list(dicts)
    system = [_text(one.get("content")) for one in given if one.get("role") == "system"]
    said = [_new(one, {}, ()) for one in given if one.get("role") != "system"]
    messages = tuple(_placed(message for message in said if message is not None))
    if not messages or isinstance(messages[-1], Assistant):
        raise Illegal("there is nothing to answer")
    return "\n\n".join(system), messages


def _as_dict(message: Message) -> dict[str, Any]:
    match message:
        case User():
            return {"role": "user", "content": _content(message)}
        case Assistant():
            shown: dict[str, Any] = {"role": "assistant", "content": message.text}
            if message.calls:
                shown["tool_calls"] = [_call(call) for call in message.calls]
            return shown
        case ToolResult():
            return {"role": "tool", "tool_call_id": message.call_id, "name": message.name, "content": message.text}


def _content(message: User) -> str:
    """As text: many engines know nothing else, and a message that comes back as it was still has its images."""
    return "\n".join(IMAGE if isinstance(part, Image) else part.text for part in message.parts)


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


@dataclass(frozen=True, slots=True)
class _Read:
    message: Message
    is_old: bool
    """It is one of those before, as it was."""


def _read(dicts: Sequence[object], before: Sequence[Message]) -> Iterator[_Read]:
    """In the order given; each message of `before` at most once, and only forwards."""
    places: dict[str, list[int]] = {}
    for place, message in enumerate(before):
        places.setdefault(_fingerprint(_as_dict(message)), []).append(place)
    last = -1
    names: dict[str, str] = {}
    for given in dicts:
        if not isinstance(given, Mapping):
            raise Illegal(f"a message is a {type(given).__name__}")
        shown = cast("Mapping[str, Any]", given)
        place = next((place for place in places.get(_fingerprint(shown), ()) if place > last), None)
        message = _new(shown, names, before[last + 1 :]) if place is None else before[place]
        last = last if place is None else place
        if isinstance(message, Assistant):
            names.update((call.id, call.name) for call in message.calls)
        if message is not None:
            yield _Read(message, is_old=place is not None)


def _fingerprint(shown: Mapping[str, Any]) -> str:
    """What of a dictionary is the message; engines add keys of their own."""
    kept: list[Any] = [shown.get(key) or "" for key in ("role", "content", "tool_calls", "tool_call_id")]
    return json.dumps(kept, sort_keys=True, default=repr)


def _new(shown: Mapping[str, Any], names: Mapping[str, str], rest: Sequence[Message]) -> Message | None:
    """None: it says nothing. `rest` is what it may be a longer form of."""
    text = _text(shown.get("content"))
    match shown.get("role"):
        case "user":
            return _longer(text, rest) or (user(text, author="host") if text else None)
        case "system":
            return user(text, author="host") if text else None
        case "assistant":
            calls = tuple(_new_call(call) for call in shown.get("tool_calls") or ())
            parts = (*((Text(text),) if text else ()), *calls)
            return Assistant(parts, "calls" if calls else "end") if parts else None
        case "tool":
            id = str(shown.get("tool_call_id") or "")
            return ToolResult(CallId(id), names.get(id, str(shown.get("name") or "")), text or "-")
        case role:
            raise Illegal(f"a message has the role {role!r}")


def _longer(text: str, rest: Sequence[Message]) -> User | None:
    """The person's next message, if that is how it begins: some engines write a note behind it."""
    said = next((message for message in rest if isinstance(message, User) and message.author == "person"), None)
    begins = "" if said is None else _content(said)
    if said is None or not begins or not text.startswith(begins):
        return None
    return User((*said.parts, Context(text.removeprefix(begins).strip() or "-")), "person")


def _new_call(call: Any) -> ToolCall:
    try:
        function = call["function"]
        arguments = function.get("arguments") or "{}"
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return ToolCall(CallId(str(call["id"])), str(function["name"]), written)
    except (KeyError, TypeError, AttributeError) as fault:
        raise Illegal("a tool call is not of the usual form") from fault


def _text(content: object) -> str:
    if isinstance(content, list):
        parts = [cast("Mapping[str, Any]", part) for part in cast("list[object]", content) if isinstance(part, Mapping)]
        return _encodable("\n".join(str(part.get("text") or "") for part in parts)).strip()
    return _encodable(str(content or ""))


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _mended(read: Sequence[_Read]) -> Iterator[Message]:
    """Without what a cut has left loose: results whose calls were cut off right before them, calls whose results were
    cut off right behind."""
    missing: list[CallId] = []
    is_behind_cut = True
    for index, one in enumerate(read):
        message = one.message
        if isinstance(message, ToolResult):
            if message.call_id in missing:
                missing.remove(message.call_id)
            elif one.is_old and is_behind_cut:
                continue
        elif isinstance(message, Assistant) and message.calls:
            answered = _answered(read[index + 1 :])
            follows = read[index + 1 + len(answered)] if index + 1 + len(answered) < len(read) else None
            if one.is_old and follows is not None and not follows.is_old:
                message = _with_calls(message, answered)
            missing = [call.id for call in message.calls] if message is not None else []
        is_behind_cut = not one.is_old
        if message is not None:
            yield message


def _answered(following: Sequence[_Read]) -> set[CallId]:
    results = takewhile(lambda one: isinstance(one.message, ToolResult), following)
    return {one.message.call_id for one in results if isinstance(one.message, ToolResult)}


def _with_calls(answer: Assistant, kept: AbstractSet[CallId]) -> Assistant | None:
    parts = tuple(part for part in answer.parts if not isinstance(part, ToolCall) or part.id in kept)
    if not any(isinstance(part, ToolCall) for part in parts):
        return Assistant((Text(answer.text),)) if answer.text else None
    return msgspec.structs.replace(answer, parts=parts)


def _placed(messages: Iterable[Message]) -> Iterator[Message]:
    """So that the sides take turns, wherever an engine has cut and whatever it has put in."""
    before: Message | None = None
    for message in messages:
        if isinstance(before, User) and isinstance(message, User) and message.author != "steering":
            before = _joined(before, message)
            continue
        if before is not None:
            yield before
        if isinstance(message, Assistant) and (before is None or isinstance(before, Assistant)):
            yield LEFT_OUT
        before = message
    if before is not None:
        yield before


def _joined(before: User, message: User) -> User:
    """One message of the person, if either is; a note becomes what the host adds to it."""
    if before.author == message.author:
        return msgspec.structs.replace(before, parts=(*before.parts, *message.parts))
    return User((*_added(before), *_added(message)), "person")


def _added(message: User) -> Iterator[Text | Context | Image]:
    for part in message.parts:
        yield Context(part.text) if message.author == "host" and isinstance(part, Text) else part
