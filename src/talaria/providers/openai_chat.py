"""The OpenAI chat-completions wire, which most endpoints speak."""

from collections.abc import Iterable, Iterator, Sequence
from operator import methodcaller
from typing import Any

import msgspec

from talaria.core.events import TextDelta, ThinkingDelta
from talaria.core.ids import CallId
from talaria.core.messages import (
    Assistant,
    AssistantPart,
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
from talaria.providers import openai, provider_failures, wire_parts
from talaria.providers.base import Delta, Endpoint, ModelRequest
from talaria.providers.wire_parts import (
    ABSENT,
    apply_repairs,
    as_object,
    decode_leniently,
    decode_message,
    drops_extras,
    safe_call_id,
    safe_identifier,
)

_encode = msgspec.json.Encoder().encode
_USER = b'{"role":"user"'
_TOOL = b'{"role":"tool"'
_CONTENT = b'"content":'
_TEXT = b'{"type":"text","text":'
_IMAGE = b'{"type":"image_url"'
_BEHIND = b"\n"
"""Between a result's images and its message; nowhere else in JSON of ours."""
_STOPS: dict[str, StopReason] = {
    "stop": "end",
    "tool_calls": "calls",
    "function_call": "calls",
    "length": "length",
    "content_filter": "refused",
}

_WITH_SWITCH = frozenset({"zai", "deepseek"})
"""Vendors who know no effort `none`: thinking is switched off in another way."""


class OpenAIChat:
    path = "/chat/completions"
    headers = staticmethod(openai.headers)

    def encode(self, message: Message, origin: str) -> bytes:
        match message:
            case User():
                return _encode(openai.user_message(message, _user_part))
            case Assistant():
                return _encode(_assistant(message, origin))
            case ToolResult():
                return _result(message)

    def body(self, request: ModelRequest, endpoint: Endpoint, messages: Sequence[bytes]) -> bytes:
        request, endpoint = apply_repairs(request, endpoint)
        head: dict[str, Any] = {"model": endpoint.model}
        if request.tools:
            head["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
                }
                for tool in request.tools
            ]
        if any(map(_has_images, messages)):  # rare, and a long history is gone through for every request
            messages = tuple(_in_order(messages))
        if endpoint.caching == "markers":
            messages = _with_mark(messages)
        system = b""
        if request.system:  # none at all rather than an empty one, which strict endpoints refuse
            system = _encode({"role": "system", "content": request.system})
            system = (endpoint.caching == "markers" and _add_mark(system)) or system
        history = b",".join(filter(None, (system, *messages)))
        return wire_parts.build_body(head, "messages", history, _tail(request, endpoint))

    def decoder(self, endpoint: Endpoint) -> "ChatDecoder":
        return ChatDecoder(endpoint)

    def document(self, body: bytes, endpoint: Endpoint) -> Assistant:
        decoder = ChatDecoder(endpoint)
        list(decoder.feed(body))
        return decoder.finish()


def _tail(request: ModelRequest, endpoint: Endpoint) -> dict[str, Any]:
    tail: dict[str, Any] = {"stream": request.is_streaming}
    if request.is_streaming and not drops_extras(request):
        tail["stream_options"] = {"include_usage": True}
    if request.tools and not request.may_call and not drops_extras(request):
        tail["tool_choice"] = "none"
    limit = openai.output_limit(request, endpoint)
    if limit is not None:
        is_new_name = (endpoint.provider == "openai") != ("rename_limit" in request.repairs)
        tail["max_completion_tokens" if is_new_name else "max_tokens"] = limit
    if request.effort == "none" and endpoint.provider in _WITH_SWITCH:
        tail["thinking"] = {"type": "disabled"}
    elif request.effort is not None:
        tail["reasoning_effort"] = openai.effort(request, endpoint)
    if endpoint.caching == "automatic":
        tail["cache_control"] = wire_parts.MARK
    return tail


