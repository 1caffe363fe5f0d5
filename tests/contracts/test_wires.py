"""What every wire makes of an answer: the same message, whoever sends it and however the sending goes."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.scripted_provider import ScriptedProvider

from talaria.core.clock import SystemClock
from talaria.core.errors import (
    Disconnected,
    KeyRejected,
    Overloaded,
    ProviderFailure,
    RateLimited,
    RequestRejected,
    Transient,
)
from talaria.core.events import TextDelta, ThinkingDelta
from talaria.core.ids import CallId, SessionId
from talaria.core.messages import Assistant, StopReason, Text, Thinking, ToolCall, Usage, user
from talaria.core.secret import Secret
from talaria.net.client import EventSplitter, HttpClient
from talaria.providers.base import Delta, Endpoint, ModelRequest, Provider, WireName
from talaria.providers.demo import DemoProvider
from talaria.providers.http_provider import HttpProvider, wire_for
from talaria.providers.message_history import History
from talaria.testing.servers import scripted_replies
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Call, Failure, Faults, Reply, call

WIRES: tuple[WireName, ...] = ("openai_chat", "openai_responses", "anthropic_messages")
PARALLEL = (call("weather", city="Zürich 🌦"), call("time", id="call_2", zone="Europe/Zurich", precise=True))
EVERYTHING = Reply(
    "Grüezi 🌞, let me look.", "Two tools, I think. 🤔", PARALLEL, scripted_replies.ReplyUsage(7, 50, 1_000, 200, 30)
)

streamed_and_whole = pytest.mark.parametrize("is_streaming", [True, False], ids=["stream", "document"])


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> WireName:
    return request.param


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    async with HttpClient(SystemClock()) as client:
        yield client


@pytest.fixture
def provider(server: ModelServer, client: HttpClient, wire: WireName) -> HttpProvider:
    endpoint = Endpoint("test", "test-model", server.base_url, wire)
    return HttpProvider(endpoint, wire_for(wire), client, SystemClock())


def question(*, is_streaming: bool = True) -> ModelRequest:
    history = History([user("What is the weather?")])
    return ModelRequest("Be brief.", (), history, SessionId("s1"), is_streaming=is_streaming, key=Secret("sk-secret"))


async def heard(provider: HttpProvider, *, is_streaming: bool = True) -> tuple[list[Delta], Assistant]:
    items = [item async for item in provider.stream(question(is_streaming=is_streaming))]
    answers = [item for item in items if isinstance(item, Assistant)]
    assert items[-1] is answers[0]
    return [item for item in items if not isinstance(item, Assistant)], answers[0]


async def answer_to(provider: HttpProvider, *, is_streaming: bool = True) -> Assistant:
    return (await heard(provider, is_streaming=is_streaming))[1]


def thinking_of(answer: Assistant) -> str:
    return "".join(part.text for part in answer.parts if isinstance(part, Thinking))


@streamed_and_whole
async def test_text_comes_as_it_was_said(server: ModelServer, provider: HttpProvider, is_streaming: bool) -> None:
    server.say("Grüezi, it is sunny 🌞 today.")
    answer = await answer_to(provider, is_streaming=is_streaming)
    assert answer.parts == (Text("Grüezi, it is sunny 🌞 today."),)
    assert answer.stop == "end"
    assert answer.origin == provider.endpoint.origin


@streamed_and_whole
async def test_thinking_text_and_parallel_calls_come_in_order(
    server: ModelServer, provider: HttpProvider, is_streaming: bool
) -> None:
    server.say(EVERYTHING)
    answer = await answer_to(provider, is_streaming=is_streaming)
    assert [type(part) for part in answer.parts] == [Thinking, Text, ToolCall, ToolCall]
    assert thinking_of(answer) == EVERYTHING.thinking
    assert answer.text == EVERYTHING.text
    assert [(part.id, part.name) for part in answer.calls] == [("call_1", "weather"), ("call_2", "time")]
    assert [part.arguments.replace(" ", "") for part in answer.calls] == [
        part.arguments.replace(" ", "") for part in PARALLEL
    ]
    assert answer.stop == "calls"


async def test_deltas_add_up_to_the_message(server: ModelServer, provider: HttpProvider) -> None:
    server.say(EVERYTHING)
    deltas, answer = await heard(provider)
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == answer.text
    assert "".join(delta.text for delta in deltas if isinstance(delta, ThinkingDelta)) == thinking_of(answer)
    assert len(deltas) >= 2


async def test_streamed_arguments_are_kept_exactly_as_the_model_wrote_them(
    server: ModelServer, provider: HttpProvider
) -> None:
    broken = '{"city": "Zürich", "days": [1, 2'
    server.say(Reply(calls=(Call("call_1", "weather", broken),)))
    assert (await answer_to(provider)).calls == (ToolCall(CallId("call_1"), "weather", broken),)


@streamed_and_whole
async def test_a_call_without_arguments_has_an_empty_object(
    server: ModelServer, provider: HttpProvider, is_streaming: bool
) -> None:
    server.say(Reply(calls=(call("now"),)))
    assert [part.arguments for part in (await answer_to(provider, is_streaming=is_streaming)).calls] == ["{}"]


@streamed_and_whole
async def test_usage_is_sorted_into_buckets_that_do_not_overlap(
    server: ModelServer, provider: HttpProvider, is_streaming: bool
) -> None:
    server.say(EVERYTHING)
    answer = await answer_to(provider, is_streaming=is_streaming)
    assert answer.usage == Usage(input=7, output=50, cache_read=1_000, cache_write=200, reasoning=30)


@streamed_and_whole
async def test_missing_usage_is_unknown_and_not_zero(
    server: ModelServer, provider: HttpProvider, is_streaming: bool
) -> None:
    server.say(Reply("Hello.", usage=None))
    assert (await answer_to(provider, is_streaming=is_streaming)).usage is None


@streamed_and_whole
@pytest.mark.parametrize(
    ("reply", "stop"),
    [
        (Reply("Done."), "end"),
        (Reply(calls=PARALLEL), "calls"),
        (Reply("It is su", stop="length"), "length"),
        (Reply("I", stop="content_filter"), "refused"),
    ],
    ids=["end", "calls", "length", "refused"],
)
async def test_stop_reasons_have_one_name_each(
    server: ModelServer, provider: HttpProvider, is_streaming: bool, reply: Reply, stop: StopReason
) -> None:
    server.say(reply)
    assert (await answer_to(provider, is_streaming=is_streaming)).stop == stop


@pytest.mark.parametrize(
    "faults",
    [
        Faults(noise=True),
        Faults(crlf=True),
        Faults(no_space_after_colon=True),
        Faults(noise=True, crlf=True, no_space_after_colon=True),
        Faults(huge_line_bytes=300_000),
    ],
    ids=["noise", "crlf", "no space", "all of them", "huge line"],
)
async def test_dialects_of_the_stream_sound_the_same(
    server: ModelServer, provider: HttpProvider, faults: Faults
) -> None:
    server.say(EVERYTHING, replace(EVERYTHING, faults=faults))
    assert await answer_to(provider) == await answer_to(provider)


@pytest.mark.parametrize("wire", ["openai_chat", "anthropic_messages"])
async def test_the_end_marker_may_be_missing_once_the_stop_reason_is_known(
    server: ModelServer, provider: HttpProvider
) -> None:
    server.say(EVERYTHING, replace(EVERYTHING, faults=Faults(omit_end_marker=True)))
    assert await answer_to(provider) == await answer_to(provider)


@pytest.mark.parametrize("wire", ["openai_responses"])
async def test_the_end_marker_may_not_be_missing_where_it_is_the_stop_reason(
    server: ModelServer, provider: HttpProvider
) -> None:
    server.say(replace(EVERYTHING, faults=Faults(omit_end_marker=True)))
    with pytest.raises(Disconnected, match="broke off before its end"):
        await answer_to(provider)


REFUSALS: dict[int, tuple[type[ProviderFailure], str]] = {
    400: (
        RequestRejected,
        (
            "test:test-model refused the request (400: Bad Request (scripted by ModelServer)). "
            "Check the model's settings in config.yaml."
        ),
    ),
    401: (
        KeyRejected,
        (
            "test:test-model did not accept the API key (401: Unauthorized (scripted by ModelServer)). "
            "Check the key in your .env."
        ),
    ),
    402: (
        KeyRejected,
        (
            "test:test-model requires payment (402: Payment Required (scripted by ModelServer)). "
            "Add credit there, or use another key in your .env."
        ),
    ),
    404: (
        RequestRejected,
        (
            "test:test-model was not found (404: Not Found (scripted by ModelServer)). "
            "Check the model's name and base_url."
        ),
    ),
    429: (RateLimited, "test:test-model asks us to slow down (429: Too Many Requests (scripted by ModelServer))."),
    529: (Overloaded, "test:test-model is having problems (529: Overloaded (scripted by ModelServer))."),
}


@pytest.mark.parametrize("status", REFUSALS)
async def test_refusals_say_in_one_sentence_who_must_act(
    server: ModelServer, provider: HttpProvider, status: int
) -> None:
    error, sentence = REFUSALS[status]
    server.say(Failure(status, headers={"retry-after": "7"}))
    with pytest.raises(error) as refused:
        await answer_to(provider)
    assert str(refused.value) == sentence
    if isinstance(refused.value, Transient):
        assert refused.value.retry_after_s == 7


async def test_a_refusal_without_a_reason_does_not_point_to_one(server: ModelServer, provider: HttpProvider) -> None:
    server.say(Failure(422, b""))
    with pytest.raises(RequestRejected) as refused:
        await answer_to(provider)
    assert str(refused.value) == (
        "test:test-model refused the request (422). Check the model's settings in config.yaml."
    )


async def test_a_page_of_html_is_not_quoted_and_not_an_answer(server: ModelServer, provider: HttpProvider) -> None:
    page = b"<html><h1>It works!</h1></html>"
    server.say(Failure(502, page), Reply(faults=Faults(raw_body=page)))
    with pytest.raises(Overloaded) as refused:
        await answer_to(provider)
    assert str(refused.value) == "test:test-model is having problems (502)."
    with pytest.raises(Disconnected, match="not an answer"):
        await answer_to(provider)


@pytest.mark.parametrize(
    ("kinds", "error"),
    [
        ({"type": "overloaded_error", "code": "server_error"}, Overloaded),
        ({"type": "rate_limit_error", "code": "rate_limit_exceeded"}, RateLimited),
        ({"type": "invalid_request_error", "code": "invalid_prompt"}, RequestRejected),
    ],
)
async def test_an_error_inside_a_stream_is_raised_after_the_text_before_it(
    server: ModelServer, provider: HttpProvider, kinds: dict[str, str], error: type[ProviderFailure]
) -> None:
    faults = Faults(error_in_stream={**kinds, "message": "too many people"})
    server.say(Reply("Half an answer", calls=PARALLEL, faults=faults))
    items: list[Delta | Assistant] = []
    with pytest.raises(error, match="too many people"):
        await take(provider, into=items)
    assert items
    assert all(isinstance(item, TextDelta) for item in items)
    assert "".join(item.text for item in items) == "Half an answer"


async def take(provider: HttpProvider, *, into: list[Delta | Assistant]) -> None:
    async for item in provider.stream(question()):
        into.append(item)  # noqa: PERF401  (what came before an error is kept)


@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses"])
async def test_an_error_is_known_by_its_code_where_its_type_says_less(
    server: ModelServer, provider: HttpProvider
) -> None:
    error = {"type": "tokens", "code": "rate_limit_exceeded", "message": "too many people"}
    server.say(Reply(faults=Faults(error_in_stream=error)))
    with pytest.raises(RateLimited):
        await answer_to(provider)


@streamed_and_whole
async def test_a_cut_anywhere_is_a_lost_connection_and_never_half_an_answer(
    server: ModelServer, client: HttpClient, provider: HttpProvider, is_streaming: bool
) -> None:
    size = len(await body_of(server, client, provider, EVERYTHING, is_streaming=is_streaming))
    for at in (*range(0, size, 61), size - 1):
        server.say(replace(EVERYTHING, faults=Faults(cut_at=at)))
        with pytest.raises(Disconnected):
            await answer_to(provider, is_streaming=is_streaming)


async def test_a_stream_that_just_ends_is_whole_or_lost(
    server: ModelServer, client: HttpClient, provider: HttpProvider, wire: WireName
) -> None:
    """For answers without a length, whose cut the connection does not show."""
    body = await body_of(server, client, provider, EVERYTHING)
    whole = assembled(wire, provider.endpoint, body)
    for at in range(len(body)):
        try:
            answer = assembled(wire, provider.endpoint, body[:at])
        except Disconnected:
            continue
        assert (answer.parts, answer.stop) == (whole.parts, whole.stop)


def assembled(wire: WireName, endpoint: Endpoint, body: bytes) -> Assistant:
    splitter, decoder = EventSplitter(), wire_for(wire).decoder(endpoint)
    for data in (*splitter.feed(body), *splitter.end()):
        list(decoder.feed(data))
    return decoder.finish()


async def body_of(
    server: ModelServer, client: HttpClient, provider: HttpProvider, reply: Reply, *, is_streaming: bool = True
) -> bytes:
    """The bytes of an answer as they come off the connection."""
    server.say(reply)
    endpoint = provider.endpoint
    wire, request = wire_for(endpoint.wire), question(is_streaming=is_streaming)
    encoded = request.history.encode("", lambda message: wire.encode(message, ""))
    body = wire.body(request, endpoint, encoded)
    async with client.post(
        endpoint.base_url + wire.path, body=body, headers={}, timeouts=endpoint.timeouts
    ) as response:
        return await response.read()


async def test_an_endpoint_tells_what_it_serves_where_the_key_is_taken(
    server: ModelServer, provider: HttpProvider
) -> None:
    port: Provider = provider
    assert await port.models(Secret("sk-secret")) == ["test-model"]
    assert [(request.method, request.path) for request in server.requests] == [("GET", "/v1/models")]


async def test_a_key_that_is_not_taken_is_told_by_the_list_of_models(client: HttpClient, wire: WireName) -> None:
    with ModelServer(listing=Failure(401)) as server:
        endpoint = Endpoint("test", "test-model", server.base_url + "/", wire)
        with pytest.raises(KeyRejected):
            await HttpProvider(endpoint, wire_for(wire), client, SystemClock()).models(Secret("wrong"))
        assert server.requests[0].path == "/v1/models"


async def test_models_without_an_endpoint_name_themselves(tmp_path: Path) -> None:
    models: list[Provider] = [DemoProvider(tmp_path / ".env"), ScriptedProvider()]
    for model in models:
        assert await model.models(Secret("")) == [model.endpoint.model]


async def test_connection_is_reused_after_a_streamed_answer(server: ModelServer, provider: HttpProvider) -> None:
    server.say("One.", "Two.", "Three.")
    for _ in range(3):
        await answer_to(provider)
    assert server.connections == 1


async def test_key_that_the_endpoint_quotes_is_not_told_on(provider: HttpProvider, server: ModelServer) -> None:
    server.say(Failure(401, {"error": {"message": "Incorrect API key provided: sk-secret."}}))
    with pytest.raises(KeyRejected) as refused:
        await heard(provider)
    assert "•••" in str(refused.value)
    assert "sk-secret" not in str(refused.value)


async def test_key_quoted_inside_a_stream_is_not_told_on(provider: HttpProvider, server: ModelServer) -> None:
    error = {"type": "authentication_error", "message": "bad key sk-secret"}
    server.say(Reply("Hm", faults=Faults(error_in_stream=error)))
    with pytest.raises(ProviderFailure) as failed:
        await heard(provider)
    assert "sk-secret" not in str(failed.value)
