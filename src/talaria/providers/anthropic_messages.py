"""The Anthropic Messages wire."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from talaria.core.entries import Effort
from talaria.core.messages import Assistant, AssistantPart, Context, Image, Message, Text, Thinking, ToolResult, User
from talaria.core.secret import Secret
from talaria.providers import prefix
from talaria.providers.anthropic_messages_stream import MessagesDecoder
from talaria.providers.base import Endpoint, ModelRequest
from talaria.providers.identifiers import fitting
from talaria.providers.repairs import drops_extras, repaired
from talaria.providers.tool_arguments import as_object

DEFAULT_MAX_TOKENS = 8192
MIN_BUDGET_TOKENS = 1024
_BUDGETS: dict[Effort, int] = {"none": 0, "minimal": 1024, "low": 4096, "medium": 10_000, "high": 24_000}
_THINKS_BY_BUDGET = re.compile(r"claude-3|claude-(?:opus|sonnet|haiku)-4(?![-.][6-9])|^(?!.*claude)")
"""Claude up to 4.5, and other vendors' models on this wire. Every later Claude is told an effort, and most refuse a
budget."""

_OAUTH = "sk-ant-oat"
"""How tokens of an OAuth login begin, which are no API keys."""

_encode = msgspec.json.Encoder().encode
_USER = b'{"role":"user","content":['
_ASSISTANT = b'{"role":"assistant","content":['
_THINKING = (b'{"type":"thinking"', b'{"type":"redacted_thinking"')
_EMPTY = "(empty)"
"""Blank text is refused, and so is a message without any block."""


class AnthropicMessages:
    path = "/messages"
    decoder = MessagesDecoder

    def headers(self, key: Secret) -> Mapping[str, str]:
        version = {"anthropic-version": "2023-06-01"}
        if key.reveal().startswith(_OAUTH):
            return {"Authorization": f"Bearer {key.reveal()}", "anthropic-beta": "oauth-2025-04-20", **version}
        return {"x-api-key": key.reveal(), **version} if key else version

    def encode(self, message: Message, origin: str) -> bytes:
        """The message's opening and its blocks, left open: `body` may add the blocks of the next message."""
        match message:
            case User():
                blocks = [_encode(_user_block(part)) for part in message.parts if not _is_blank(part)]
                return _USER + b",".join(blocks or [_text_block(_EMPTY)])
            case Assistant():
                return _ASSISTANT + b",".join(_assistant_blocks(message, origin))
            case ToolResult():
                return _USER + _encode(_tool_result(message))

    def body(self, request: ModelRequest, endpoint: Endpoint, messages: Sequence[bytes]) -> bytes:
        request, endpoint = repaired(request, endpoint)
        marked = _with_marks(messages) if endpoint.caching == "markers" else messages
        return prefix.body(
            _head(request, endpoint), "messages", b"".join(_merged(marked)), _tail(request, endpoint, messages)
        )

    def document(self, body: bytes, endpoint: Endpoint) -> Assistant:
        decoder = MessagesDecoder(endpoint)
        decoder.take_message(body)
        return decoder.finish()


def _merged(messages: Iterable[bytes]) -> Iterator[bytes]:
    """Neighbours of one role become one message: results of a batch and the note behind them belong together."""
    opened = b""
    for message in messages:
        opening = _USER if message.startswith(_USER) else _ASSISTANT
        if opening == opened:
            yield b","
            yield message[len(opening) :]
        else:
            yield b"]}," if opened else b""
            yield message
        opened = opening
    yield b"]}" if opened else b""


def _with_marks(messages: Sequence[bytes]) -> Sequence[bytes]:
    """A mark where this request ends, and one where the request before it ended, to be found however much came since.

    With the system prompt's they are three; four are allowed.
    """
    marked = list(messages)
    for index in islice(_ends(messages), 2):
        marked[index] = prefix.marked(marked[index])
    return marked


