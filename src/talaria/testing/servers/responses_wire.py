"""Renders a `Reply` as OpenAI Responses: one document, or the numbered events of a stream."""

from collections.abc import Iterator

from talaria.testing.servers.chat_wire import error
from talaria.testing.servers.scripted_replies import Call, JsonObject, Reply, ReplyUsage, SseEvent, Stop

__all__ = ["document", "error", "events"]

_INCOMPLETE: dict[Stop, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}
_BLANKS: dict[str, JsonObject] = {
    "reasoning": {"summary": [], "encrypted_content": ""},
    "message": {"content": [], "status": "in_progress"},
    "function_call": {"arguments": "", "status": "in_progress"},
}


def document(reply: Reply, model: str) -> JsonObject:
    reason = _INCOMPLETE.get(reply.stop_reason)
    return {
        **_response(model, "incomplete" if reason else "completed"),
        "output": _output(reply),
        "usage": _usage(reply.usage) if reply.usage else None,
        "incomplete_details": {"reason": reason} if reason else None,
    }


def events(reply: Reply, model: str) -> Iterator[SseEvent]:
    for number, event in enumerate(_events(reply, model)):
        yield str(event["type"]), {**event, "sequence_number": number}


def _events(reply: Reply, model: str) -> Iterator[JsonObject]:
    yield {"type": "response.created", "response": _response(model, "in_progress")}
    yield {"type": "response.in_progress", "response": _response(model, "in_progress")}
    failure = reply.faults.error_in_stream
    for index, item in enumerate(_output(reply)):
        if failure is None or item["type"] != "function_call":
            yield from _item_events(index, item, reply)
    if failure is not None:
        yield {"code": None, "param": None, **failure, "type": "error"}
        yield {"type": "response.failed", "response": {**_response(model, "failed"), "error": failure}}
        return
    final = document(reply, model)
    yield {"type": f"response.{final['status']}", "response": final}


def _item_events(index: int, item: JsonObject, reply: Reply) -> Iterator[JsonObject]:
    kind = str(item["type"])
    yield {"type": "response.output_item.added", "output_index": index, "item": {**item, **_BLANKS[kind]}}
    for event in _part_events(kind, item, reply):
        yield {**event, "item_id": item["id"], "output_index": index}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _part_events(kind: str, item: JsonObject, reply: Reply) -> Iterator[JsonObject]:
    match kind:
        case "reasoning":
            return _summary_events(reply)
        case "message":
            return _text_events(reply)
        case _:
            return _argument_events(reply, str(item["arguments"]))


def _summary_events(reply: Reply) -> Iterator[JsonObject]:
    name, place = "response.reasoning_summary", {"summary_index": 0}
    yield {"type": f"{name}_part.added", **place, "part": _summary_text("")}
    for piece in reply.pieces(reply.thinking):
        yield {"type": f"{name}_text.delta", **place, "delta": piece}
    yield {"type": f"{name}_text.done", **place, "text": reply.thinking}
    yield {"type": f"{name}_part.done", **place, "part": _summary_text(reply.thinking)}


def _text_events(reply: Reply) -> Iterator[JsonObject]:
    place: JsonObject = {"content_index": 0}
    yield {"type": "response.content_part.added", **place, "part": _output_text("")}
    for piece in reply.pieces(reply.text):
        yield {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
    yield {"type": "response.output_text.done", **place, "text": reply.text, "logprobs": []}
    yield {"type": "response.content_part.done", **place, "part": _output_text(reply.text)}


def _argument_events(reply: Reply, arguments: str) -> Iterator[JsonObject]:
    for piece in reply.pieces(arguments):
        yield {"type": "response.function_call_arguments.delta", "delta": piece}
    yield {"type": "response.function_call_arguments.done", "arguments": arguments}


def _output(reply: Reply) -> list[JsonObject]:
    items = [*_prose_items(reply), *(_function_call(call, index) for index, call in enumerate(reply.calls))]
    if items and reply.stop_reason in _INCOMPLETE:
        items[-1] = {**items[-1], "status": "incomplete"}
    return items


def _prose_items(reply: Reply) -> Iterator[JsonObject]:
    if reply.thinking:
        summary = [_summary_text(reply.thinking)]
        yield {"id": "rs_test", "type": "reasoning", "summary": summary, "encrypted_content": reply.signature}
    if reply.text:
        content = [_output_text(reply.text)]
        yield {"id": "msg_test", "type": "message", "role": "assistant", "status": "completed", "content": content}


def _function_call(call: Call, index: int) -> JsonObject:
    return {
        "id": f"fc_{index}",
        "type": "function_call",
        "status": "completed",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }


def _summary_text(text: str) -> JsonObject:
    return {"type": "summary_text", "text": text}


def _output_text(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _response(model: str, status: str) -> JsonObject:
    return {
        "id": "resp_test",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": model,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "output": [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None,
    }


def _usage(usage: ReplyUsage) -> JsonObject:
    return {
        "input_tokens": usage.all_input,
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.all_input + usage.output,
    }
