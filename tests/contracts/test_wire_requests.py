"""What every wire makes of a conversation: a request that the vendor takes, whose prefix never changes."""

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.core.clock import SystemClock
from talaria.core.errors import Repair
from talaria.core.ids import CallId, SessionId
from talaria.core.messages import (
    Assistant,
    AssistantPart,
    Context,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolSpec,
    User,
    user,
)
from talaria.core.secret import Secret
from talaria.net.client import HttpClient
from talaria.providers.base import Caching, Effort, Endpoint, ModelRequest, WireName
from talaria.providers.http_provider import HttpProvider
from talaria.providers.message_history import History
from talaria.providers.wires import wire_for
from talaria.testing.rules import chat_problems, messages_problems, responses_problems
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, call

WIRES: tuple[WireName, ...] = ("openai_chat", "openai_responses", "anthropic_messages")
CACHING: tuple[Caching, ...] = ("automatic", "markers", "off")
MARK = "cache_control"
CLOCK = SystemClock()
WEATHER = ToolSpec("weather", "Tells the weather.", msgspec.Raw(b'{"type":"object","properties":{}}'))
BASE_URL = "http://127.0.0.1:9/v1"

every_wire = pytest.mark.parametrize("wire", WIRES)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    async with HttpClient(CLOCK) as client:
        yield client


def endpoint(wire: WireName, base_url: str = BASE_URL, model: str = "test-model") -> Endpoint:
    return Endpoint("test", model, base_url, wire, keys=(Secret("sk-secret"),))


def request(
    history: History, *, may_call: bool = True, effort: Effort | None = None, max_output: int | None = None
) -> ModelRequest:
    return ModelRequest(
        "Be brief.",
        (WEATHER,),
        history,
        SessionId("s1"),
        may_call=may_call,
        effort=effort,
        key=Secret("sk-secret"),
        max_output=max_output,
    )


def body(
    wire: WireName,
    history: History,
    *,
    may_call: bool = True,
    effort: Effort | None = None,
    max_output: int | None = None,
    caching: Caching = "off",
) -> bytes:
    at = msgspec.structs.replace(endpoint(wire), caching=caching)
    return encoded(request(history, may_call=may_call, effort=effort, max_output=max_output), at)


def encoded(asked: ModelRequest, at: Endpoint) -> bytes:
    spoken = wire_for(at.wire)
    messages = asked.history.encoded(at.origin, lambda message: spoken.encode(message, at.origin))
    return spoken.body(asked, at, messages)


async def ask(provider: HttpProvider, history: History) -> Assistant:
    items = [item async for item in provider.stream(request(history))]
    assert isinstance(items[-1], Assistant)
    return items[-1]


async def replayed(server: ModelServer, first: HttpProvider, second: HttpProvider) -> bytes:
    """The second request of a conversation whose first answer thought, spoke and called."""
    history = History([user("What is the weather?")])
    server.say(Reply("Let me look.", "I need a tool.", (call("weather"),)), "Sunny.")
    answer = await ask(first, history)
    history.append(answer)
    history.append(ToolResult(answer.calls[0].id, "weather", "sunny"))
    await ask(second, history)
    return server.requests[-1].body


SEALS = {
    "openai_chat": b'"reasoning_content":"I need a tool."',
    "openai_responses": b'"encrypted_content":"' + Reply(thinking="I need a tool.").signature.encode(),
    "anthropic_messages": b'"signature":"' + Reply(thinking="I need a tool.").signature.encode(),
}


@every_wire
async def test_sealed_thinking_goes_back_to_its_origin(server: ModelServer, client: HttpClient, wire: WireName) -> None:
    provider = HttpProvider(endpoint(wire, server.base_url), wire_for(wire), client, CLOCK)
    sent = await replayed(server, provider, provider)
    assert SEALS[wire] in sent
    assert sent.index(SEALS[wire][:15]) < sent.index(b"sunny")


