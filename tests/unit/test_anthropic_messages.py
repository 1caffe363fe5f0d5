"""What is particular to the Anthropic Messages wire; what all wires share is in `contracts/test_wires.py`."""

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from talaria.core.errors import Disconnected, Overloaded
from talaria.core.ids import CallId, SessionId
from talaria.core.messages import (
    Assistant,
    Image,
    Message,
    StopReason,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
    User,
    user,
)
from talaria.providers.anthropic_messages import AnthropicMessages
from talaria.providers.base import Caching, Effort, Endpoint, ModelRequest
from talaria.providers.message_history import History

WIRE = AnthropicMessages()
ENDPOINT = Endpoint("anthropic", "claude-opus-5", "https://api.anthropic.com/v1", "anthropic_messages")
SIGNED = '{"type":"thinking","thinking":"Hm.","signature":"c2ln"}'
REDACTED = '{"type":"redacted_thinking","data":"ZGF0YQ=="}'


def sent(
    messages: Iterable[Message],
    *,
    model: str = ENDPOINT.model,
    effort: Effort | None = None,
    max_output: int | None = None,
    of_call: int | None = None,
) -> dict[str, Any]:
    endpoint = msgspec.structs.replace(ENDPOINT, model=model, max_output=max_output)
    request = ModelRequest("", (), History(messages), SessionId("s1"), effort=effort, max_output=of_call)
    return json.loads(body(request, endpoint))


def body(request: ModelRequest, endpoint: Endpoint) -> bytes:
    encoded = request.history.encode("", lambda message: WIRE.encode(message, endpoint.origin))
    return WIRE.body(request, endpoint, encoded)


def cached(caching: Caching, messages: Iterable[Message], system: str = "Be brief.") -> bytes:
    endpoint = msgspec.structs.replace(ENDPOINT, caching=caching)
    return body(ModelRequest(system, (), History(messages), SessionId("s1")), endpoint)


def marks(messages: Iterable[Message]) -> list[tuple[int, int, str]]:
    """Which blocks of which messages are marked, and of what kind they are."""
    return [
        (at, place, found["type"])
        for at, message in enumerate(json.loads(cached("markers", messages))["messages"])
        for place, found in enumerate(message["content"])
        if found.get("cache_control") == {"type": "ephemeral"}
    ]


def content(messages: Iterable[Message]) -> list[list[dict[str, Any]]]:
    return [message["content"] for message in sent(messages)["messages"]]


def heard(*events: dict[str, Any]) -> Assistant:
    decoder = WIRE.decoder(ENDPOINT)
    for event in events:
        list(decoder.feed(json.dumps(event).encode()))
    return decoder.finish()


