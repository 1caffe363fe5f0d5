"""What endpoints demand of a conversation. An empty list of problems means: they would take it."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from talaria.model.messages import Assistant, Message, ToolResult, User


def transcript_problems(messages: Iterable[Message], *, is_idle: bool = True) -> list[str]:
    """Every call has exactly one result, in order, right behind it; people and model take turns; nothing is empty;
    the host does not repeat itself.

    `is_idle`: no turn is running, so the last word must be the assistant's.
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


def chat_problems(body: dict[str, Any]) -> list[str]:
    """A chat-completions request as strict servers judge it."""
    messages: Sequence[dict[str, Any]] = body["messages"]
    problems = [f"role {message['role']}" for message in messages if message["role"] not in _ROLES]
    if messages[0]["role"] != "system" or any(message["role"] == "system" for message in messages[1:]):
        problems.append("the system message must be the first and only one")
    missing: list[str] = []
    for message in messages[1:]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in missing:
                problems.append(f"tool message {message['tool_call_id']} answers no call")
            else:
                missing.remove(message["tool_call_id"])
            continue
        if missing:
            problems.append(f"calls without tool message: {missing}")
        missing = [call["id"] for call in message.get("tool_calls") or ()]
        problems.extend(_argument_problems(message))
        if message["role"] == "assistant" and not message.get("tool_calls") and not message.get("content"):
            problems.append("an assistant message without content")
    if missing:
        problems.append(f"calls without tool message: {missing}")
    if messages[-1]["role"] not in ("user", "tool"):
        problems.append("nothing to answer")
    return problems


_ROLES = frozenset({"system", "user", "assistant", "tool"})


def _argument_problems(message: dict[str, Any]) -> Iterable[str]:
    for call in message.get("tool_calls") or ():
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            yield f"arguments of {call['id']} are not a JSON object"
