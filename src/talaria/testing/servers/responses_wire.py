"""Renders a `Reply` as OpenAI Responses: one document, or the numbered events of a stream."""

from collections.abc import Iterator

from talaria.testing.servers.chat_wire import error
from talaria.testing.servers.scripted_replies import JsonObject, Reply, SseEvent, Stop

__all__ = ["document", "error", "events"]

_INCOMPLETE: dict[Stop, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}
_BLANKS: dict[str, JsonObject] = {
    "reasoning": {"summary": [], "encrypted_content": ""},
    "message": {"content": [], "status": "in_progress"},
    "function_call": {"arguments": "", "status": "in_progress"},
}


def document(reply: Reply, model: str) -> JsonObject:
    counts, usage = reply.usage, None
    if counts is not None:
        usage = {
            "input_tokens": counts.all_input,
            "input_tokens_details": {"cached_tokens": counts.cache_read, "cache_write_tokens": counts.cache_write},
            "output_tokens": counts.output,
            "output_tokens_details": {"reasoning_tokens": counts.reasoning},
            "total_tokens": counts.all_input + counts.output,
        }
    reason = _INCOMPLETE.get(reply.stop_reason)
    return {
        **_response(model, "incomplete" if reason else "completed"),
        "output": _output(reply),
        "usage": usage,
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
    place: JsonObject = {"item_id": item["id"], "output_index": index}
    yield {"type": "response.output_item.added", "output_index": index, "item": {**item, **_BLANKS[kind]}}
    match kind:
        case "reasoning":
            name, place = "response.reasoning_summary", {"summary_index": 0, **place}
            yield {"type": f"{name}_part.added", "part": _summary_text(""), **place}
            for piece in reply.pieces(reply.thinking):
                yield {"type": f"{name}_text.delta", "delta": piece, **place}
            yield {"type": f"{name}_text.done", "text": reply.thinking, **place}
            yield {"type": f"{name}_part.done", "part": _summary_text(reply.thinking), **place}
        case "message":
            place = {"content_index": 0, **place}
            yield {"type": "response.content_part.added", "part": _output_text(""), **place}
            for piece in reply.pieces(reply.text):
                yield {"type": "response.output_text.delta", "delta": piece, "logprobs": [], **place}
            yield {"type": "response.output_text.done", "text": reply.text, "logprobs": [], **place}
            yield {"type": "response.content_part.done", "part": _output_text(reply.text), **place}
        case _:
            for piece in reply.pieces(str(item["arguments"])):
                yield {"type": "response.function_call_arguments.delta", "delta": piece, **place}
            yield {"type": "response.function_call_arguments.done", "arguments": item["arguments"], **place}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _output(reply: Reply) -> list[JsonObject]:
    items: list[JsonObject] = []
    if reply.thinking:
        summary = [_summary_text(reply.thinking)]
        items.append({"id": "rs_test", "type": "reasoning", "summary": summary, "encrypted_content": reply.signature})
    if reply.text:
        message = {"id": "msg_test", "type": "message", "role": "assistant", "status": "completed"}
        items.append({**message, "content": [_output_text(reply.text)]})
    for index, call in enumerate(reply.calls):
        function_call = {"id": f"fc_{index}", "type": "function_call", "status": "completed"}
        items.append({**function_call, "call_id": call.id, "name": call.name, "arguments": call.arguments})
    if items and reply.stop_reason in _INCOMPLETE:
        items[-1] = {**items[-1], "status": "incomplete"}
    return items


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
