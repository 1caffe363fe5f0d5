"""What is particular to the OpenAI Responses wire; what all wires share is in `contracts/test_wires.py`."""

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from talaria.core.errors import Disconnected, Overloaded, RateLimited, RequestRejected
from talaria.core.events import TextDelta, ThinkingDelta
from talaria.core.ids import CallId, SessionId
from talaria.core.messages import Assistant, Image, Message, Text, Thinking, ToolCall, ToolResult, user
from talaria.providers.base import Caching, Delta, Endpoint, ModelRequest
from talaria.providers.message_history import History
from talaria.providers.openai_responses import OpenAIResponses

WIRE = OpenAIResponses()
ENDPOINT = Endpoint("openai", "gpt-5", "https://api.openai.com/v1", "openai_responses")
SEALED = '{"type":"reasoning","summary":[],"encrypted_content":"c2Vj"}'
COMPLETED: dict[str, Any] = {"type": "response.completed", "response": {"status": "completed", "output": []}}


def sent(messages: Iterable[Message], *, model: str = ENDPOINT.model, max_output: int | None = None) -> dict[str, Any]:
    endpoint = msgspec.structs.replace(ENDPOINT, model=model)
    return json.loads(body(ModelRequest("", (), History(messages), SessionId("s1"), max_output=max_output), endpoint))


def body(request: ModelRequest, endpoint: Endpoint) -> bytes:
    encoded = request.history.encode("", lambda message: WIRE.encode(message, endpoint.origin))
    return WIRE.body(request, endpoint, encoded)


def told(*events: dict[str, Any]) -> tuple[list[Delta], Assistant]:
    decoder = WIRE.decoder(ENDPOINT)
    deltas = [delta for event in events for delta in decoder.feed(json.dumps(event).encode())]
    return deltas, decoder.finish()


def added(index: int, **item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(index: int, **item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def grown(kind: str, index: int, delta: str) -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "output_index": index, "delta": delta}


def test_a_result_that_is_only_an_image_has_no_empty_text_beside_it() -> None:
    looked = ToolResult(CallId("a"), "look", "", images=(Image("image/png", "aVZC"),))
    output = sent([user("Look."), Assistant((ToolCall(CallId("a"), "look", "{}"),), "calls"), looked])["input"][-1]
    image = {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,aVZC"}
    assert output == {"type": "function_call_output", "call_id": "a", "output": [image]}


def test_a_refusal_is_text() -> None:
    content = [{"type": "refusal", "refusal": "I will not."}]
    deltas, answer = told(grown("refusal", 0, "I will not."), done(0, type="message", content=content), COMPLETED)
    assert deltas == [TextDelta("I will not.")]
    assert answer.parts == (Text("I will not."),)


def test_parts_of_a_summary_are_paragraphs() -> None:
    part = {"type": "response.reasoning_summary_part.added", "output_index": 0}
    summary = [{"type": "summary_text", "text": "One."}, {"type": "summary_text", "text": "Two."}]
    deltas, answer = told(
        {**part, "summary_index": 0},
        grown("reasoning_summary_text", 0, "One."),
        {**part, "summary_index": 1},
        grown("reasoning_summary_text", 0, "Two."),
        done(0, type="reasoning", summary=summary),
        COMPLETED,
    )
    assert "".join(delta.text for delta in deltas) == "One.\n\nTwo."
    assert answer.parts == (Thinking("One.\n\nTwo."),)


def test_open_models_show_and_get_back_their_reasoning_itself() -> None:
    item = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    deltas, answer = told(grown("reasoning_text", 0, "Hm."), done(0, id="rs_1", **item), COMPLETED)
    assert deltas == [ThinkingDelta("Hm.")]
    thinking = answer.parts[0]
    assert isinstance(thinking, Thinking)
    assert thinking.text == "Hm."
    assert json.loads(thinking.sealed) == item


def test_reasoning_is_sealed_without_its_place_in_the_vendors_store() -> None:
    item = {"id": "rs_1", "status": "completed", **json.loads(SEALED)}
    assert told(done(0, **item), COMPLETED)[1].parts == (Thinking("", SEALED),)


def test_reasoning_that_nobody_could_open_again_is_not_sealed() -> None:
    unfinished: dict[str, Any] = {"type": "reasoning", "summary": [], "encrypted_content": "half of it"}
    assert told(added(0, **unfinished), COMPLETED)[1].parts == ()
    assert told(done(0, type="reasoning", summary=[], encrypted_content=None), COMPLETED)[1].parts == ()


def test_items_that_were_never_reported_done_are_what_their_deltas_made_of_them() -> None:
    _, answer = told(
        added(0, type="message", content=[]),
        grown("output_text", 0, "Hel"),
        grown("output_text", 0, "lo."),
        added(1, type="function_call", call_id="a", name="x", arguments=""),
        grown("function_call_arguments", 1, '{"a":'),
        {"type": "response.function_call_arguments.done", "output_index": 1, "arguments": '{"a":1}'},
        COMPLETED,
    )
    assert answer.parts == (Text("Hello."), ToolCall(CallId("a"), "x", '{"a":1}'))
    assert answer.stop == "calls"


def test_items_keep_their_order_and_unknown_ones_are_passed_over() -> None:
    _, answer = told(
        done(2, type="function_call", call_id="a", name="x", arguments={"b": 1}),
        done(1, type="web_search_call", id="ws_1", error="none of ours"),
        done(0, type="message", content=[{"type": "output_text", "text": "Hi."}]),
        COMPLETED,
    )
    assert answer.parts == (Text("Hi."), ToolCall(CallId("a"), "x", '{"b":1}'))


def test_the_mark_of_other_vendors_behind_the_end_is_passed_over() -> None:
    decoder = WIRE.decoder(ENDPOINT)
    list(decoder.feed(json.dumps(COMPLETED).encode()))
    list(decoder.feed(b"[DONE]"))
    assert decoder.is_complete


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ({"type": "error", "code": "server_error", "message": "busy"}, Overloaded),
        ({"type": "error", "error": {"type": "tokens", "code": "rate_limit_exceeded", "message": "busy"}}, RateLimited),
        ({"type": "error", "message": "busy"}, Overloaded),
        ({"type": "error", "code": "invalid_request_error", "message": "busy"}, RequestRejected),
        ({"type": "response.failed", "response": {"error": {"code": "server_error", "message": "busy"}}}, Overloaded),
        ({"type": "response.failed", "response": {"error": None}}, Overloaded),
    ],
)
def test_each_form_of_an_error_is_raised(event: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"busy|in the middle of an answer"):
        told(event)