def _ends(messages: Sequence[bytes]) -> Iterator[int]:
    """The messages that end a user's, once neighbours are merged; newest first."""
    is_followed = False
    for index in reversed(range(len(messages))):
        is_user = messages[index].startswith(_USER)
        if is_user and not is_followed:
            yield index
        is_followed = is_user


def _head(request: ModelRequest, endpoint: Endpoint) -> dict[str, Any]:
    head: dict[str, Any] = {"model": endpoint.model}
    if request.tools:
        head["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
            for tool in request.tools
        ]
    if request.system and endpoint.caching == "markers":
        head["system"] = [{"type": "text", "text": request.system, "cache_control": prefix.MARK}]
    elif request.system:
        head["system"] = request.system
    return head


def _tail(request: ModelRequest, endpoint: Endpoint, messages: Sequence[bytes]) -> dict[str, Any]:
    max_tokens = _max_tokens(request, endpoint)
    tail: dict[str, Any] = {"max_tokens": max_tokens, "stream": request.is_streaming}
    if endpoint.caching == "automatic":
        tail["cache_control"] = prefix.MARK
    if request.tools and not request.may_call and not drops_extras(request):
        tail["tool_choice"] = {"type": "none"}
    if request.effort in (None, "none"):  # then it does not think
        return tail
    if not _THINKS_BY_BUDGET.search(endpoint.model):
        effort = "low" if request.effort == "minimal" else request.effort
        return tail | {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": effort}}
    budget = min(_BUDGETS[request.effort], max_tokens // 2)
    if budget >= MIN_BUDGET_TOKENS and _may_think(messages):
        tail["thinking"] = {"type": "enabled", "budget_tokens": budget}
    return tail


def _max_tokens(request: ModelRequest, endpoint: Endpoint) -> int:
    most = endpoint.max_output or DEFAULT_MAX_TOKENS
    return most if request.max_output is None else min(most, request.max_output)


def _may_think(messages: Sequence[bytes]) -> bool:
    """A budget is refused while calls are open whose message did not begin with thinking, as after a fallback."""
    last = next((message for message in reversed(messages) if message.startswith(_ASSISTANT)), b"")
    return b'"type":"tool_use"' not in last or last.startswith(_THINKING, len(_ASSISTANT))


def _is_blank(part: Text | Context | Image) -> bool:
    return not isinstance(part, Image) and not part.text.strip()


def _user_block(part: Text | Context | Image) -> dict[str, Any]:
    if isinstance(part, Image):
        return {"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": part.data}}
    return {"type": "text", "text": part.text}


def _text_block(text: str) -> bytes:
    return _encode({"type": "text", "text": text})


def _assistant_blocks(message: Assistant, origin: str) -> list[bytes]:
    blocks = [block for part in message.parts if (block := _assistant_block(part, message.origin == origin))]
    if not blocks or blocks[-1].startswith(_THINKING):  # a message may not end in thinking
        blocks.append(_text_block(_EMPTY))
    return blocks


def _assistant_block(part: AssistantPart, is_native: bool) -> bytes:
    match part:
        case Text():
            return _text_block(part.text) if part.text.strip() else b""
        case Thinking():
            return part.sealed.encode() if is_native else b""
        case _:
            raw = msgspec.Raw(as_object(part.arguments))
            return _encode({"type": "tool_use", "id": fitting(part.id), "name": fitting(part.name), "input": raw})


def _tool_result(message: ToolResult) -> dict[str, Any]:
    result = {"type": "tool_result", "tool_use_id": fitting(message.call_id), "content": _result_content(message)}
    is_told = message.is_error and not message.images  # an error with an image in it is refused
    return {**result, "is_error": True} if is_told else result


def _result_content(result: ToolResult) -> str | list[dict[str, Any]]:
    if not result.images:
        return result.text if result.text.strip() else _EMPTY
    return [_user_block(part) for part in (Text(result.text), *result.images) if not _is_blank(part)]
