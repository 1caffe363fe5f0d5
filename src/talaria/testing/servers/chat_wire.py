"""Renders a `Reply` as OpenAI Chat Completions: one document, or the chunks of a stream."""

from collections.abc import Iterable, Iterator

from talaria.testing.servers.scripted_replies import Call, JsonObject, Reply, ReplyUsage, SseEvent

_ERROR_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


def document(reply: Reply, model: str) -> JsonObject:
    thinking = {"reasoning_content": reply.thinking} if reply.thinking else {}
    calls = {"tool_calls": [_call(call) for call in reply.calls]} if reply.calls else {}
    content = None if reply.calls and not reply.text else reply.text
    message = {"role": "assistant", "content": content, "refusal": None, **thinking, **calls}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reply.stop_reason}
    usage = {"usage": _usage(reply.usage)} if reply.usage else {}
    return {**_head("chat.completion", model), "choices": [choice], **usage}


def events(reply: Reply, model: str) -> Iterator[SseEvent]:
    """The chunks of a stream with `include_usage`; with `usage=None`, of one without."""
    yield None, _chunk(reply, model, {"role": "assistant", "content": "", "refusal": None})
    for piece in reply.pieces(reply.thinking):
        yield None, _chunk(reply, model, {"reasoning_content": piece})
    for piece in reply.pieces(reply.text):
        yield None, _chunk(reply, model, {"content": piece})
    if reply.faults.error_in_stream is not None:
        yield None, {"error": reply.faults.error_in_stream}
        return
    for index, call in enumerate(reply.calls):
        begun = {"index": index, **_call(Call(call.id, call.name, ""))}
        yield None, _chunk(reply, model, {"tool_calls": [begun]})
        for piece in reply.pieces(call.arguments):
            yield None, _chunk(reply, model, {"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield None, _chunk(reply, model, {}, finish_reason=reply.stop_reason)
    if reply.usage:
        yield None, {**_head("chat.completion.chunk", model), "choices": [], "usage": _usage(reply.usage)}
    yield None, "[DONE]"


def error(status: int, message: str) -> JsonObject:
    kind = "requests" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": _ERROR_CODES.get(status)}}


def models(ids: Iterable[str]) -> JsonObject:
    """The list of models; each has the fields of both vendors."""
    both = {"object": "model", "created": 1_700_000_000, "owned_by": "test", "type": "model"}
    data = [{"id": id_, "display_name": id_, "created_at": "2023-11-14T22:13:20Z", **both} for id_ in ids]
    return {"object": "list", "data": data, "has_more": False}


def _head(kind: str, model: str) -> JsonObject:
    return {
        "id": "chatcmpl-test",
        "object": kind,
        "created": 1_700_000_000,
        "model": model,
        "service_tier": "default",
        "system_fingerprint": "fp_test",
    }


def _call(call: Call) -> JsonObject:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _chunk(reply: Reply, model: str, delta: JsonObject, finish_reason: str | None = None) -> JsonObject:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    usage = {"usage": None} if reply.usage else {}
    return {**_head("chat.completion.chunk", model), "choices": [choice], **usage}


def _usage(usage: ReplyUsage) -> JsonObject:
    return {
        "prompt_tokens": usage.all_input,
        "completion_tokens": usage.output,
        "total_tokens": usage.all_input + usage.output,
        "prompt_tokens_details": {
            "cached_tokens": usage.cache_read,
            "cache_write_tokens": usage.cache_write,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning, "audio_tokens": 0},
    }