@pytest.mark.parametrize("status", ["queued", "in_progress", "cancelled"])
def test_a_document_that_is_not_at_its_end_is_no_answer(status: str) -> None:
    with pytest.raises(Disconnected):
        WIRE.document(json.dumps({"status": status, "output": []}).encode(), ENDPOINT)


def test_reasoning_goes_back_only_before_what_it_led_to() -> None:
    sealed = Thinking("Hm.", SEALED)
    parts = (sealed, Text("One."), sealed, ToolCall(CallId("a"), "x", "{}"), sealed)
    items = sent([Assistant(parts, origin=ENDPOINT.origin)])["input"]
    assert [item.get("type", item.get("role")) for item in items] == [
        "reasoning",
        "assistant",
        "reasoning",
        "function_call",
    ]


def test_an_answer_with_nothing_to_replay_is_left_out() -> None:
    items = sent([user("Hi"), Assistant((Thinking("Hm.", SEALED),), origin="elsewhere"), user("Well?")])["input"]
    assert [item["content"] for item in items] == ["Hi", "Well?"]


@pytest.mark.parametrize(("model", "is_asked"), [("gpt-5", True), ("o4-mini", True), ("openai/gpt-4.1", False)])
def test_encrypted_reasoning_is_asked_of_models_that_reason(model: str, is_asked: bool) -> None:
    assert ("include" in sent([user("Hi")], model=model)) is is_asked


def test_nothing_is_stored_and_the_session_names_the_cache() -> None:
    body = sent([user("Hi")])
    assert body["store"] is False
    assert body["prompt_cache_key"] == "s1"


@pytest.mark.parametrize("details", [None, {"reason": "max_output_tokens"}])
def test_calls_of_an_incomplete_response_are_cut_off(details: dict[str, str] | None) -> None:
    incomplete: dict[str, Any] = {
        "type": "response.incomplete",
        "response": {"status": "incomplete", "incomplete_details": details, "output": []},
    }
    whole = done(0, type="function_call", call_id="a", name="x", arguments="{}")
    assert told(whole, incomplete)[1].stop == "length"


def test_call_that_was_never_said_to_be_whole_is_cut_off() -> None:
    begun = added(0, type="function_call", call_id="a", name="x", arguments="")
    assert told(begun, COMPLETED)[1].stop == "length"


@pytest.mark.parametrize("caching", ["automatic", "markers", "off"])
def test_each_request_begins_with_the_one_before_it_and_nothing_is_marked(caching: Caching) -> None:
    endpoint = msgspec.structs.replace(ENDPOINT, caching=caching)
    thought = Thinking("Hm.", SEALED)
    said = (
        user("What is the weather?"),
        Assistant((thought, ToolCall(CallId("a"), "x", "{}"), ToolCall(CallId("b"), "x", "{}")), "calls"),
        ToolResult(CallId("a"), "x", "sunny"),
        ToolResult(CallId("b"), "x", ""),
        user("In Celsius.", author="steering"),
        Assistant((thought,), origin=ENDPOINT.origin),
        Assistant((thought, Text("Again."), ToolCall(CallId("c"), "x", "{}")), "calls", origin=ENDPOINT.origin),
        ToolResult(CallId("c"), "x", "21"),
        Assistant((Text("21."),)),
        user("And here?"),
    )
    histories = (History(said[:length]) for length in range(1, len(said) + 1))
    requests = [body(ModelRequest("Be brief.", (), history, SessionId("s1")), endpoint) for history in histories]
    for before, now in pairwise(requests):
        assert now.startswith(before[: before.rindex(b'],"stream"')])
        assert b"cache_control" not in now


@pytest.mark.parametrize(("max_output", "limit"), [(1, 16), (15, 16), (17, 17)])
def test_a_limit_is_never_smaller_than_the_wire_takes(max_output: int, limit: int) -> None:
    assert sent([user("Hi")], max_output=max_output)["max_output_tokens"] == limit


def test_nothing_is_stored_at_an_endpoint_that_refused_something() -> None:
    request = ModelRequest("", (), History([user("Hi")]), SessionId("s1"), repairs=frozenset({"drop_extras"}))
    assert json.loads(body(request, ENDPOINT))["store"] is False
