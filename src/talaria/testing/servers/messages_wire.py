"""Renders a `Reply` as Anthropic Messages: one document, or the events of a stream."""

import json
from collections.abc import Iterator

from talaria.testing.servers.scripted_replies import Call, JsonObject, Reply, ReplyUsage, SseEvent, Stop

_STOP_REASONS: dict[Stop, str] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}
_ERROR_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def document(reply: Reply, model: str) -> JsonObject:
    usage = {"usage": _usage(reply.usage)} if reply.usage else {}
    content: list[JsonObject] = []
    if reply.thinking:
        content.append({"type": "thinking", "thinking": reply.thinking, "signature": reply.signature})
    if reply.text:
        content.append({"type": "text", "text": reply.text})
    for call in reply.calls:
        try:
            arguments: object = json.loads(call.arguments)
        except json.JSONDecodeError:
            arguments = call.arguments  # not JSON, which has no place in this document
        content.append(_tool_use(call, arguments))
    return {**_head(model), "content": content, **_stop(reply), **usage}


def events(reply: Reply, model: str) -> Iterator[SseEvent]:
    for event in _events(reply, model):
        yield str(event["type"]), event


def error(status: int, message: str) -> JsonObject:
    kind = _ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_test"}


def _events(reply: Reply, model: str) -> Iterator[JsonObject]:
    usage = {"usage": {**_usage(reply.usage), "output_tokens": 1}} if reply.usage else {}
    message: JsonObject = {**_head(model), "content": [], "stop_reason": None, "stop_sequence": None, **usage}
    yield {"type": "message_start", "message": message}
    yield {"type": "ping"}
    for index, (start, deltas) in enumerate(_stream_blocks(reply)):
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    if reply.faults.error_in_stream is not None:
        yield {"type": "error", "error": reply.faults.error_in_stream}
        return
    totals = {"usage": _usage(reply.usage)} if reply.usage else {}
    yield {"type": "message_delta", "delta": _stop(reply), **totals}
    yield {"type": "message_stop"}


def _stream_blocks(reply: Reply) -> Iterator[tuple[JsonObject, list[JsonObject]]]:
    """How each content block starts, and its deltas."""
    if reply.thinking:
        deltas: list[JsonObject] = [
            {"type": "thinking_delta", "thinking": piece} for piece in reply.pieces(reply.thinking)
        ]
        deltas.append({"type": "signature_delta", "signature": reply.signature})
        yield {"type": "thinking", "thinking": "", "signature": ""}, deltas
    if reply.text:
        yield (
            {"type": "text", "text": ""},
            [{"type": "text_delta", "text": piece} for piece in reply.pieces(reply.text)],
        )
    if reply.faults.error_in_stream is None:
        for call in reply.calls:
            json_pieces = ["", *reply.pieces(call.arguments)]
            yield _tool_use(call, {}), [{"type": "input_json_delta", "partial_json": piece} for piece in json_pieces]


def _tool_use(call: Call, arguments: object) -> JsonObject:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def _head(model: str) -> JsonObject:
    return {"id": "msg_test", "type": "message", "role": "assistant", "model": model}


def _stop(reply: Reply) -> JsonObject:
    return {"stop_reason": _STOP_REASONS[reply.stop_reason], "stop_sequence": None}


def _usage(usage: ReplyUsage) -> JsonObject:
    return {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation_input_tokens": usage.cache_write,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }
