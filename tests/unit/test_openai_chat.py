"""What is particular to the OpenAI chat wire; what all wires share is in `contracts/test_wires.py`."""

import json
import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from talaria.core.ids import CallId, SessionId
from talaria.core.messages import Assistant, Image, Message, Text, ToolCall, ToolResult, ToolSpec, User, user
from talaria.providers.base import Caching, Endpoint, ModelRequest
from talaria.providers.message_history import History
from talaria.providers.openai_chat import OpenAIChat

WIRE = OpenAIChat()
ENDPOINT = Endpoint("test", "test-model", "http://127.0.0.1:9/v1", "openai_chat")
WEATHER = ToolSpec("weather", "Tells the weather.", msgspec.Raw(b'{"type":"object"}'))


MARK = {"cache_control": {"type": "ephemeral"}}
PIXEL = Image("image/png", "aVZC")
NEW, OLD = "max_completion_tokens", "max_tokens"


def sent(messages: Iterable[Message], *tools: ToolSpec) -> dict[str, Any]:
    return json.loads(body(ModelRequest("", tools, History(messages), SessionId("s1")), ENDPOINT))


def body(request: ModelRequest, endpoint: Endpoint) -> bytes:
    encoded = request.history.encoded("", lambda message: WIRE.encode(message, endpoint.origin))
    return WIRE.body(request, endpoint, encoded)


def cached(caching: Caching, messages: Iterable[Message], system: str = "Be brief.") -> bytes:
    endpoint = msgspec.structs.replace(ENDPOINT, caching=caching)
    return body(ModelRequest(system, (WEATHER,), History(messages), SessionId("s1")), endpoint)


def marked(messages: Iterable[Message], system: str = "Be brief.") -> list[Any]:
    """The contents of all messages."""
    return [message["content"] for message in json.loads(cached("markers", messages, system))["messages"]]


def without_marks(sent: bytes) -> bytes:
    bare = sent.replace(b',"cache_control":{"type":"ephemeral"}', b"")
    return re.sub(rb'\[\{"type":"text","text":("(?:[^"\\]|\\.)*")\}\]', rb"\1", bare)


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
    answer, result = sent([call, ToolResult(CallId(id), "weather", "sunny")])["messages"]
    return answer["tool_calls"][0]["id"], result["tool_call_id"]


@pytest.mark.parametrize("id", ["call_1", "9alnumids", "functions.weather:12"])
def test_an_id_that_its_vendor_wants_back_goes_back_unchanged(id: str) -> None:
    assert ids_sent(id) == (id, id)


@pytest.mark.parametrize("id", ["call 1", "fc/1|x", "x" * 65, "functions.weather:x", "ü"])
def test_an_id_that_a_strict_endpoint_would_refuse_is_made_to_fit(id: str) -> None:
    of_call, of_result = ids_sent(id)
    assert of_call == of_result != id
    assert len(of_call) <= 64


def test_without_a_system_prompt_no_empty_one_is_sent() -> None:
    assert [message["role"] for message in sent([user("Hi")])["messages"]] == ["user"]


def test_a_tool_is_told_in_the_three_fields_of_the_wire() -> None:
    function = {"name": "weather", "description": "Tells the weather.", "parameters": {"type": "object"}}
    assert sent([], WEATHER)["tools"] == [{"type": "function", "function": function}]


def test_calls_whose_end_nobody_told_are_cut_off() -> None:
    decoder = WIRE.decoder(ENDPOINT)
    list(decoder.feed(json.dumps({"choices": [{"delta": {"tool_calls": [begun(0, "a", "wipe")]}}]}).encode()))
    list(decoder.feed(b"[DONE]"))
    assert decoder.finish().stop == "length"


CALLS = Assistant((ToolCall(CallId("a"), "weather", "{}"), ToolCall(CallId("b"), "weather", "{}")), "calls")
AGAIN = Assistant((Text("Again."), ToolCall(CallId("c"), "weather", "{}")), "calls")
LONG = (
    user("What is the weather?"),
    CALLS,
    ToolResult(CallId("a"), "weather", 'sunny, "they" say'),
    ToolResult(CallId("b"), "weather", "\n"),
    user("In Celsius.", author="steering"),
    AGAIN,
    ToolResult(CallId("c"), "weather", '[{"type":"text","text":"21"}]'),
    Assistant((Text("21."),)),
    User((Text("And here?"), PIXEL)),
    Assistant((Text("Rainy."),)),
)


@pytest.mark.parametrize("caching", ["automatic", "markers", "off"])
def test_marks_aside_each_request_begins_with_the_one_before_it(caching: Caching) -> None:
    requests = [without_marks(cached(caching, LONG[:length])) for length in range(1, len(LONG) + 1)]
    for before, now in pairwise(requests):
        assert now.startswith(before[: before.rindex(b'],"stream"')])
    plain = (cached("off", LONG[:length]) for length in range(1, len(LONG) + 1))
    assert requests == [without_marks(each) for each in plain]


