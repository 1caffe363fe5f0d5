"""Puts an answer on the Anthropic Messages wire together: block by block from a stream, or from one document."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from talaria.core.events import TextDelta, ThinkingDelta
from talaria.core.ids import CallId
from talaria.core.messages import Assistant, AssistantPart, StopReason, Text, Thinking, ToolCall
from talaria.core.usage import Usage
from talaria.providers import provider_failures
from talaria.providers.base import Delta, Endpoint
from talaria.providers.decoding import ABSENT, count, is_present, leniently, read

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
    def counted(self) -> Usage:
        return Usage(
            count(self.input_tokens),
            count(self.output_tokens),
            count(self.cache_read_input_tokens),
            count(self.cache_creation_input_tokens),
            count((self.output_tokens_details or _OutputDetails()).thinking_tokens),
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
        self._endpoint = endpoint
        self._blocks: dict[int, _Growing] = {}
        self._stop_reason: str | None = None
        self._usage: Usage | None = None
        self.is_complete = False

    def feed(self, data: bytes) -> Iterable[Delta]:
        if data.strip() == b"[DONE]":  # some endpoints of other vendors add it
            return
        event = read(_EVENTS, data, self._endpoint.label)
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
        message = read(_MESSAGES, body, self._endpoint.label)
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
        usage = leniently(_USAGES, said)
        if usage is not None:
            known, now = (msgspec.structs.astuple(one) for one in (self._usage or Usage(), usage.counted))
            self._usage = Usage(*map(max, known, now))

    def finish(self) -> Assistant:
        if self._stop_reason is None and not self.is_complete:
            raise provider_failures.broken_off()
        parts = tuple(part for _, block in sorted(self._blocks.items()) if (part := self._part(block)) is not None)
        return Assistant(parts, self._stop(parts), self._usage, self._endpoint.origin)

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
                return ToolCall(CallId(block.id), block.name, text or _written(block.input))
            case _:
                return None

    def _seal(self, text: str, signature: str) -> str:
        if not signature and _STOPS.get(self._stop_reason or "") == "length":
            return ""  # cut off before it was signed: nobody would take it back
        return _encode({"type": "thinking", "thinking": text, "signature": signature}).decode()

    def _stop(self, parts: Iterable[AssistantPart]) -> StopReason:
        stop = _STOPS.get(self._stop_reason or "", "end")
        has_calls = any(isinstance(part, ToolCall) for part in parts)
        return "calls" if stop == "end" and has_calls else stop


def _written(arguments: msgspec.Raw) -> str:
    return bytes(arguments).decode() if is_present(arguments) else "{}"
