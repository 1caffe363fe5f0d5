"""The OpenAI Responses wire, used statelessly: nothing is stored there, and reasoning travels
encrypted with us.

An answer is put together item by item from a stream, or from one document.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

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
    decode,
    decode_leniently,
    decode_message,
    drops_extras,
    is_present,
    safe_identifier,
)

_encode = msgspec.json.Encoder().encode
_INCOMPLETE: dict[str, StopReason] = {"max_output_tokens": "length", "content_filter": "refused"}
_FINAL = (None, "completed", "incomplete")


class _Piece(msgspec.Struct):
    """Of a message (text or refusal) or of a reasoning item (summary or content)."""

    text: str | None = None
    refusal: str | None = None

    @property
    def words(self) -> str:
        return self.text or self.refusal or ""


class _Item(msgspec.Struct):
    type: str = ""
    call_id: str | None = None
    name: str | None = None
    arguments: str | dict[str, Any] | None = None
    content: list[_Piece] | None = None
    summary: list[_Piece] | None = None
    encrypted_content: str | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: openai.PromptDetails | None = None
    output_tokens_details: openai.OutputDetails | None = None


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    status: str | None = None
    error: msgspec.Raw = ABSENT
    incomplete_details: _Incomplete | None = None
    output: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = ABSENT


class _Event(msgspec.Struct):
    type: str = ""
    output_index: int = 0
    summary_index: int = 0
    delta: str | None = None
    arguments: str | None = None
    item: msgspec.Raw = ABSENT
    response: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT
    code: str | int | None = None
    message: str | None = None


_EVENTS = msgspec.json.Decoder(_Event, strict=False)
_ITEMS = msgspec.json.Decoder(_Item, strict=False)
_RESPONSES = msgspec.json.Decoder(_Response, strict=False)
_USAGES = msgspec.json.Decoder(_Usage, strict=False)


class _Reported(NamedTuple):
    item: _Item
    raw: msgspec.Raw
    is_whole: bool


class ResponsesDecoder:
    """Items as they are reported done; what grew by deltas stands in for an item that was never
    reported whole."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._origin = endpoint.origin
        self._label = endpoint.label
        self._items: dict[int, _Reported] = {}
        self._grown: dict[int, list[str]] = {}
        self._whole: set[int] = set()
        """Calls whose arguments were said to be complete."""
        self._response = _Response()
        self.is_complete = False

    def feed(self, data: bytes) -> Iterable[Delta]:
        if data.strip() == b"[DONE]":
            return
        event = decode_message(_EVENTS, data, self._label)
        match event.type:
            case "response.output_text.delta" | "response.refusal.delta" if event.delta:
                yield TextDelta(self._grow(event, event.delta))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" if event.delta:
                yield ThinkingDelta(self._grow(event, event.delta))
            case "response.reasoning_summary_part.added" if event.summary_index:
                yield ThinkingDelta(self._grow(event, "\n\n"))
            case "response.function_call_arguments.delta" if event.delta:
                self._grow(event, event.delta)
            case "response.function_call_arguments.done" if event.arguments is not None:
                self._grown[event.output_index] = [event.arguments]
                self._whole.add(event.output_index)
            case "response.output_item.added" | "response.output_item.done" if is_present(event.item):
                self._report(event.output_index, event.item, is_whole=event.type == "response.output_item.done")
            case "response.completed" | "response.incomplete" | "response.failed" if is_present(event.response):
                self.take_response(event.response, has_failed=event.type == "response.failed")
            case "error":
                error = _encode({"code": event.code, "message": event.message or ""})
                raise provider_failures.from_stream_error(self._label, error)
            case _:
                pass

    def _report(self, index: int, raw: msgspec.Raw, *, is_whole: bool) -> None:
        self._items[index] = _Reported(decode(_ITEMS, raw, self._label), raw.copy(), is_whole)

    def _grow(self, event: _Event, words: str) -> str:
        self._grown.setdefault(event.output_index, []).append(words)
        return words

    def take_response(self, data: bytes | msgspec.Raw, *, has_failed: bool = False) -> None:
        """The whole response: the last event of a stream, or a document."""
        response = decode_message(_RESPONSES, data, self._label)
        if has_failed or response.status == "failed":
            raise provider_failures.from_stream_error(self._label, b"{}")
        self._response = response
        for index, raw in enumerate(() if self._items else response.output or ()):
            self._report(index, raw, is_whole=True)
        self.is_complete = response.status in _FINAL

    def finish(self) -> Assistant:
        if not self.is_complete:
            raise provider_failures.incomplete_answer()
        parts = tuple(part for index in sorted(self._items) if (part := self._part(index)) is not None)
        usage, said = None, decode_leniently(_USAGES, self._response.usage)
        if said is not None:
            details = said.input_tokens_details, said.output_tokens_details
            usage = openai.count_usage(said.input_tokens, said.output_tokens, *details)
        return Assistant(parts, self._stop(parts), usage, self._origin)

    def _part(self, index: int) -> AssistantPart | None:
        item, raw, is_whole = self._items[index]
        grown = "".join(self._grown.get(index, ()))
        match item.type:
            case "message":
                text = "".join(piece.words for piece in item.content or ()) or grown
                return Text(text) if text else None
            case "reasoning":
                text = "\n\n".join(piece.words for piece in item.summary or item.content or ()) or grown
                seal = _seal(raw) if is_whole and (item.encrypted_content or item.content) else ""
                return Thinking(text, seal) if text or seal else None
            case "function_call":
                written = item.arguments
                if isinstance(written, dict):  # some servers do not encode them
                    written = _encode(written).decode()
                return ToolCall(CallId(item.call_id or ""), item.name or "", written or grown)
            case _:
                return None

    def _stop(self, parts: Sequence[AssistantPart]) -> StopReason:
        details = self._response.incomplete_details
        if self._response.status == "incomplete" or (details is not None and details.reason):
            return _INCOMPLETE.get((details and details.reason) or "", "length")
        for index, (item, _, is_whole) in self._items.items():
            if item.type == "function_call" and not is_whole and index not in self._whole:
                return "length"
        return "calls" if any(isinstance(part, ToolCall) for part in parts) else "end"