@every_wire
@pytest.mark.parametrize("other", WIRES)
async def test_sealed_thinking_goes_nowhere_else(
    server: ModelServer, client: HttpClient, wire: WireName, other: WireName
) -> None:
    first = HttpProvider(endpoint(wire, server.base_url), wire_for(wire), client, CLOCK)
    second = HttpProvider(endpoint(other, server.base_url, "other-model"), wire_for(other), client, CLOCK)
    sent = await replayed(server, first, second)
    assert b"I need a tool." not in sent
    assert Reply(thinking="I need a tool.").signature.encode() not in sent
    assert b"Let me look." in sent


@every_wire
async def test_images_are_sent(server: ModelServer, client: HttpClient, wire: WireName) -> None:
    server.say("A cat.")
    history = History([User((Text("What is this?"), Image("image/png", "aVZCT1J3")))])
    await ask(HttpProvider(endpoint(wire, server.base_url), wire_for(wire), client, CLOCK), history)
    assert b"What is this?" in server.requests[0].body
    assert b"image/png" in server.requests[0].body
    assert b"aVZCT1J3" in server.requests[0].body


DOT, DASH = Image("image/png", "aVZCT1J3"), Image("image/webp", "UklGRg==")
LOOKS = tuple(ToolCall(CallId(id_), "look", "{}") for id_ in ("c1", "c2", "c3"))
PICTURED: tuple[Message, ...] = (
    user("Look around."),
    Assistant(LOOKS, "calls"),
    ToolResult(CallId("c1"), "look", "a dot", images=(DOT,)),
    ToolResult(CallId("c2"), "look", "nothing"),
    ToolResult(CallId("c3"), "look", "", images=(DASH, DOT)),
    user("And mind the gap.", author="steering"),
    Assistant((Text("I see."), ToolCall(CallId("c4"), "look", "{}")), "calls"),
    ToolResult(CallId("c4"), "look", "a dash", images=(DASH,)),
)
JUDGES: dict[WireName, Callable[[dict[str, Any]], list[str]]] = {
    "openai_chat": chat_problems,
    "openai_responses": responses_problems,
    "anthropic_messages": messages_problems,
}


@every_wire
@pytest.mark.parametrize("caching", CACHING)
@pytest.mark.parametrize("length", [5, 6, 8])
def test_images_of_results_make_a_request_that_strict_endpoints_take(
    wire: WireName, caching: Caching, length: int
) -> None:
    sent = body(wire, History(PICTURED[:length]), caching=caching)
    assert JUDGES[wire](json.loads(sent)) == []
    shown = [DOT, DASH, DOT, DASH][: 3 if length < 8 else 4]
    assert re.findall(rb"aVZCT1J3|UklGRg==", sent) == [image.data.encode() for image in shown]


@every_wire
@pytest.mark.parametrize("arguments", ["", "{", "[1]", '"text"', "null", '{"a": "\ud83d"}', "ünïcödé"])
def test_malformed_arguments_in_history_stay_sendable(wire: WireName, arguments: str) -> None:
    calls = Assistant((ToolCall(CallId("c1"), "weather", arguments),), "calls")
    history = History([user("Hi"), calls, ToolResult(CallId("c1"), "weather", "not JSON", is_error=True)])
    assert [type(given) for given in given_arguments(json.loads(body(wire, history)))] == [dict]