def test_the_whole_request_is_marked_behind_its_history() -> None:
    request = cached("automatic", LONG)
    assert json.loads(request) == {**json.loads(cached("off", LONG)), **MARK}
    assert request.index(b'"cache_control"') > request.index(b"Rainy.")


def test_without_caching_there_is_no_mark() -> None:
    assert b"cache_control" not in cached("off", LONG)


def test_whoever_is_shown_where_to_cache_is_not_also_told_to_cache_all() -> None:
    assert "cache_control" not in json.loads(cached("markers", LONG))


def test_marks_stand_on_the_system_prompt_and_on_the_newest_message_that_is_not_the_models() -> None:
    assert marked(LONG[:2]) == [
        [{"type": "text", "text": "Be brief.", **MARK}],
        [{"type": "text", "text": "What is the weather?", **MARK}],
        None,
    ]
    assert marked(LONG[:7])[1:] == [
        "What is the weather?",
        None,
        'sunny, "they" say',
        "\n",
        "In Celsius.",
        "Again.",
        [{"type": "text", "text": '[{"type":"text","text":"21"}]', **MARK}],
    ]


def test_a_tools_message_is_marked_inside_its_content_only() -> None:
    newest = json.loads(cached("markers", LONG[:7]))["messages"][-1]
    assert newest.keys() == {"role", "tool_call_id", "content"}


@pytest.mark.parametrize(
    ("parts", "at"),
    [
        ((Text("Look:"), PIXEL, PIXEL), 0),
        ((PIXEL, Text("What is this?")), 1),
        ((Text("This"), PIXEL, Text("or this?"), PIXEL), 2),
    ],
)
def test_among_images_the_last_text_is_marked(parts: tuple[Text | Image, ...], at: int) -> None:
    plain = json.loads(cached("off", [User(parts)]))["messages"][-1]["content"]
    plain[at] |= MARK
    assert marked([User(parts)])[-1] == plain


LOOKED = (
    user("Look."),
    Assistant(tuple(ToolCall(CallId(id_), "look", "{}") for id_ in ("a", "b", "functions.look:2")), "calls"),
    ToolResult(CallId("a"), "look", "a dot", images=(PIXEL, PIXEL)),
    ToolResult(CallId("b"), "look", "\n"),
    ToolResult(CallId("functions.look:2"), "look", "\n[more]", images=(PIXEL,)),
    user("Faster.", author="steering"),
)
SEEN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aVZC"}}


def label(call: str) -> dict[str, Any]:
    return {"type": "text", "text": f"[From the result of look ({call}), not from the person:]"}


def test_the_images_of_a_batch_are_one_message_behind_its_last_result() -> None:
    messages = sent(LOOKED)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "tool", "user", "user"]
    assert [message["content"] for message in messages[2:5]] == ["a dot", "\n", "\n[more]"]
    assert messages[5]["content"] == [label("a"), SEEN, SEEN, label("functions.look:2"), SEEN]
    assert messages[6]["content"] == "Faster."
    assert sent(LOOKED[:5])["messages"] == messages[:6]


def test_a_batch_without_images_has_no_such_message() -> None:
    plain = [replace(one, images=()) if isinstance(one, ToolResult) else one for one in LOOKED]
    assert [message["role"] for message in sent(plain)["messages"]] == [
        *("user", "assistant", "tool", "tool", "tool", "user")
    ]


def test_among_the_images_of_results_the_last_label_is_marked() -> None:
    assert marked(LOOKED[:5])[-1] == [label("a"), SEEN, SEEN, label("functions.look:2") | MARK, SEEN]


@pytest.mark.parametrize("blank", ["", "\n", " \t\u00a0"])
def test_a_text_that_is_blank_is_never_marked(blank: str) -> None:
    result = ToolResult(CallId("b"), "weather", blank)
    contents = marked([*LONG[:3], result], system=blank)
    assert contents[-1] == blank
    assert contents[0] == blank or not blank
    assert contents[-2] == [{"type": "text", "text": 'sunny, "they" say', **MARK}]
    assert b"cache_control" not in cached("markers", [user(blank), User((PIXEL,)), User((Text(blank), PIXEL))], blank)


@pytest.mark.parametrize(("provider", "names"), [("openai", (NEW, OLD)), ("test", (OLD, NEW))])
def test_whoever_refused_the_name_of_the_output_limit_gets_the_other_one(provider: str, names: tuple[str, str]) -> None:
    endpoint = msgspec.structs.replace(ENDPOINT, provider=provider, max_output=100)
    request = ModelRequest("", (), History([user("Hi")]), SessionId("s1"))
    refused = msgspec.structs.replace(request, repairs=frozenset({"rename_limit"}))
    limits = [json.loads(body(each, endpoint)) for each in (request, refused)]
    assert [[name for name in (NEW, OLD) if name in limit] for limit in limits] == [[name] for name in names]