def _seal(raw: msgspec.Raw) -> str:
    """The item without what ties it to the vendor's store: an id that is not kept there gets a
    request refused."""
    item = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    return _encode({key: value for key, value in item.items() if key not in ("id", "status")}).decode()


MIN_OUTPUT_TOKENS = 16
"""A limit below it is refused."""
_WITHOUT_REASONING = ("gpt-3", "gpt-4", "chatgpt-")
"""Models that refuse a request which asks for encrypted reasoning."""


class OpenAIResponses:
    path = "/responses"
    headers = staticmethod(openai.headers)
    decoder = ResponsesDecoder

    def encode(self, message: Message, origin: str) -> bytes:
        """Items joined by commas; nothing for an assistant message that holds nothing to replay."""
        match message:
            case User():
                return _encode(openai.user_message(message, _user_part))
            case Assistant():
                return b",".join(_encode(item) for item in _items(message, origin))
            case ToolResult():
                call_id = safe_identifier(message.call_id)
                return _encode({"type": "function_call_output", "call_id": call_id, "output": _output(message)})

    def body(self, request: ModelRequest, endpoint: Endpoint, messages: Sequence[bytes]) -> bytes:
        request, endpoint = apply_repairs(request, endpoint)
        history = b",".join(message for message in messages if message)
        return wire_parts.build_body(_head(request, endpoint), "input", history, _tail(request, endpoint))

    def document(self, body: bytes, endpoint: Endpoint) -> Assistant:
        decoder = ResponsesDecoder(endpoint)
        decoder.take_response(body)
        return decoder.finish()


def _head(request: ModelRequest, endpoint: Endpoint) -> dict[str, Any]:
    head: dict[str, Any] = {"model": endpoint.model, "store": False}
    if not drops_extras(request):
        head["prompt_cache_key"] = request.session
        if not endpoint.model.rpartition("/")[2].startswith(_WITHOUT_REASONING):
            head["include"] = ["reasoning.encrypted_content"]
    if request.system:
        head["instructions"] = request.system
    if request.tools:
        head["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": False,
            }
            for tool in request.tools
        ]
    return head


def _tail(request: ModelRequest, endpoint: Endpoint) -> dict[str, Any]:
    tail: dict[str, Any] = {"stream": request.is_streaming}
    if request.tools and not request.may_call and not drops_extras(request):
        tail["tool_choice"] = "none"
    limit = openai.output_limit(request, endpoint)
    if limit is not None:
        tail["max_output_tokens"] = max(limit, MIN_OUTPUT_TOKENS)
    effort = openai.effort(request, endpoint)
    if effort is not None:
        tail["reasoning"] = {"effort": effort} | ({} if effort == "none" else {"summary": "auto"})
    return tail


def _user_part(part: UserPart) -> dict[str, Any]:
    if isinstance(part, Image):
        url = f"data:{part.media_type};base64,{part.data}"
        return {"type": "input_image", "detail": "auto", "image_url": url}
    return {"type": "input_text", "text": part.text}


def _output(result: ToolResult) -> str | list[dict[str, Any]]:
    """Plain text where that is enough: not every endpoint takes a list of parts."""
    if not result.images:
        return result.text
    told = (Text(result.text),) if result.text else ()
    return [_user_part(part) for part in (*told, *result.images)]


def _items(message: Assistant, origin: str) -> list[dict[str, Any] | msgspec.Raw]:
    items = [item for part in message.parts if (item := _item(part, message.origin == origin)) is not None]
    while items and isinstance(items[-1], msgspec.Raw):
        items.pop()  # reasoning is taken only together with the item that it led to
    return items


def _item(part: AssistantPart, is_native: bool) -> dict[str, Any] | msgspec.Raw | None:
    match part:
        case Text():
            return {"role": "assistant", "content": part.text} if part.text else None
        case Thinking():
            return msgspec.Raw(part.sealed.encode()) if is_native and part.sealed else None
        case ToolCall():
            return {
                "type": "function_call",
                "call_id": safe_identifier(part.id),
                "name": safe_identifier(part.name),
                "arguments": as_object(part.arguments).decode(),
            }
