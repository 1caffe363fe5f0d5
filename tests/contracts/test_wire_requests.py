"""What every wire makes of a conversation: a request that the vendor takes, whose prefix never changes."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.model.ids import CallId, SessionId
from talaria.model.messages import (
    Assistant,
    AssistantPart,
    Context,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    User,
    user,
)
from talaria.model.secret import Secret
from talaria.model.tools import ToolSpec
from talaria.net.client import HttpClient
from talaria.providers.base import Effort, Endpoint, Request, WireName
from talaria.providers.history import History
from talaria.providers.http import HttpProvider
from talaria.providers.wires import wire_for
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.replies import Reply, call

WIRES: tuple[WireName, ...] = ("openai_chat", "openai_responses", "anthropic_messages")
WEATHER = ToolSpec("weather", "Tells the weather.", msgspec.Raw(b'{"type":"object","properties":{}}'))
BASE_URL = "http://127.0.0.1:9/v1"

every_wire = pytest.mark.parametrize("wire", WIRES)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    async with HttpClient() as client:
        yield client


def endpoint(wire: WireName, base_url: str = BASE_URL, model: str = "test-model") -> Endpoint:
    return Endpoint("test", model, base_url, wire, key=Secret("sk-secret"))


def request(history: History, *, may_call: bool = True, effort: Effort | None = None) -> Request:
    return Request("Be brief.", (WEATHER,), history, SessionId("s1"), may_call=may_call, effort=effort)


def body(wire: WireName, history: History, *, may_call: bool = True, effort: Effort | None = None) -> bytes:
    spoken, at = wire_for(wire), endpoint(wire)
    encoded = history.encoded(at.origin, lambda message: spoken.encode(message, at.origin))
    return spoken.body(request(history, may_call=may_call, effort=effort), at, encoded)


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
    provider = HttpProvider(endpoint(wire, server.base_url), wire_for(wire), client)
    sent = await replayed(server, provider, provider)
    assert SEALS[wire] in sent
    assert sent.index(SEALS[wire][:15]) < sent.index(b"sunny")


@every_wire
@pytest.mark.parametrize("other", WIRES)
async def test_sealed_thinking_goes_nowhere_else(
    server: ModelServer, client: HttpClient, wire: WireName, other: WireName
) -> None:
    first = HttpProvider(endpoint(wire, server.base_url), wire_for(wire), client)
    second = HttpProvider(endpoint(other, server.base_url, "other-model"), wire_for(other), client)
    sent = await replayed(server, first, second)
    assert b"I need a tool." not in sent
    assert Reply(thinking="I need a tool.").signature.encode() not in sent
    assert b"Let me look." in sent


@every_wire
async def test_images_are_sent(server: ModelServer, client: HttpClient, wire: WireName) -> None:
    server.say("A cat.")
    history = History([User((Text("What is this?"), Image("image/png", "aVZCT1J3")))])
    await ask(HttpProvider(endpoint(wire, server.base_url), wire_for(wire), client), history)
    assert b"What is this?" in server.requests[0].body
    assert b"image/png" in server.requests[0].body
    assert b"aVZCT1J3" in server.requests[0].body


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
ORIGINS = st.sampled_from(["elsewhere", *(endpoint(wire).origin for wire in WIRES)])


@st.composite
def rounds(draw: st.DrawFn) -> list[Message]:
    """A question, an answer of any kind, and a result for each of its calls."""
    asked = draw(st.lists(st.one_of(WORDS.map(Text), WORDS.map(Context), st.just(Image("image/png", "aVZC")))))
    calls = draw(st.lists(st.builds(ToolCall, IDS, WORDS, WORDS | st.just('{"a": 1}')), max_size=3))
    spoken = draw(st.lists(st.one_of(WORDS.map(Text), WORDS.map(Thinking)), max_size=3))
    parts: tuple[AssistantPart, ...] = (*spoken, *calls)
    results = [ToolResult(part.id, part.name, draw(WORDS), draw(st.booleans())) for part in calls]
    notes = draw(st.lists(WORDS.map(lambda text: user(text, author="steering")), max_size=2))
    return [User(tuple(asked)), Assistant(parts, origin=draw(ORIGINS)), *results, *notes]


def stable(sent: bytes) -> bytes:
    """A request up to its last item: without what stands behind the history, and without closing brackets."""
    return sent[: sent.rindex(b'],"')].removesuffix(b"]}")


@every_wire
@settings(max_examples=60, deadline=None)
@given(said=st.lists(rounds(), min_size=1, max_size=3).map(lambda told: [message for each in told for message in each]))
def test_each_request_begins_with_the_one_before_it(wire: WireName, said: list[Message]) -> None:
    history = History(said[:1])
    before = body(wire, history)
    for message in said[1:]:
        history.append(message)
        now = body(wire, history)
        assert now.startswith(stable(before))
        before = now
    assert before == body(wire, History(said)), "kept bytes and fresh bytes differ"
    json.loads(before)


@settings(max_examples=100, deadline=None)
@given(said=st.lists(rounds(), max_size=3).map(lambda told: [message for each in told for message in each]))
def test_anthropic_messages_alternate_and_hold_no_blank_text(said: list[Message]) -> None:
    messages = json.loads(body("anthropic_messages", History(said)))["messages"]
    roles = [message["role"] for message in messages]
    assert roles == [("user", "assistant")[index % 2] for index in range(len(roles))]
    blocks = [block for message in messages for block in message["content"]]
    assert all(message["content"] for message in messages)
    assert all(block.get("text", block.get("content", "x")).strip() for block in blocks)


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
