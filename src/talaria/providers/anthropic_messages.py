"""The Anthropic Messages wire. An answer is put together block by block from a stream, or from one
document."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from talaria.core.entries import Effort
from talaria.core.events import TextDelta, ThinkingDelta
from talaria.core.ids import CallId
from talaria.core.messages import (
    Assistant,
    AssistantPart,
    Context,
    Image,
    Message,
    StopReason,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
    User,
)
from talaria.core.secret import Secret
from talaria.providers import provider_failures, wire_parts
from talaria.providers.base import Delta, Endpoint, ModelRequest
from talaria.providers.wire_parts import (
    ABSENT,
    apply_repairs,
    as_object,
    clamp_count,
    decode_leniently,
    decode_message,
    drops_extras,
    is_present,
    safe_identifier,
)

_encode = msgspec.json.Encoder().encode
_STOPS: dict[str, StopReason] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "pause_turn": "end",
    "tool_use": "calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}


class _OutputDetails(msgspec.Struct):
    thinking_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: _OutputDetails | None = None

    @property
    def usage(self) -> Usage:
        return Usage(
            clamp_count(self.input_tokens),
            clamp_count(self.output_tokens),
            clamp_count(self.cache_read_input_tokens),
            clamp_count(self.cache_creation_input_tokens),
            clamp_count((self.output_tokens_details or _OutputDetails()).thinking_tokens),
        )


class _Block(msgspec.Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str | None = None
    data: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = ABSENT


class _Delta(msgspec.Struct):
    text: str = ""
    thinking: str = ""
    signature: str | None = None
    partial_json: str = ""
    stop_reason: str | None = None


class _Message(msgspec.Struct):
    content: list[_Block] | None = None
    stop_reason: str | None = None
    usage: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


_EVENTS = msgspec.json.Decoder(_Event, strict=False)
_MESSAGES = msgspec.json.Decoder(_Message, strict=False)
_USAGES = msgspec.json.Decoder(_Usage, strict=False)


@dataclass(slots=True)
class _Growing:
    block: _Block
    signature: str
    pieces: list[str] = field(default_factory=list[str])


class MessagesDecoder:
    def __init__(self, endpoint: Endpoint) -> None:
        self._origin = endpoint.origin
        self._label = endpoint.label
        self._blocks: dict[int, _Growing] = {}
        self._stop_reason: str | None = None
        self._usage: Usage | None = None
        self.is_complete = False

    def feed(self, data: bytes) -> Iterable[Delta]:
        if data.strip() == b"[DONE]":  # some endpoints of other vendors add it
            return
        event = decode_message(_EVENTS, data, self._label)
        match event.type:
            case "message_start" if event.message is not None:
                self._count(event.message.usage)
            case "content_block_start" if event.content_block is not None:
                yield from self._open(event.index, event.content_block)
            case "content_block_delta" if event.delta is not None:
                yield from self._grow(event.index, event.delta)
            case "message_delta":
                self._stop_reason = (event.delta and event.delta.stop_reason) or self._stop_reason
                self._count(event.usage)
            case "message_stop":
                self.is_complete = True
            case _:
                pass

    def take_message(self, body: bytes) -> None:
        message = decode_message(_MESSAGES, body, self._label)
        for index, block in enumerate(message.content or ()):
            list(self._open(index, block))
        self._stop_reason = message.stop_reason
        self._count(message.usage)
        self.is_complete = message.content is not None

    def _open(self, index: int, block: _Block) -> Iterator[Delta]:
        self._blocks[index] = _Growing(block, signature="")
        yield from self._grow(index, _Delta(block.text, block.thinking, block.signature))

    def _grow(self, index: int, delta: _Delta) -> Iterator[Delta]:
        growing = self._blocks.setdefault(index, _Growing(_Block(), signature=""))
        growing.signature += delta.signature or ""
        growing.pieces.append(delta.text or delta.thinking or delta.partial_json)
        if delta.text:
            yield TextDelta(delta.text)
        if delta.thinking:
            yield ThinkingDelta(delta.thinking)

    def _count(self, said: msgspec.Raw) -> None:
        """Counts are cumulative, and an event may leave some out: the largest is the last."""
        usage = decode_leniently(_USAGES, said)
        if usage is not None:
            known, now = (msgspec.structs.astuple(one) for one in (self._usage or Usage(), usage.usage))
            self._usage = Usage(*map(max, known, now))

    def finish(self) -> Assistant:
        if self._stop_reason is None and not self.is_complete:
            raise provider_failures.incomplete_answer()
        parts = tuple(part for _, block in sorted(self._blocks.items()) if (part := self._part(block)) is not None)
        stop = _STOPS.get(self._stop_reason or "", "end")
        if stop == "end" and any(isinstance(part, ToolCall) for part in parts):
            stop = "calls"
        return Assistant(parts, stop, self._usage, self._origin)

    def _part(self, growing: _Growing) -> AssistantPart | None:
        block, text = growing.block, "".join(growing.pieces)
        match block.type:
            case "text":
                return Text(text) if text else None
            case "thinking":
                return Thinking(text, self._seal(text, growing.signature))
            case "redacted_thinking":
                return Thinking("", _encode({"type": "redacted_thinking", "data": block.data}).decode())
            case "tool_use":
                given = bytes(block.input).decode() if is_present(block.input) else "{}"
                return ToolCall(CallId(block.id), block.name, text or given)
            case _:
                return None

    def _seal(self, text: str, signature: str) -> str:
        if not signature and _STOPS.get(self._stop_reason or "") == "length":
            return ""  # cut off before it was signed: nobody would take it back
        return _encode({"type": "thinking", "thinking": text, "signature": signature}).decode()


DEFAULT_MAX_TOKENS = 8192
MIN_BUDGET_TOKENS = 1024
_BUDGETS: dict[Effort, int] = {"none": 0, "minimal": 1024, "low": 4096, "medium": 10_000, "high": 24_000}
_THINKS_BY_BUDGET = re.compile(r"claude-3|claude-(?:opus|sonnet|haiku)-4(?![-.][6-9])|^(?!.*claude)")
"""Claude up to 4.5, and other vendors' models on this wire. Every later Claude is told an effort,
and most refuse a budget."""

_OAUTH = "sk-ant-oat"
"""How tokens of an OAuth login begin, which are no API keys."""
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
        """The message's opening and its blocks, left open: `body` may add the blocks of the next
        message."""
        match message:
            case User():
                blocks = [_encode(_user_block(part)) for part in message.parts if not _is_blank(part)]
                return _USER + b",".join(blocks or [_text_block(_EMPTY)])
            case Assistant():
                return _ASSISTANT + b",".join(_assistant_blocks(message, origin))
            case ToolResult():
                return _USER + _encode(_tool_result(message))

    def body(self, request: ModelRequest, endpoint: Endpoint, messages: Sequence[bytes]) -> bytes:
        request, endpoint = apply_repairs(request, endpoint)
        marked = _with_marks(messages) if endpoint.caching == "markers" else messages
        return wire_parts.build_body(
            _head(request, endpoint), "messages", b"".join(_merge_roles(marked)), _tail(request, endpoint, messages)
        )

    def document(self, body: bytes, endpoint: Endpoint) -> Assistant:
        decoder = MessagesDecoder(endpoint)
        decoder.take_message(body)
        return decoder.finish()


def _merge_roles(messages: Iterable[bytes]) -> Iterator[bytes]:
    """Neighbours of one role become one message: results of a batch and the note behind them belong
    together."""
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
    """A mark where this request ends, and one where the previous request ended, so that its cache
    is found.

    With the system prompt's there are three; four are allowed.
    """
    marked = list(messages)
    left, is_followed = 2, False
    for index in reversed(range(len(messages))):
        is_user = messages[index].startswith(_USER)
        if is_user and not is_followed:  # it ends a message of the user, once neighbours are merged
            marked[index] = wire_parts.add_mark(marked[index])
            left -= 1
            if not left:
                break
        is_followed = is_user
    return marked


def _head(request: ModelRequest, endpoint: Endpoint) -> dict[str, Any]:
    head: dict[str, Any] = {"model": endpoint.model}
    if request.tools:
        head["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
            for tool in request.tools
        ]
    if request.system and endpoint.caching == "markers":
        head["system"] = [{"type": "text", "text": request.system, "cache_control": wire_parts.MARK}]
    elif request.system:
        head["system"] = request.system
    return head


def _tail(request: ModelRequest, endpoint: Endpoint, messages: Sequence[bytes]) -> dict[str, Any]:
    most = endpoint.max_output or DEFAULT_MAX_TOKENS
    max_tokens = most if request.max_output is None else min(most, request.max_output)
    tail: dict[str, Any] = {"max_tokens": max_tokens, "stream": request.is_streaming}
    if endpoint.caching == "automatic":
        tail["cache_control"] = wire_parts.MARK
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


def _may_think(messages: Sequence[bytes]) -> bool:
    """A budget is refused while calls are open whose message did not begin with thinking, as after
    a fallback."""
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
            return _encode(
                {"type": "tool_use", "id": safe_identifier(part.id), "name": safe_identifier(part.name), "input": raw}
            )


def _tool_result(message: ToolResult) -> dict[str, Any]:
    content: str | list[dict[str, Any]] = message.text if message.text.strip() else _EMPTY
    if message.images:
        content = [_user_block(part) for part in (Text(message.text), *message.images) if not _is_blank(part)]
    result = {"type": "tool_result", "tool_use_id": safe_identifier(message.call_id), "content": content}
    is_told = message.is_error and not message.images  # an error with an image in it is refused
    return {**result, "is_error": True} if is_told else result