def given_arguments(sent: Any) -> Iterator[Any]:
    for found in objects(sent):
        if "arguments" in found:
            yield json.loads(found["arguments"])
        elif found.get("type") == "tool_use":
            yield found["input"]


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object inside, outermost first."""
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value)
        yield found
        for inner in found.values():
            yield from objects(inner)
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            yield from objects(inner)


@every_wire
def test_tools_stay_in_a_closing_request_but_may_not_be_called(wire: WireName) -> None:
    history = History([user("Sum up.")])
    closing, open_ = (json.loads(body(wire, history, may_call=may_call)) for may_call in (False, True))
    assert closing.pop("tool_choice") in ("none", {"type": "none"})
    assert closing == open_
    assert closing["tools"]


@every_wire
def test_what_may_change_stands_behind_the_history(wire: WireName) -> None:
    history = History([user("Hi")])
    assert stable(body(wire, history)) == stable(body(wire, history, may_call=False, effort="high"))


LIMITS = {
    "openai_chat": "max_tokens",
    "openai_responses": "max_output_tokens",
    "anthropic_messages": "max_tokens",
}


@every_wire
@pytest.mark.parametrize(("of_endpoint", "of_call"), [(500, 100), (100, 500), (100, None), (None, 100)])
def test_the_smaller_limit_of_the_endpoint_and_the_call_is_sent(
    wire: WireName, of_endpoint: int | None, of_call: int | None
) -> None:
    at = msgspec.structs.replace(endpoint(wire), max_output=of_endpoint)
    asked = request(History([user("Hi")]), max_output=of_call)
    assert json.loads(encoded(asked, at))[LIMITS[wire]] == 100


BARE = {
    "openai_chat": {"model", "messages", "tools", "stream", "max_tokens"},
    "openai_responses": {
        "model",
        "instructions",
        "input",
        "tools",
        "stream",
        "max_output_tokens",
        "store",
    },
    "anthropic_messages": {"model", "system", "messages", "tools", "stream", "max_tokens"},
}


@every_wire
@pytest.mark.parametrize("caching", CACHING)
@pytest.mark.parametrize("model", ["test-model", "claude-opus-5"])
def test_an_endpoint_that_refused_something_gets_only_what_a_request_needs(
    wire: WireName, caching: Caching, model: str
) -> None:
    at = msgspec.structs.replace(endpoint(wire, model=model), caching=caching, max_output=5000)
    asked = request(History([user("Hi")]), may_call=False, effort="high")
    sent = encoded(repaired(asked, "drop_extras"), at)
    assert set(json.loads(sent)) == BARE[wire]
    assert b"cache_control" not in sent


def repaired(asked: ModelRequest, *repairs: Repair) -> ModelRequest:
    return msgspec.structs.replace(asked, repairs=frozenset(repairs))


RICH: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "pattern": {"type": "string", "pattern": "^a+$", "minLength": 1, "maxLength": 9000},
        "format": {"type": ["string", "null"], "format": "date-time", "default": {"format": "iso"}},
        "limit": {"anyOf": [{"type": "integer", "minimum": 0, "exclusiveMaximum": 9}, {"$ref": "#/$defs/maximum"}]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "a"}, "maxItems": 900, "uniqueItems": True},
        "labels": {"type": "object", "additionalProperties": {"type": "string", "format": "uri"}},
        "shape": {"enum": ["pattern", {"minimum": 1}], "description": "any format"},
    },
    "required": ["pattern", "format"],
    "additionalProperties": False,
    "$defs": {"maximum": {"type": "number", "multipleOf": 0.5, "maximum": 8, "exclusiveMinimum": 0}},
}
PLAIN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "pattern": {"type": "string"},
        "format": {"type": ["string", "null"], "default": {"format": "iso"}},
        "limit": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/maximum"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "labels": {"type": "object"},
        "shape": {"enum": ["pattern", {"minimum": 1}], "description": "any format"},
    },
    "required": ["pattern", "format"],
    "additionalProperties": False,
    "$defs": {"maximum": {"type": "number"}},
}


@every_wire
def test_plain_schemas_keep_every_name_and_lose_what_grammars_cannot_say(wire: WireName) -> None:
    tool = ToolSpec("search", "Searches.", msgspec.Raw(json.dumps(RICH).encode()))
    asked = msgspec.structs.replace(request(History([user("Hi")])), tools=(tool, WEATHER))
    in_full = json.loads(encoded(asked, endpoint(wire)))
    plain = json.loads(encoded(repaired(asked, "plain_schemas"), endpoint(wire)))
    assert list(schemas(in_full)) == [RICH, json.loads(bytes(WEATHER.parameters))]
    assert list(schemas(plain)) == [PLAIN, json.loads(bytes(WEATHER.parameters))]
    assert {**plain, "tools": in_full["tools"]} == in_full


def schemas(sent: dict[str, Any]) -> Iterator[Any]:
    for tool in sent["tools"]:
        function = tool.get("function", tool)
        yield function.get("parameters", function.get("input_schema"))


@every_wire
def test_the_key_stands_in_a_header_and_not_in_the_body(wire: WireName) -> None:
    assert "sk-secret" in "".join(wire_for(wire).headers(Secret("sk-secret")).values())
    assert b"sk-secret" not in body(wire, History([user("Hi")]))


@every_wire
def test_without_a_key_no_header_claims_one(wire: WireName) -> None:
    names = {name.lower() for name in wire_for(wire).headers(Secret(""))}
    assert not names & {"authorization", "x-api-key"}


WORDS = st.text(st.characters(codec="utf-8"), max_size=8)
IDS = st.text(st.characters(codec="utf-8"), max_size=70).map(CallId)
PICTURES = st.sampled_from([(), (), (Image("image/png", "aVZC"),), (Image("image/gif", "R0lG"),) * 2])
ORIGINS = st.sampled_from(["elsewhere", *(endpoint(wire).origin for wire in WIRES)])


@st.composite
def rounds(draw: st.DrawFn) -> list[Message]:
    """A question, an answer of any kind, and a result for each of its calls."""
    asked = draw(st.lists(st.one_of(WORDS.map(Text), WORDS.map(Context), st.just(Image("image/png", "aVZC")))))
    calls = draw(st.lists(st.builds(ToolCall, IDS, WORDS, WORDS | st.just('{"a": 1}')), max_size=3))
    spoken = draw(st.lists(st.one_of(WORDS.map(Text), WORDS.map(Thinking)), max_size=3))
    parts: tuple[AssistantPart, ...] = (*spoken, *calls)
    results = [
        ToolResult(part.id, part.name, draw(WORDS), draw(st.booleans()), images=draw(PICTURES)) for part in calls
    ]
    notes = draw(st.lists(WORDS.map(lambda text: user(text, author="steering")), max_size=2))
    return [User(tuple(asked)), Assistant(parts, origin=draw(ORIGINS)), *results, *notes]


def stable(sent: bytes) -> bytes:
    """A request up to its last item: without what stands behind the history, and without closing brackets."""
    return sent[: sent.rindex(b'],"')].removesuffix(b"]}")


def bare(wire: WireName, sent: bytes) -> bytes:
    """A request without marks, and on the chat wire without the lists that a text became to bear one."""
    unmarked = sent.replace(b',"cache_control":{"type":"ephemeral"}', b"")
    if wire != "openai_chat":
        return unmarked
    return re.sub(rb'\[\{"type":"text","text":("(?:[^"\\]|\\.)*")\}\]', rb"\1", unmarked)


@every_wire
@pytest.mark.parametrize("caching", CACHING)
@settings(max_examples=60, deadline=None)
@given(said=st.lists(rounds(), min_size=1, max_size=3).map(lambda told: [message for each in told for message in each]))
def test_each_request_begins_with_the_one_before_it(wire: WireName, caching: Caching, said: list[Message]) -> None:
    history = History(said[:1])
    before = body(wire, history, caching=caching)
    for message in said[1:]:
        history.append(message)
        if history.open_calls:  # nobody is asked before every call has its result
            continue
        now = body(wire, history, caching=caching)
        assert bare(wire, now).startswith(stable(bare(wire, before)))
        before = now
    assert before == body(wire, History(said), caching=caching), "kept bytes and fresh bytes differ"
    json.loads(before)


@every_wire
@pytest.mark.parametrize("caching", CACHING)
@settings(max_examples=60, deadline=None)
@given(said=st.lists(rounds(), max_size=3).map(lambda told: [message for each in told for message in each]))
def test_at_most_four_marks_stand_on_anything_but_thinking_and_blank_text(
    wire: WireName, caching: Caching, said: list[Message]
) -> None:
    marked = [found for found in objects(json.loads(body(wire, History(said), caching=caching))) if MARK in found]
    assert len(marked) <= 4
    assert "thinking" not in {found.get("type") for found in marked}
    assert all(found.get("text", "request").strip() for found in marked)


@settings(max_examples=100, deadline=None)
@given(said=st.lists(rounds(), max_size=3).map(lambda told: [message for each in told for message in each]))
def test_anthropic_messages_alternate_and_hold_no_blank_text(said: list[Message]) -> None:
    messages = json.loads(body("anthropic_messages", History(said)))["messages"]
    roles = [message["role"] for message in messages]
    assert roles == [("user", "assistant")[index % 2] for index in range(len(roles))]
    blocks = [block for message in messages for block in message["content"]]
    assert all(message["content"] for message in messages)
    texts = [found[name] for found in objects(blocks) for name in ("text", "content") if name in found]
    assert all(text.strip() if isinstance(text, str) else text for text in texts)


@every_wire
@settings(max_examples=60, deadline=None)
@given(said=rounds())
def test_every_result_names_its_call_by_an_id_that_strict_endpoints_take(wire: WireName, said: list[Message]) -> None:
    sent = json.loads(body(wire, History(said)))
    ids = list(call_ids(sent))
    results = [message for message in said if isinstance(message, ToolResult)]
    assert ids[: len(results)] == ids[len(results) :]
    assert len(set(ids)) == len({result.call_id for result in results})
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", id_) for id_ in ids)


def call_ids(sent: Any) -> Iterator[str]:
    """Of calls, then of results, in order."""
    for found in objects(sent):
        for name in ("call_id", "tool_use_id", "tool_call_id"):
            if name in found:
                yield found[name]
        if found.get("type") in ("tool_use", "function") and "id" in found:
            yield found["id"]


LEAST: list[tuple[WireName, str, Effort, dict[str, Any]]] = [
    ("openai_chat", "gpt-5.1", "none", {"reasoning_effort": "none"}),
    ("openai_chat", "gpt-5.1", "minimal", {"reasoning_effort": "low"}),
    ("openai_chat", "openai/gpt-5-mini", "none", {"reasoning_effort": "minimal"}),
    ("openai_chat", "gpt-5-codex", "none", {"reasoning_effort": "low"}),
    ("openai_chat", "o3", "minimal", {"reasoning_effort": "low"}),
    ("openai_chat", "qwen3:8b", "none", {"reasoning_effort": "none"}),
    ("openai_responses", "gpt-5.2", "none", {"reasoning": {"effort": "none"}}),
    ("openai_responses", "gpt-5", "none", {"reasoning": {"effort": "minimal", "summary": "auto"}}),
    ("openai_responses", "gpt-5", "low", {"reasoning": {"effort": "low", "summary": "auto"}}),
    ("anthropic_messages", "claude-sonnet-4-5", "none", {}),
    ("anthropic_messages", "claude-opus-5", "none", {}),
]


@pytest.mark.parametrize(("wire", "model", "effort", "sent"), LEAST)
def test_no_reasoning_and_the_least_of_it_are_said_as_each_model_knows_them(
    wire: WireName, model: str, effort: Effort, sent: dict[str, Any]
) -> None:
    asked = request(History([user("Hi")]), effort=effort)
    body = json.loads(encoded(asked, endpoint(wire, model=model)))
    names = ("reasoning_effort", "reasoning", "thinking", "output_config")
    assert {name: body[name] for name in names if name in body} == sent


@pytest.mark.parametrize(("effort", "sent"), [("none", {"type": "disabled"}), ("low", None)])
def test_where_thinking_has_a_switch_it_is_switched_off(effort: Effort, sent: dict[str, str] | None) -> None:
    at = msgspec.structs.replace(endpoint("openai_chat", model="glm-4.7"), provider="zai")
    body = json.loads(encoded(request(History([user("Hi")]), effort=effort), at))
    assert (body.get("thinking"), body.get("reasoning_effort")) == (sent, None if sent else effort)