def _with_mark(messages: Sequence[bytes]) -> Sequence[bytes]:
    """The newest message that is not the model's and has a text to bear a mark bears one."""
    for index in reversed(range(len(messages))):
        if messages[index].startswith((_USER, _TOOL)) and (marked := _add_mark(messages[index])):
            return (*messages[:index], marked, *messages[index + 1 :])
    return messages


def _add_mark(message: bytes) -> bytes:
    """The message, its content a list of parts, with a mark on the last text; nothing when that is
    blank or missing.

    Marks elsewhere are worse than none: on an image they are ignored, on blank text they are
    refused, and a tool's message with one beside its content hangs at OpenRouter.
    """
    start = message.index(_CONTENT) + len(_CONTENT)  # its first: before it stand only a role and an id
    if message.startswith(b'"', start):
        before, part, behind = message[:start] + b"[", _TEXT + message[start:-1] + b"}", b"]}"
    else:
        before, part, behind = _around_last_text(message)
    has_words = part and msgspec.json.decode(part[len(_TEXT) : -1], type=str).strip()
    return before + wire_parts.add_mark(part) + behind if has_words else b""


def _around_last_text(message: bytes) -> tuple[bytes, bytes, bytes]:
    """What looks like the beginning of a part is one: inside a text, quotes are escaped."""
    before, opening, rest = message.rpartition(_TEXT)
    if not opening:
        return message, b"", b""
    text, image, images = rest.removesuffix(b"]}").partition(b"," + _IMAGE)
    return before, opening + text, image + images + b"]}"


def _user_part(part: UserPart) -> dict[str, Any]:
    if isinstance(part, Image):
        return {"type": "image_url", "image_url": {"url": f"data:{part.media_type};base64,{part.data}"}}
    return {"type": "text", "text": part.text}


def _result(message: ToolResult) -> bytes:
    """A tool's message holds only text: images stand before it, as parts of a message that
    `_in_order` makes."""
    call_id = safe_call_id(message.call_id)
    told = _encode({"role": "tool", "tool_call_id": call_id, "content": message.text})
    if not message.images:
        return told
    label = Text(f"[From the result of {message.name} ({call_id}), not from the person:]")
    shown = (_encode(_user_part(part)) for part in (label, *message.images))
    return b",".join(shown) + _BEHIND + told


_has_images = methodcaller("startswith", _TEXT)


def _in_order(messages: Iterable[bytes]) -> Iterator[bytes]:
    """Images of results as one message behind the last result of their batch: none may stand
    between results.

    A request is made only when every call of a batch has its result, so what is sent of a batch
    never changes.
    """
    images: list[bytes] = []
    for message in messages:
        if message.startswith(_TEXT):
            shown, _, told = message.rpartition(_BEHIND)
            images.append(shown)
            yield told
            continue
        if images and not message.startswith(_TOOL):
            yield _image_message(images)
            images = []
        yield message
    if images:
        yield _image_message(images)


def _image_message(images: Iterable[bytes]) -> bytes:
    return _USER + b"," + _CONTENT + b"[" + b",".join(images) + b"]}"