def block(index: int, opening: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": opening},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def stopped(reason: str, **usage: int) -> list[dict[str, Any]]:
    return [{"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}, {"type": "message_stop"}]


def test_results_of_a_batch_and_the_note_behind_them_are_one_message() -> None:
    calls = Assistant((ToolCall(CallId("a"), "x", "{}"), ToolCall(CallId("b"), "x", "{}")), "calls")
    results = [ToolResult(CallId("a"), "x", "1"), ToolResult(CallId("b"), "x", "", is_error=True)]
    note = user("Hurry.", author="steering")
    assert content([user("Hi"), calls, *results, note])[2] == [
        {"type": "tool_result", "tool_use_id": "a", "content": "1"},
        {"type": "tool_result", "tool_use_id": "b", "content": "(empty)", "is_error": True},
        {"type": "text", "text": "Hurry."},
    ]


def test_the_images_of_a_result_stand_in_it_and_an_error_with_images_is_not_called_one() -> None:
    """The vendor refuses blank text, and anything but text in an error."""
    calls = Assistant((ToolCall(CallId("a"), "x", "{}"), ToolCall(CallId("b"), "x", "{}")), "calls")
    shown = (Image("image/png", "aVZC"),)
    silent = ToolResult(CallId("a"), "x", " \n", images=shown)
    failed = ToolResult(CallId("b"), "x", "Error: blurred", is_error=True, images=shown)
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aVZC"}}
    assert content([user("Hi"), calls, silent, failed])[2] == [
        {"type": "tool_result", "tool_use_id": "a", "content": [image]},
        {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "Error: blurred"}, image]},
    ]


def test_thinking_goes_back_in_its_place_among_the_other_blocks() -> None:
    parts = (Thinking("Hm.", SIGNED), Text("One."), Thinking("", REDACTED), ToolCall(CallId("a"), "x", "{}"))
    blocks = content([user("Hi"), Assistant(parts, origin=ENDPOINT.origin)])[1]
    assert [part["type"] for part in blocks] == ["thinking", "text", "redacted_thinking", "tool_use"]
    assert blocks[0] == json.loads(SIGNED)
    assert blocks[2] == json.loads(REDACTED)


@pytest.mark.parametrize("parts", [(), (Text(" \n"),), (Thinking("Hm.", SIGNED),)], ids=["none", "blank", "thinking"])
def test_an_answer_that_said_nothing_is_sent_as_empty(parts: tuple[Text | Thinking, ...]) -> None:
    assert content([user("Hi"), Assistant(parts, origin=ENDPOINT.origin)])[1][-1] == {"type": "text", "text": "(empty)"}


def test_a_question_without_words_is_sent_as_empty() -> None:
    assert content([User(())]) == [[{"type": "text", "text": "(empty)"}]]


@pytest.mark.parametrize(
    "model", ["claude-opus-5", "claude-opus-4-6", "claude-sonnet-4.6", "claude-haiku-5-5", "anthropic/claude-fable-5-2"]
)
def test_models_that_think_by_themselves_are_told_an_effort(model: str) -> None:
    body = sent([user("Hi")], model=model, effort="minimal")
    assert body["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert body["output_config"] == {"effort": "low"}


@pytest.mark.parametrize(
    "model",
    [
        "claude-haiku-4-5-20251001",
        "claude-sonnet-4-5",
        "claude-opus-4.5",
        "claude-opus-4-20250514",
        "claude-3-7-sonnet-latest",
        "kimi-k3",
    ],
)
@pytest.mark.parametrize(("max_output", "budget"), [(64_000, 24_000), (None, 4096), (2048, 1024)])
def test_older_models_are_told_a_budget_that_leaves_room_for_the_answer(
    model: str, max_output: int | None, budget: int
) -> None:
    body = sent([user("Hi")], model=model, effort="high", max_output=max_output)
    assert body["thinking"] == {"type": "enabled", "budget_tokens": budget}
    assert "output_config" not in body
    assert budget < body["max_tokens"]


def test_there_is_no_thinking_without_an_effort_or_without_room_for_it() -> None:
    assert "thinking" not in sent([user("Hi")])
    assert "thinking" not in sent([user("Hi")], model="claude-sonnet-4-5", effort="high", max_output=2000)


def test_older_models_do_not_think_while_calls_are_open_that_began_without_thinking() -> None:
    foreign = Assistant((ToolCall(CallId("a"), "x", "{}"),), "calls", origin="elsewhere")
    history = [user("Hi"), foreign, ToolResult(CallId("a"), "x", "1")]
    assert "thinking" not in sent(history, model="claude-sonnet-4-5", effort="high")
    assert "thinking" in sent([*history, Assistant((Text("Done."),)), user("More")], model="kimi-k3", effort="high")
    assert "thinking" in sent(history, model="claude-opus-5", effort="high")


def test_a_fallback_in_the_middle_of_a_turn_thinks_again_in_the_next_turn() -> None:
    def is_thinking() -> bool:
        return "thinking" in sent(said, model="claude-sonnet-4-5", effort="high")

    origin = msgspec.structs.replace(ENDPOINT, model="claude-sonnet-4-5").origin
    thought = Thinking("Hm.", SIGNED)
    foreign = Assistant((thought, ToolCall(CallId("a"), "x", "{}")), "calls", origin="elsewhere")
    said: list[Message] = [user("Hi"), foreign, ToolResult(CallId("a"), "x", "1")]
    assert not is_thinking()
    own = Assistant((ToolCall(CallId("b"), "x", "{}"),), "calls", origin=origin)
    said += [own, ToolResult(CallId("b"), "x", "2"), user("Hurry.", author="steering")]
    assert not is_thinking()
    said += [Assistant((Text("Done."),), origin=origin), user("More")]
    assert is_thinking()
    said += [Assistant((thought, ToolCall(CallId("c"), "x", "{}")), "calls", origin=origin)]
    said += [ToolResult(CallId("c"), "x", "3")]
    assert is_thinking()


@pytest.mark.parametrize(
    ("max_output", "of_call", "limit"),
    [(None, None, 8192), (None, 100, 100), (None, 20_000, 8192), (64_000, 20_000, 20_000), (64_000, None, 64_000)],
)
def test_the_smallest_limit_is_sent(max_output: int | None, of_call: int | None, limit: int) -> None:
    assert sent([user("Hi")], max_output=max_output, of_call=of_call)["max_tokens"] == limit


@pytest.mark.parametrize(("of_call", "budget"), [(3000, 1500), (2047, None), (100, None)])
def test_a_budget_stays_below_the_limit_of_the_call(of_call: int, budget: int | None) -> None:
    request = sent([user("Hi")], model="claude-sonnet-4-5", effort="high", max_output=64_000, of_call=of_call)
    assert request.get("thinking", {}).get("budget_tokens") == budget


LONG = (
    user("What is the weather?"),
    Assistant(
        (Thinking("Hm.", SIGNED), ToolCall(CallId("a"), "x", "{}"), ToolCall(CallId("b"), "x", "{}")),
        "calls",
        origin=ENDPOINT.origin,
    ),
    ToolResult(CallId("a"), "x", "sunny"),
    ToolResult(CallId("b"), "x", "", is_error=True),
    user("In Celsius.", author="steering"),
    Assistant((Thinking("Hm.", SIGNED),), origin=ENDPOINT.origin),
    Assistant((Text("Again."), ToolCall(CallId("c"), "x", "{}")), "calls"),
    ToolResult(CallId("c"), "x", "21", images=(Image("image/png", "aVZC"),)),
    Assistant((Text("21."),)),
    User((Text("And here?"), Image("image/png", "aVZC"))),
)


@pytest.mark.parametrize("caching", ["automatic", "markers", "off"])
def test_marks_aside_each_request_begins_with_the_one_before_it(caching: Caching) -> None:
    requests = [
        cached(caching, LONG[:length]).replace(b',"cache_control":{"type":"ephemeral"}', b"")
        for length in range(1, len(LONG) + 1)
    ]
    for before, now in pairwise(requests):
        assert now.startswith(before[: before.rindex(b']}],"max_tokens"')])
    assert b"cache_control" not in requests[-1]


def test_the_whole_request_is_marked_behind_its_history() -> None:
    request = cached("automatic", LONG)
    assert json.loads(request) == {**json.loads(cached("off", LONG)), "cache_control": {"type": "ephemeral"}}
    assert request.index(b'"cache_control"') > request.index(b"And here?")


def test_without_caching_there_is_no_mark() -> None:
    assert b"cache_control" not in cached("off", LONG)


def test_whoever_is_shown_where_to_cache_is_not_also_told_to_cache_all() -> None:
    assert "cache_control" not in json.loads(cached("markers", LONG))


def test_marks_stand_on_the_last_blocks_of_the_last_two_user_messages() -> None:
    assert marks([]) == []
    assert marks(LONG[:1]) == [(0, 0, "text")]
    assert marks(LONG[:3]) == [(0, 0, "text"), (2, 0, "tool_result")]
    assert marks(LONG[:4]) == [(0, 0, "text"), (2, 1, "tool_result")]
    assert marks(LONG[:5]) == [(0, 0, "text"), (2, 2, "text")]
    assert marks(LONG[:6]) == [(0, 0, "text"), (2, 2, "text")]
    assert marks(LONG[:8]) == [(2, 2, "text"), (4, 0, "tool_result")]
    assert marks(LONG) == [(4, 0, "tool_result"), (6, 1, "image")]


def test_a_marked_system_prompt_is_a_block() -> None:
    text = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    assert json.loads(cached("markers", LONG))["system"] == [text]
    assert "system" not in json.loads(cached("markers", LONG, system=""))


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("end_turn", "end"),
        ("stop_sequence", "end"),
        ("pause_turn", "end"),
        ("something_new", "end"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refused"),
    ],
)
def test_stop_reasons(reason: str, stop: StopReason) -> None:
    assert heard(*stopped(reason)).stop == stop


def test_thinking_is_sealed_with_its_signature_and_redacted_thinking_as_it_is() -> None:
    answer = heard(
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "Hm."},
            {"type": "signature_delta", "signature": "c2ln"},
        ),
        *block(1, {"type": "redacted_thinking", "data": "ZGF0YQ=="}),
        *stopped("end_turn"),
    )
    assert answer.parts == (Thinking("Hm.", SIGNED), Thinking("", REDACTED))


