"""What is particular to the OpenAI chat wire; what all wires share is in `contracts/test_wires.py`."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from talaria.model.ids import CallId, SessionId
from talaria.model.messages import Assistant, Message, ToolCall, ToolResult
from talaria.model.tools import ToolSpec
from talaria.providers.base import Endpoint, Request
from talaria.providers.history import History
from talaria.providers.openai_chat import OpenAIChat

WIRE = OpenAIChat()
ENDPOINT = Endpoint("test", "test-model", "http://127.0.0.1:9/v1", "openai_chat")
WEATHER = ToolSpec("weather", "Tells the weather.", msgspec.Raw(b'{"type":"object"}'))


def sent(messages: Iterable[Message], *tools: ToolSpec) -> dict[str, Any]:
    request = Request("", tools, History(messages), SessionId("s1"))
    encoded = request.history.encoded("", lambda message: WIRE.encode(message, ENDPOINT.origin))
    return json.loads(WIRE.body(request, ENDPOINT, encoded))


def heard(*pieces: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The calls that pieces, each in a chunk of its own, add up to."""
    decoder = WIRE.decoder(ENDPOINT)
    for piece in pieces:
        list(decoder.feed(json.dumps({"choices": [{"delta": {"tool_calls": [piece]}}]}).encode()))
    list(decoder.feed(b"[DONE]"))
    return [(call.id, call.name, call.arguments) for call in decoder.finish().calls]


def begun(index: int | None, id: str, name: str, arguments: str | None = "") -> dict[str, Any]:
    return {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def grown(index: int | None, arguments: str) -> dict[str, Any]:
    return {"index": index, "function": {"arguments": arguments}}


TWO = [("a", "read", '{"path": 1}'), ("b", "write", '{"path": 2}')]


@pytest.mark.parametrize("index", [0, None], ids=["all are number 0", "none has a number"])
def test_parallel_calls_that_are_not_numbered_apart_keep_their_own_arguments(index: int | None) -> None:
    calls = heard(
        begun(index, "a", "read"),
        grown(index, '{"path"'),
        grown(index, ": 1}"),
        begun(index, "b", "write", None),
        grown(index, '{"path"'),
        grown(index, ": 2}"),
    )
    assert calls == TWO


def test_parallel_calls_that_arrive_whole_may_all_be_number_0() -> None:
    assert heard(*(begun(0, *call) for call in TWO)) == TWO


def test_pieces_of_calls_that_are_numbered_apart_may_come_interleaved() -> None:
    calls = heard(
        begun(1, "b", "write", '{"pa'),
        begun(0, "a", "read", '{"path"'),
        grown(1, 'th": 2}'),
        grown(0, ": 1}"),
    )
    assert calls == TWO


def test_a_call_whose_id_comes_again_with_every_piece_stays_one_call() -> None:
    assert heard(begun(0, "a", "read", '{"path"'), begun(0, "a", "read", ": 1}")) == TWO[:1]


def ids_sent(id: str) -> tuple[str, str]:
    call = Assistant((ToolCall(CallId(id), "weather", "{}"),), "calls")
    answer, result = sent([call, ToolResult(CallId(id), "weather", "sunny")])["messages"][1:]
    return answer["tool_calls"][0]["id"], result["tool_call_id"]


@pytest.mark.parametrize("id", ["call_1", "9alnumids", "functions.weather:12"])
def test_an_id_that_its_vendor_wants_back_goes_back_unchanged(id: str) -> None:
    assert ids_sent(id) == (id, id)


@pytest.mark.parametrize("id", ["call 1", "fc/1|x", "x" * 65, "functions.weather:x", "ü"])
def test_an_id_that_a_strict_endpoint_would_refuse_is_made_to_fit(id: str) -> None:
    of_call, of_result = ids_sent(id)
    assert of_call == of_result != id
    assert len(of_call) <= 64


def test_a_tool_is_told_in_the_three_fields_of_the_wire() -> None:
    function = {"name": "weather", "description": "Tells the weather.", "parameters": {"type": "object"}}
    assert sent([], WEATHER)["tools"] == [{"type": "function", "function": function}]


def test_calls_whose_end_nobody_told_are_cut_off() -> None:
    decoder = WIRE.decoder(ENDPOINT)
    list(decoder.feed(json.dumps({"choices": [{"delta": {"tool_calls": [begun(0, "a", "wipe")]}}]}).encode()))
    list(decoder.feed(b"[DONE]"))
    assert decoder.finish().stop == "length"