def _assistant(message: Assistant, origin: str) -> dict[str, Any]:
    encoded: dict[str, Any] = {"role": "assistant", "content": message.text or (None if message.calls else "")}
    if message.calls:
        encoded["tool_calls"] = [
            {
                "id": safe_call_id(call.id),
                "type": "function",
                "function": {"name": safe_identifier(call.name), "arguments": as_object(call.arguments).decode()},
            }
            for call in message.calls
        ]
        # Vendors that think between tool calls want their reasoning back with those calls, and only
        # there.
        seals = [part.sealed for part in message.parts if isinstance(part, Thinking) and part.sealed]
        if message.origin == origin and seals:
            encoded |= msgspec.json.decode(seals[0], type=dict[str, msgspec.Raw])
    return encoded


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _CallPiece(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Piece(msgspec.Struct):
    """A delta of a stream, or the message of a document."""

    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    tool_calls: list[_CallPiece] | None = None


class _Choice(msgspec.Struct):
    delta: _Piece | None = None
    message: _Piece | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: openai.PromptDetails | None = None
    completion_tokens_details: openai.OutputDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


_CHUNKS = msgspec.json.Decoder(_Chunk, strict=False)
_USAGES = msgspec.json.Decoder(_Usage, strict=False)


class _Call(msgspec.Struct):
    index: int
    id: str
    name: str
    arguments: list[str]


class ChatDecoder:
    def __init__(self, endpoint: Endpoint) -> None:
        self._origin = endpoint.origin
        self._label = endpoint.label
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._details: list[dict[str, Any]] = []
        self._replays_reasoning = False
        self._calls: list[_Call] = []
        self._growing: dict[int, _Call] = {}
        """By index, the call that was begun there last: some endpoints number every parallel call
        0."""
        self._finish: str | None = None
        self._usage: _Usage | None = None
        self.is_complete = False

    def feed(self, data: bytes) -> Iterable[Delta]:
        if data.strip() == b"[DONE]":
            self.is_complete = True
            return
        chunk = decode_message(_CHUNKS, data, self._label)
        if chunk.usage is not ABSENT:
            self._usage = decode_leniently(_USAGES, chunk.usage) or self._usage
        for choice in (chunk.choices or ())[:1]:
            piece = choice.delta or choice.message
            if piece is not None:
                yield from self._take(piece)
            self._finish = choice.finish_reason or self._finish

    def _take(self, piece: _Piece) -> Iterable[Delta]:
        thought = piece.reasoning_content or piece.reasoning
        if thought:
            self._replays_reasoning = self._replays_reasoning or bool(piece.reasoning_content)
            self._thinking.append(thought)
            yield ThinkingDelta(thought)
        self._details.extend(piece.reasoning_details or ())
        text = piece.content or piece.refusal
        if text:
            self._text.append(text)
            yield TextDelta(text)
        for position, call in enumerate(piece.tool_calls or ()):
            self._take_call(call, position)

    def _take_call(self, piece: _CallPiece, position: int) -> None:
        index = piece.index if piece.index is not None else position
        function = piece.function or _Function()
        known = self._growing.get(index)
        if known is None or (piece.id and function.name and piece.id != known.id):
            known = self._growing[index] = _Call(index, piece.id or "", function.name or "", [])
            self._calls.append(known)
        known.id = known.id or piece.id or ""
        known.name = known.name or function.name or ""
        match function.arguments:
            case str() as text:
                known.arguments.append(text)
            case dict() as decoded:  # some servers do not encode them
                known.arguments.append(_encode(decoded).decode())
            case None:
                pass

    def finish(self) -> Assistant:
        if self._finish is None and not self.is_complete:
            raise provider_failures.incomplete_answer()
        parts: list[AssistantPart] = []
        if self._thinking or self._details:
            thinking, sealed = "".join(self._thinking), ""
            if self._details:
                sealed = _encode({"reasoning_details": self._details}).decode()
            elif self._replays_reasoning:
                sealed = _encode({"reasoning_content": thinking}).decode()
            parts.append(Thinking(thinking, sealed))
        if self._text:
            parts.append(Text("".join(self._text)))
        calls = sorted(self._calls, key=lambda call: call.index)
        parts += (ToolCall(CallId(call.id), call.name, "".join(call.arguments)) for call in calls)
        stop = _STOPS.get(self._finish or "", "end")
        if self._calls and self._finish is None:
            stop = "length"  # the stream ended, but nobody said that the calls are whole
        elif self._calls and stop == "end":
            stop = "calls"
        usage, said = None, self._usage
        if said is not None:
            details = said.prompt_tokens_details, said.completion_tokens_details
            usage = openai.count_usage(said.prompt_tokens, said.completion_tokens, *details)
        return Assistant(tuple(parts), stop, usage, self._origin)
