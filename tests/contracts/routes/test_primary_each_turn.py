"""Each turn begins at the primary again: what arrives where, and what the person and the journal are told."""

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from tests.ports import reserved_port

from talaria.core.entries import RouteChanged
from talaria.core.errors import Disconnected
from talaria.core.events import Event, Notice, RouteSwitched, TurnBegan
from talaria.core.messages import Assistant, user
from talaria.core.secret import Secret
from talaria.providers.base import Delta, Endpoint, ModelRequest, Provider
from talaria.runtime.turn_runner import Report
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Failure, Faults, Reply

if TYPE_CHECKING:
    from tests.contracts.routes.conftest import OpenHarness

    from talaria.testing.harness import Harness

DOWN = Failure(503)
LIMITED = Failure(429)
RESET = Reply("gone", faults=Faults(cut_at=0, reset=True))
HUNG = Reply(faults=Faults(hang=True))


def model_at(server: ModelServer, **more: Any) -> dict[str, Any]:
    return {"provider": "custom", "default": "big", "base_url": server.base_url, **more}


def house_at(server: ModelServer, **more: Any) -> dict[str, Any]:
    """A provider of our own with one model, as a fallback is usually configured."""
    return {"house": {"base_url": server.base_url, "models": {"small": {"context_length": 1_000}}, **more}}


def asked_models(server: ModelServer) -> list[str]:
    return [request.json["model"] for request in server.requests]