def test_thinking_that_was_cut_off_before_its_signature_is_not_sealed() -> None:
    thought = block(0, {"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "Hm."})
    assert heard(*thought, *stopped("max_tokens")).parts == (Thinking("Hm."),)


def test_arguments_may_come_whole_with_the_start_of_the_call() -> None:
    opened = block(0, {"type": "tool_use", "id": "a", "name": "x", "input": {"city": "Rom"}})
    assert heard(*opened, *stopped("tool_use")).calls == (ToolCall(CallId("a"), "x", '{"city": "Rom"}'),)


def test_counts_are_cumulative_over_the_events_of_a_stream() -> None:
    start = {"input_tokens": 7, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 3, "output_tokens": 1}
    answer = heard({"type": "message_start", "message": {"usage": start}}, *stopped("end_turn", output_tokens=20))
    assert answer.usage == Usage(input=7, output=20, cache_read=90, cache_write=3)


def test_blocks_of_an_unknown_kind_and_marks_of_other_vendors_are_passed_over() -> None:
    decoder = WIRE.decoder(ENDPOINT)
    for event in [*block(0, {"type": "server_tool_use", "id": "s"}), *block(1, {"type": "text", "text": "Hi."})]:
        list(decoder.feed(json.dumps(event).encode()))
    list(decoder.feed(json.dumps(stopped("end_turn")[0]).encode()))
    list(decoder.feed(b"[DONE]"))
    assert decoder.finish().parts == (Text("Hi."),)


def test_an_error_or_nothing_at_all_in_place_of_a_document_is_no_answer() -> None:
    with pytest.raises(Overloaded, match="busy"):
        WIRE.document(b'{"type":"error","error":{"type":"overloaded_error","message":"busy"}}', ENDPOINT)
    with pytest.raises(Disconnected):
        WIRE.document(b"{}", ENDPOINT)
