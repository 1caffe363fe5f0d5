"""What endpoints demand of a conversation. An empty list of problems means: they would take it."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from talaria.core.dialect import transcript_problems

__all__ = ["chat_problems", "messages_problems", "responses_problems", "transcript_problems"]


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


def responses_problems(body: dict[str, Any]) -> list[str]:
    """An OpenAI Responses request: each call has its one output behind it, and there is something to answer."""
    items: Sequence[dict[str, Any]] = body["input"]
    problems: list[str] = []
    missing: set[str] = set()
    for item in items:
        match item.get("type", "message"):
            case "function_call":
                missing.add(item["call_id"])
            case "function_call_output" if item["call_id"] in missing:
                missing.remove(item["call_id"])
            case "function_call_output":
                problems.append(f"output {item['call_id']} answers no call")
            case _ if missing and item.get("role") == "user":
                problems.append(f"calls without output: {sorted(missing)}")
            case _:
                pass
    if missing:
        problems.append(f"calls without output: {sorted(missing)}")
    if items[-1].get("role") == "assistant" or items[-1].get("type") == "function_call":
        problems.append("nothing to answer")
    return problems


def messages_problems(body: dict[str, Any]) -> list[str]:
    """An Anthropic Messages request: sides take turns, the person's first, and results follow their calls at once."""
    messages: Sequence[dict[str, Any]] = body["messages"]
    problems = [
        f"{message['role']} where the other side is due"
        for place, message in enumerate(messages)
        if message["role"] != ("user", "assistant")[place % 2]
    ]
    wanted: list[str] = []
    for message in messages:
        given = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
        if sorted(given) != sorted(wanted):
            problems.append(f"results {given} where {wanted} are due")
        wanted = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        if not message["content"]:
            problems.append("a message without content")
    if wanted or messages[-1]["role"] != "user":
        problems.append("nothing to answer")
    return problems