@pytest.mark.clause("R-01")
async def test_the_primary_is_a_value_with_all_that_is_needed_to_call_it(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    settings = model_at(primary, api_key="sk-1", context_length=9_000, wire="openai_chat")
    async with harness(model=settings, providers=house_at(fallback), fallback_providers="house:small") as here:
        recorded = here.app.route.primary
        assert (recorded.model, recorded.provider, recorded.base_url) == ("big", "custom", primary.base_url)
        assert (recorded.wire, recorded.keys, recorded.window) == ("openai_chat", (Secret("sk-1"),), 9_000)
        primary.say(LIMITED, "back again")
        fallback.say("from the fallback")
        assert (await here.ask()).text == "from the fallback"
        assert (await here.ask()).text == "back again"
        assert here.events_of(RouteSwitched) == []
    request = primary.requests[1]
    assert (request.path, request.json["model"]) == ("/v1/chat/completions", "big")
    assert request.headers["authorization"] == "Bearer sk-1"


@pytest.mark.clause("R-02")
async def test_a_turn_begins_with_the_window_and_the_threshold_of_its_primary(
    harness: "OpenHarness", primary: ModelServer
) -> None:
    async with harness(model=model_at(primary, context_length=200_000)) as here:
        primary.say("hello")
        await here.ask()
        endpoint = here.app.route.primary
        assert (here.events_of(TurnBegan)[0].model, here.events_of(TurnBegan)[0].window) == (endpoint.label, 200_000)
        assert here.events_of(TurnBegan)[0].compact_at == endpoint.compact_at == 150_000


@pytest.mark.clause("R-03")
@pytest.mark.parametrize(
    ("key", "header", "sent"),
    [("sk-ant-api03-x", "x-api-key", "sk-ant-api03-x"), ("sk-ant-oat01-x", "authorization", "Bearer sk-ant-oat01-x")],
    ids=["key", "oauth"],
)
async def test_the_anthropic_wire_has_its_own_key_address_and_way_to_log_in_each_turn(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer, key: str, header: str, sent: str
) -> None:
    settings = {"provider": "anthropic", "default": "claude-x", "base_url": primary.base_url, "api_key": key}
    providers = house_at(fallback, api_key="sk-house")
    async with harness(model=settings, providers=providers, fallback_providers="house:small") as here:
        primary.say(LIMITED, "back again")
        fallback.say("meanwhile")
        await here.ask()
        assert (await here.ask()).text == "back again"
        assert here.events_of(RouteSwitched) == []
    for request in primary.requests:
        assert (request.path, request.headers[header]) == ("/v1/messages", sent)
        assert ("x-api-key" in request.headers) != ("authorization" in request.headers)
    assert fallback.requests[0].headers["authorization"] == "Bearer sk-house"


@pytest.mark.clause("R-04")
@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses"])
async def test_the_openai_wires_carry_nothing_of_anthropics(
    harness: "OpenHarness", primary: ModelServer, wire: str
) -> None:
    async with harness(model=model_at(primary, api_key="sk-1", wire=wire)) as here:
        primary.say("hello")
        await here.ask()
    headers = primary.requests[0].headers
    assert headers["authorization"] == "Bearer sk-1"
    assert not [name for name in headers if name == "x-api-key" or name.startswith("anthropic")]


@pytest.mark.clause("R-05")
async def test_without_a_fallback_in_use_the_next_turn_changes_nothing(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    async with harness(model=model_at(primary), providers=house_at(fallback), fallback_providers="house:small") as here:
        primary.say("one", "two")
        for text in ("one", "two"):
            assert (await here.ask()).text == text
            assert here.events_of(RouteSwitched) == []
        assert not [entry for entry in await here.entries() if isinstance(entry, RouteChanged)]
    assert asked_models(primary) == ["big", "big"]
    assert fallback.requests == []


@pytest.mark.clause("R-06")
async def test_a_single_fallback_takes_over_for_the_turn_and_hands_back(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    async with harness(model=model_at(primary), providers=house_at(fallback), fallback_providers="house:small") as here:
        primary.say(LIMITED, "back again")
        fallback.say("meanwhile")
        report = await here.ask()
        assert (report.text, report.model) == ("meanwhile", "house:small")
        assert [(switch.before, switch.model) for switch in here.events_of(RouteSwitched)] == [
            ("custom:big", "house:small")
        ]
        report = await here.ask()
        assert (report.text, report.model, here.events_of(RouteSwitched)) == ("back again", "custom:big", [])


@pytest.mark.clause("R-07")
async def test_every_fallback_is_there_again_in_the_next_turn(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    with ModelServer() as second:
        entries = [
            {"provider": "custom", "model": "first", "base_url": fallback.base_url},
            {"provider": "custom", "model": "second", "base_url": second.base_url},
        ]
        async with harness(model=model_at(primary), fallback_providers=entries) as here:
            primary.say(Failure(401), Failure(401))
            fallback.say("from the first", Failure(401))
            second.say("from the second")
            assert (await here.ask()).text == "from the first"
            report = await here.ask()
            assert (report.text, report.model) == ("from the second", "custom:second")
            assert [switch.model for switch in here.events_of(RouteSwitched)] == ["custom:first", "custom:second"]


@pytest.mark.clause("R-08")
async def test_the_window_that_counts_is_that_of_the_endpoint_in_use(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    settings = model_at(primary, context_length=200_000)
    async with harness(model=settings, providers=house_at(fallback), fallback_providers="house:small") as here:
        primary.say(LIMITED, "back again")
        fallback.say("meanwhile")
        await here.ask("x" * 5_000)
        assert (here.events_of(RouteSwitched)[0].window, here.events_of(RouteSwitched)[0].compact_at) == (1_000, 850)
        assert [text for text in notices(here) if "window of house:small" in text]
        await here.ask()
        assert (here.events_of(TurnBegan)[0].window, here.events_of(TurnBegan)[0].compact_at) == (200_000, 150_000)
        assert notices(here) == []


@pytest.mark.clause("R-09")
async def test_prompt_caching_is_decided_by_the_endpoint_in_use(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    settings = {"provider": "anthropic", "default": "claude-x", "base_url": primary.base_url, "api_key": "k"}
    providers = {"anthropic": {"prompt_caching": "automatic"}, **house_at(fallback)}
    async with harness(model=settings, providers=providers, fallback_providers="house:small") as here:
        primary.say(LIMITED, "back again")
        fallback.say("meanwhile")
        await here.ask()
        assert (await here.ask()).text == "back again"
        assert here.events_of(RouteSwitched) == []
    assert [request.json.get("cache_control") for request in primary.requests] == [{"type": "ephemeral"}] * 2
    assert b"cache_control" not in fallback.requests[0].body


@pytest.mark.clause("R-10")
async def test_a_primary_that_cannot_be_made_ready_does_not_break_the_turn(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    providers = {"work": {"base_url": primary.base_url, "key_command": "exit 3"}, **house_at(fallback)}
    async with harness(model={"default": "work:big"}, providers=providers, fallback_providers="house:small") as here:
        fallback.say("meanwhile")
        report = await here.ask()
        assert (report.outcome, report.text) == ("completed", "meanwhile")
        assert "key_command" in here.events_of(RouteSwitched)[0].reason
    assert primary.requests == []


@pytest.mark.clause("R-11")
@pytest.mark.parametrize("status", [400, 429, 402])
async def test_after_a_turn_on_a_fallback_the_first_request_of_the_next_goes_to_the_primary(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer, status: int
) -> None:
    async with harness(model=model_at(primary), providers=house_at(fallback), fallback_providers="house:small") as here:
        primary.say(Failure(status), "back again")
        fallback.say("meanwhile")
        assert (await here.ask()).text == "meanwhile"
        assert (await here.ask()).text == "back again"
        assert here.clock.slept == []
    assert asked_models(primary) == ["big", "big"]
    assert asked_models(fallback) == ["small"]


NAMED = {
    "retry-after": {"retry-after": "30"},
    "reset": {"x-ratelimit-reset-requests": "30s", "x-ratelimit-remaining-requests": "0"},
}


@pytest.mark.clause("R-11")
@pytest.mark.parametrize("headers", NAMED.values(), ids=NAMED)
async def test_only_a_time_that_the_primary_named_itself_keeps_the_next_turn_from_it(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer, headers: dict[str, str]
) -> None:
    async with harness(model=model_at(primary), providers=house_at(fallback), fallback_providers="house:small") as here:
        primary.say(Failure(429, headers=headers), "back again")
        fallback.say("one", "two")
        assert (await here.ask()).text == "one"
        here.clock.advance(29)
        assert (await here.ask()).text == "two"
        assert here.events_of(TurnBegan)[0].model == "house:small"
        assert [(switch.before, switch.model) for switch in here.events_of(RouteSwitched)] == [
            ("custom:big", "house:small")
        ]
        here.clock.advance(2)
        assert (await here.ask()).text == "back again"
        assert here.events_of(RouteSwitched) == []
    assert asked_models(primary) == ["big", "big"]


@pytest.mark.clause("R-11")
async def test_another_conversations_first_request_goes_to_the_primary_too(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    async with harness(model=model_at(primary), providers=house_at(fallback), fallback_providers="house:small") as here:
        primary.say(LIMITED, "for the other")
        fallback.say("meanwhile")
        await here.ask()
        other = here.app.session(cwd=here.app.settings.home, origin="terminal")
        assert (await other.ask(user("go"))).text == "for the other"
    assert asked_models(fallback) == ["small"]


@pytest.mark.clause("R-12")
async def test_the_full_cycle_is_kept_in_the_journal(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    async with harness(model=model_at(primary), providers=house_at(fallback), fallback_providers="house:small") as here:
        primary.say(LIMITED, "back again")
        fallback.say("meanwhile")
        first = await here.ask()
        second = await here.ask()
        kept = [entry for entry in await here.entries() if isinstance(entry, RouteChanged)]
        assert [(entry.turn, entry.before, entry.model) for entry in kept] == [
            (first.turn, "custom:big", "house:small")
        ]
        assert "429" in kept[0].reason
        assert (second.model, here.events_of(TurnBegan)[0].model) == ("custom:big", "custom:big")


@pytest.mark.clause("R-13")
@pytest.mark.parametrize("setting", ["fallback_providers", "fallback_model"])
@pytest.mark.parametrize("shape", ["one entry", "a list", "one name", "a list of names"])
async def test_fallbacks_are_one_entry_or_a_list(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer, shape: str, setting: str
) -> None:
    entry = {"provider": "house", "model": "small", "base_url": f"{fallback.base_url}/", "api_key": "sk-own"}
    given = {"one entry": entry, "a list": [entry], "one name": "house:small", "a list of names": ["house:small"]}
    async with harness(
        model=model_at(primary, api_key="sk-1"), providers=house_at(fallback), **{setting: given[shape]}
    ) as here:
        primary.say(Failure(401))
        fallback.say("meanwhile")
        assert (await here.ask()).model == "house:small"
    sent = fallback.requests[0].headers.get("authorization")
    assert sent == ("Bearer sk-own" if "entry" in shape or shape == "a list" else None)


@pytest.mark.clause("R-14")
async def test_silence_of_the_primary_is_recovered_from_with_fresh_connections(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    async with harness(model=model_at(primary), providers=house_at(fallback), fallback_providers="house:small") as here:
        primary.say(HUNG, HUNG, HUNG, "recovered")
        asking = asyncio.create_task(here.ask())
        for number in (1, 2, 3):
            await asyncio.to_thread(primary.wait_for_requests, number)
            here.clock.advance(181)
        report = await asking
        assert (report.text, report.model, here.events_of(RouteSwitched)) == ("recovered", "custom:big", [])
        assert len(here.clock.slept) == 3
        assert here.clock.slept[-1] == 6
    assert fallback.requests == []


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Nobody listens there, and nobody else can."""
    with reserved_port() as port:
        yield port


@pytest.fixture
def deaf() -> Iterator[socket.socket]:
    """It listens and takes nobody: whoever comes waits for a connection. Nobody else gets its port afterwards."""
    with (
        reserved_port() as port,
        socket.create_server(("127.0.0.1", port), backlog=0) as listening,
        ExitStack() as stack,
    ):
        for _ in range(2):  # so many are kept waiting; the next gets no answer at all
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield listening


async def recovered_at(
    here: "Harness", port: int, end_the_other: Callable[[], None] = lambda: None
) -> tuple[Report, str]:
    """A turn during which somebody begins to serve there, as soon as new connections are tried; and what was told."""
    server = ModelServer(port=port)
    server.say("recovered")
    told: list[str] = []
    with ExitStack() as stack:

        def watch(event: Event) -> None:
            if isinstance(event, Notice):
                told.append(event.text)
                if "new connections" in event.text:
                    end_the_other()
                    stack.enter_context(server)

        report = await here.live.ask(user("go"), watch)
        assert len(server.requests) == 1
    return report, told[-1]


@pytest.mark.clause("R-15")
@pytest.mark.parametrize("provider", ["custom", "zai"])
async def test_a_refused_connection_is_recovered_from(
    harness: "OpenHarness", fallback: ModelServer, closed_port: int, provider: str
) -> None:
    """At 0.0.0.0 is this machine, too, but it is not a loopback address, where a refusal is final."""
    settings = {"provider": provider, "default": "big", "base_url": f"http://0.0.0.0:{closed_port}/v1"}
    async with harness(
        {"GLM_API_KEY": "sk-glm"}, model=settings, providers=house_at(fallback), fallback_providers="house:small"
    ) as here:
        report, told = await recovered_at(here, closed_port)
        assert (report.text, report.model) == ("recovered", f"{provider}:big")
        assert "Connection refused" in told
        assert (len(here.clock.slept), here.clock.slept[-1]) == (3, 6)
    assert fallback.requests == []


@pytest.mark.clause("R-15")
@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse where Linux lets wait")
async def test_a_connection_that_is_not_made_in_time_is_recovered_from(
    harness: "OpenHarness", deaf: socket.socket
) -> None:
    port = deaf.getsockname()[1]
    providers = {"zai": {"base_url": f"http://127.0.0.1:{port}/v1", "timeouts": {"connect_s": 0.5}}}
    async with harness({"ZAI_API_KEY": "k"}, model={"default": "zai:glm"}, providers=providers) as here:
        report, told = await recovered_at(here, port, deaf.close)
        assert (report.text, report.model) == ("recovered", "zai:glm")
        assert "no connection within" in told
        assert (len(here.clock.slept), here.clock.slept[-1]) == (3, 6)


@pytest.mark.clause("R-15")
@pytest.mark.clause("R-16")
@pytest.mark.parametrize("name", ["ConnectTimeout", "PoolTimeout"])
async def test_a_time_limit_of_another_library_is_recovered_from_also_at_a_named_provider(
    harness: "OpenHarness", primary: ModelServer, name: str
) -> None:
    providers = {"zai": {"base_url": primary.base_url}}
    async with harness({"GLM_API_KEY": "sk-glm"}, model={"default": "zai:glm"}, providers=providers) as here:
        primary.say("recovered")
        here.wrap_providers(failing(name, 3))
        assert (await here.ask()).model == "zai:glm"
        assert (len(here.clock.slept), here.clock.slept[-1]) == (3, 6)
    assert primary.requests[0].headers["authorization"] == "Bearer sk-glm"


@pytest.mark.clause("R-17")
async def test_a_fallback_is_not_recovered_but_left(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    with ModelServer() as last:
        providers = {**house_at(fallback), "cabin": {"base_url": last.base_url}}
        async with harness(
            model=model_at(primary), providers=providers, fallback_providers=["house:small", "cabin:tiny"]
        ) as here:
            primary.say(Failure(401))
            fallback.say(RESET, RESET, RESET, "never asked for")
            last.say("from the last")
            report = await here.ask()
            assert (report.text, report.model) == ("from the last", "cabin:tiny")
            assert 6 not in here.clock.slept
    assert len(fallback.requests) == 3


@pytest.mark.clause("R-18")
async def test_what_is_no_failure_of_the_transport_is_not_recovered_from(
    harness: "OpenHarness", primary: ModelServer
) -> None:
    async with harness(model=model_at(primary)) as here:
        here.wrap_providers(failing(ValueError, 1))
        with pytest.raises(ValueError, match="a bug"):
            await here.ask()
        assert here.clock.slept == []
        primary.say(DOWN, DOWN, DOWN, "never asked for")
        assert (await here.ask()).outcome == "failed"
        assert len(here.clock.slept) == 2
    assert len(primary.requests) == 3


@pytest.mark.parametrize(
    "provider",
    [
        pytest.param("openrouter", marks=pytest.mark.clause("R-19")),
        pytest.param("nous", marks=pytest.mark.clause("R-20")),
    ],
)
async def test_an_aggregator_is_not_recovered_but_left(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer, provider: str
) -> None:
    settings = {"provider": provider, "default": "big", "base_url": primary.base_url, "api_key": "k"}
    async with harness(model=settings, providers=house_at(fallback), fallback_providers="house:small") as here:
        primary.say(RESET, RESET, RESET, "never asked for")
        fallback.say("meanwhile")
        assert (await here.ask()).model == "house:small"
        assert len(here.clock.slept) == 2
    assert len(primary.requests) == 3


@pytest.mark.parametrize(
    "provider",
    [
        pytest.param("anthropic", marks=pytest.mark.clause("R-21")),
        pytest.param("ollama", marks=pytest.mark.clause("R-22")),
    ],
)
async def test_a_direct_endpoint_is_recovered(harness: "OpenHarness", primary: ModelServer, provider: str) -> None:
    settings = {"provider": provider, "default": "big", "base_url": primary.base_url, "api_key": "k"}
    async with harness(model=settings) as here:
        primary.say(RESET, RESET, RESET, "recovered")
        assert (await here.ask()).text == "recovered"
        assert here.clock.slept[-1] == 6


@pytest.mark.parametrize(
    ("attempts", "delay_s"),
    [
        pytest.param(3, 6, marks=pytest.mark.clause("R-23")),
        pytest.param(10, 8, marks=pytest.mark.clause("R-24")),
    ],
)
async def test_recovery_waits_once_a_little_longer_for_each_failure_and_never_long(
    harness: "OpenHarness", primary: ModelServer, attempts: int, delay_s: float
) -> None:
    async with harness(model=model_at(primary), agent={"api_max_retries": attempts}) as here:
        primary.say(*[RESET] * attempts, "recovered")
        assert (await here.ask()).text == "recovered"
        assert here.clock.slept[attempts - 1 :] == [delay_s]


@pytest.mark.clause("R-25")
async def test_recovery_closes_the_old_connections_once_when_their_last_answer_ends(
    harness: "OpenHarness", primary: ModelServer
) -> None:
    async with harness(model=model_at(primary)) as here:
        primary.say(Reply("slow but sure", faults=Faults(chunk_delay_s=0.02)))
        other = here.app.session(cwd=here.app.settings.home, origin="terminal")
        slow = asyncio.create_task(other.ask(user("take your time")))
        await asyncio.to_thread(primary.wait_for_requests, 1)
        primary.say(RESET, RESET, RESET, "recovered", "and again")
        assert (await here.ask()).text == "recovered"
        assert (await slow).text == "slow but sure"
        await asyncio.to_thread(primary.wait_for_connections, 1)
        assert (await here.ask()).text == "and again"
        assert primary.connections == 1
    await asyncio.to_thread(primary.wait_for_connections, 0)


@pytest.mark.clause("R-26")
async def test_a_recovery_that_fails_itself_only_means_that_there_is_none(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    class Unrenewable(Wrapped):
        async def reconnect(self) -> None:
            raise OSError("no more sockets")

    async with harness(model=model_at(primary), providers=house_at(fallback), fallback_providers="house:small") as here:
        primary.say(RESET, RESET, RESET, "never asked for")
        fallback.say("meanwhile")
        here.wrap_providers(Unrenewable)
        report = await here.ask()
        assert (report.text, report.model) == ("meanwhile", "house:small")
        assert 6 not in here.clock.slept
    assert len(primary.requests) == 3


@pytest.mark.clause("R-27")
@pytest.mark.parametrize(
    "name",
    [
        *("ReadTimeout", "ConnectTimeout", "PoolTimeout", "ConnectError"),
        *("RemoteProtocolError", "APIConnectionError", "APITimeoutError"),
    ],
)
async def test_failures_of_the_transport_are_known_by_the_name_of_their_class(
    harness: "OpenHarness", primary: ModelServer, name: str
) -> None:
    async with harness(model=model_at(primary)) as here:
        primary.say("recovered")
        here.wrap_providers(failing(name, 3))
        assert (await here.ask()).text == "recovered"
        assert here.clock.slept[-1] == 6
        here.wrap_providers(failing(name, 99))
        report = await here.ask()
        assert isinstance(report.error, Disconnected)
        assert name in str(report.error)


def notices(here: "Harness") -> list[str]:
    return [event.text for event in here.events if isinstance(event, Notice)]


class Wrapped:
    """A provider that passes everything on; override what shall differ."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    @property
    def endpoint(self) -> Endpoint:
        return self._provider.endpoint

    def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Assistant]:
        return self._provider.stream(request)

    async def models(self, key: Secret) -> Sequence[str]:
        return await self._provider.models(key)

    async def reconnect(self) -> None:
        await self._provider.reconnect()


def failing(kind: str | type[Exception], times: int) -> Callable[[Provider], Provider]:
    """A provider written with another library: its first requests fail with that library's exceptions."""
    made = type(kind, (Exception,), {}) if isinstance(kind, str) else kind
    left = [times]

    class Failing(Wrapped):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Assistant]:
            if left[0]:
                left[0] -= 1
                raise made("a bug" if made is ValueError else "it happens")
            async for item in self._provider.stream(request):
                yield item

    return Failing
