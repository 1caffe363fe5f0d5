"""The OpenAI Responses wire, used statelessly: nothing is stored there, and reasoning travels encrypted with us."""

from collections.abc import Sequence
from typing import Any

import msgspec

from talaria.core.messages import (
    Assistant,
    AssistantPart,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    User,
    UserPart,
)
from talaria.providers import openai, prefix
from talaria.providers.base import Endpoint, ModelRequest
from talaria.providers.identifiers import fitting
from talaria.providers.openai_responses_stream import ResponsesDecoder
from talaria.providers.repairs import drops_extras, repaired
from talaria.providers.tool_arguments import as_object

MIN_OUTPUT_TOKENS = 16
"""A limit below it is refused."""

_encode = msgspec.json.Encoder().encode
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
                call_id = fitting(message.call_id)
                return _encode({"type": "function_call_output", "call_id": call_id, "output": _output(message)})

    def body(self, request: ModelRequest, endpoint: Endpoint, messages: Sequence[bytes]) -> bytes:
        request, endpoint = repaired(request, endpoint)
        history = b",".join(message for message in messages if message)
        return prefix.body(_head(request, endpoint), "input", history, _tail(request, endpoint))

    def document(self, body: bytes, endpoint: Endpoint) -> Assistant:
        decoder = ResponsesDecoder(endpoint)
        decoder.take_response(body)
        return decoder.finish()


def _head(request: ModelRequest, endpoint: Endpoint) -> dict[str, Any]:
    head: dict[str, Any] = {"model": endpoint.model, "store": False}
    if not drops_extras(request):
        head |= _extras(request, endpoint)
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


def _extras(request: ModelRequest, endpoint: Endpoint) -> dict[str, Any]:
    extras: dict[str, Any] = {"prompt_cache_key": request.session}
    if not endpoint.model.rpartition("/")[2].startswith(_WITHOUT_REASONING):
        extras["include"] = ["reasoning.encrypted_content"]
    return extras


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
                "call_id": fitting(part.id),
                "name": fitting(part.name),
                "arguments": as_object(part.arguments).decode(),
            }
