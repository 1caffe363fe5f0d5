"""For any sequence of faults on any route: every turn ends, within its budget, and keys stay where they belong.

By the thousand with models in the same process, and by the dozen with servers on loopback.
"""

import asyncio
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.live_sessions import process_services
from tests.rules import transcript_problems
from tests.scripted_provider import WIRES

from talaria.agent.budget import Cap, Limits
from talaria.app.build import open_application
from talaria.app.settings import Settings
from talaria.config.schema import (
    AgentConfig,
    CapConfig,
    Config,
    LimitsConfig,
    ModelConfig,
    ProviderConfig,
    TurnCapConfig,
)
from talaria.core.clock import Clock
from talaria.core.entries import MessageAdded, TurnEnded
from talaria.core.errors import Disconnected, FailureKind, LimitReached, ProviderFailure, Repair
from talaria.core.events import AnswerRestarted, Event, RoundEnded, TextDelta, TurnBegan
from talaria.core.ids import CallId, SessionId
from talaria.core.messages import Assistant, StopReason, Text, Thinking, ToolCall, Usage, user
from talaria.core.secret import Secret
from talaria.providers.base import Delta, Endpoint, ModelRequest, Route
from talaria.providers.provider_failures import TREATMENTS
from talaria.providers.upstream import Upstream
from talaria.runtime.session import LiveSession
from talaria.runtime.session_config import SessionConfig, TurnOptions
from talaria.runtime.session_services import SessionServices
from talaria.runtime.turn_runner import Report
from talaria.store.base import Store
from talaria.store.memory import MemoryStore
from talaria.testing.manual_clock import ManualClock
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.model_server import Answer, ModelServer, RecordedRequest
from talaria.testing.servers.scripted_replies import Call, Failure, Faults, Reply
from talaria.tools.base import INDEPENDENT, OpenGate
from talaria.tools.function import FunctionTool, tool
from talaria.tools.registry import Toolbox

MAX_ROUNDS = 3
LONGEST_REST_S = 30.0
"""Of the times that are named below, the longest that can be meant."""
REPAIRS: tuple[Repair, ...] = get_args(Repair)
TORN = 999
"""The argument of calls that are not whole: nothing may run with it."""


@pytest.fixture(autouse=True, scope="module")
def no_proxies() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http", "https", "all", "no"):
            patch.delenv(f"{name}_proxy", raising=False)
            patch.delenv(f"{name.upper()}_PROXY", raising=False)
        yield


@dataclass(frozen=True)
class Means:
    """What each turn has."""

    max_attempts: int
    max_wait_s: float
    seconds: float | None
    turn_tokens: int | None
    day_tokens: int | None


all_means = st.builds(
    Means,
    st.integers(1, 3),
    st.sampled_from([900.0, 900.0, 30.0, 1.0]),
    st.sampled_from([None, None, None, 1.0, 20.0, 1000.0]),
    st.sampled_from([None, None, None, 3_000, 100_000]),
    st.sampled_from([None, None, None, 5_000, 100_000]),
)
all_gaps = st.lists(st.sampled_from([0.0, 4.0, 12.0, 29.0, 31.0, 4000.0]), min_size=1, max_size=4)
"""How long after the last turn each turn comes."""


@dataclass
class Log:
    """All that can be seen from outside."""

    asked: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Where, and with which key."""
    events: list[Event] = field(default_factory=list[Event])
    reports: list[Report] = field(default_factory=list[Report])
    runs: list[int] = field(default_factory=list[int])

    def noting(self) -> FunctionTool:
        @tool(effect=INDEPENDENT)
        async def note(n: int) -> str:
            """Note a number."""
            self.runs.append(n)
            return f"noted {n}"

        return note

    @property
    def shown(self) -> str:
        """What stands on a screen that strikes out what became void."""
        shown = ""
        for event in self.events:
            match event:
                case TextDelta(text):
                    shown += text
                case AnswerRestarted() | TurnBegan():
                    shown = ""
                case RoundEnded(message) if message.calls:
                    shown = ""
                case _:
                    pass
        return shown


class Life:
    """One conversation, turn by turn."""

    def __init__(
        self,
        session: LiveSession,
        log: Log,
        *,
        route: Route,
        upstream: Upstream,
        store: Store,
        clock: ManualClock,
        means: Means,
        watch: Callable[[Event], None] = lambda _: None,
        collect: Callable[[], Iterable[tuple[str, str]]] = tuple,
    ) -> None:
        """`collect` brings what `log.asked` does not know yet."""
        self.log = log
        self._session = session
        self._watch = watch
        self._collect = collect
        self._route = route
        self._upstream = upstream
        self._store = store
        self._clock = clock
        self._means = means
        self._last_trouble = -LONGEST_REST_S

    async def turn(self) -> None:
        """Ends in real seconds, and in the clock's as far as these are limited."""
        log, clock, means = self.log, self._clock, self._means
        due, began = self._due(), clock.monotonic()
        naps, asked, seen = len(clock.slept), len(log.asked), len(log.events)
        async with asyncio.timeout(PATIENCE_S):
            report = await self._session.ask(user("Question?"), self._observe)
        log.reports.append(report)
        log.asked.extend(self._collect())
        events, slept = log.events[seen:], clock.slept[naps:]
        assert [event.model for event in events if isinstance(event, TurnBegan)] == [due]
        assert sum(slept) <= means.max_wait_s
        assert min(slept, default=0.0) >= 0.0
        assert means.seconds is None or clock.monotonic() - began <= means.seconds + 1e-6
        if report.outcome != "completed" or any(isinstance(event, AnswerRestarted) for event in events):
            self._last_trouble = clock.monotonic()
        await self._check_outcome(report)
        rounds = 1 + sum(isinstance(event, RoundEnded) for event in events)
        self._check_asked(report, log.asked[asked:], rounds)

    def _observe(self, event: Event) -> None:
        self.log.events.append(event)
        self._watch(event)

    def _due(self) -> str:
        """Where a turn begins now: at the primary, unless that named a time and another endpoint did not."""
        endpoints, primary = self._route.endpoints, self._route.primary
        awake = [endpoint for endpoint in endpoints if not self._upstream.has_asked_to_wait(endpoint)]
        if self._clock.monotonic() - self._last_trouble >= LONGEST_REST_S:
            assert primary in awake
        return (awake or endpoints)[0].label

    async def _check_outcome(self, report: Report) -> None:
        entries = [recorded.entry for recorded in await self._store.journal.entries(self._session.id)]
        assert transcript_problems([entry.message for entry in entries if isinstance(entry, MessageAdded)]) == []
        assert [entry.outcome for entry in entries if isinstance(entry, TurnEnded)][-1] == report.outcome
        if report.error is None:
            assert report.outcome == "completed"
            assert report.text
            assert self.log.shown in ("", report.text)
        else:
            assert report.outcome == "failed"
            assert isinstance(report.error, ProviderFailure | LimitReached)
            assert str(report.error).endswith(".")
        told = msgspec.json.encode((self.log.events, entries)).decode() + repr(self.log.reports)
        keys = [key.reveal() for endpoint in self._route.endpoints for key in endpoint.keys]
        assert not [key for key in keys if key in told]
        assert TORN not in self.log.runs

    def _check_asked(self, report: Report, asked: Sequence[tuple[str, str]], rounds: int) -> None:
        """No more often than attempts, keys and repairs allow; everywhere that may help; with the right keys."""
        for endpoint in self._route.endpoints:
            keys = [key.reveal() for key in endpoint.keys]
            used = [key for label, key in asked if label == endpoint.label]
            assert set(used) <= set(keys)
            assert len(used) <= most(len(keys), self._means, rounds)
        if isinstance(report.error, ProviderFailure) and TREATMENTS[report.error.kind].fall_back in HOPEFUL:
            assert {label for label, _ in asked} == {endpoint.label for endpoint in self._route.endpoints}


HOPEFUL = ("at_once", "after_retries")
"""Treatments that give up only when nobody is left to ask."""


def most(keys: int, means: Means, rounds: int = MAX_ROUNDS + 1) -> int:
    """Requests to one endpoint in one turn: in each round every key has its attempts, and has them again after new
    connections; every repair is tried once."""
    return rounds * 2 * means.max_attempts * keys + len(REPAIRS)


# ---- models in the same process


class ReadTimeout(Exception):
    """Of a library that we do not know."""


@dataclass(frozen=True)
class Fails:
    kind: FailureKind
    retry_after_s: float | None = None
    repair: Repair | None = None

    def failure(self, label: str) -> ProviderFailure:
        sentence = f"{label} failed ({self.kind})."
        return ProviderFailure(sentence, kind=self.kind, retry_after_s=self.retry_after_s, repair=self.repair)


@dataclass(frozen=True)
class Step:
    """What a model does about one request."""

    outcome: Assistant | Fails | type[ReadTimeout] | None
    """None: it ends without an answer."""
    takes_s: float = 0.0


def said(text: str) -> Assistant:
    return Assistant((Text(text),), usage=Usage(10, 5))


def calling(stop: StopReason, ns: Sequence[int], id: str) -> Assistant:
    """Calls, and torn ones among them; in an answer that was cut off none is whole."""
    whole = "{{" + '"n": {}' + "}}"
    written = [f'{{"n": {TORN}' if n == 0 else whole.format(TORN if stop == "length" else n) for n in ns]
    return Assistant(tuple(ToolCall(CallId(id), "note", arguments) for arguments in written), stop, Usage(10, 5))


all_fails = st.builds(
    Fails,
    st.sampled_from(get_args(FailureKind)),
    st.sampled_from([None, None, -5.0, 0.0, 0.001, 1.0, 9.0, 11.0, 30.0, 1e9, float("inf"), float("nan")]),
    st.one_of(st.none(), st.none(), st.sampled_from(REPAIRS)),
)
all_calls = st.builds(
    calling,
    st.sampled_from(["calls", "calls", "end", "length"]),
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    st.sampled_from(["", "same"]),
)
WORDLESS = [Assistant((), usage=Usage(10)), Assistant((Thinking("Hm."),), "length"), Assistant((), "refused")]
steps = st.builds(
    Step,
    st.one_of(
        st.just(said("An answer.")),
        all_calls,
        st.sampled_from(WORDLESS),
        all_fails,
        all_fails,
        st.just(ReadTimeout),
        st.none(),
    ),
    st.sampled_from([0.0, 0.0, 0.5, 2.0, 50.0]),
)


@dataclass(frozen=True)
class Place:
    """A model, by its script and what it does for ever after."""

    script: Sequence[Step]
    then: Step
    keys: int
    window: int | None

    def endpoint(self, number: int) -> Endpoint:
        return Endpoint(
            provider=f"place{number}",
            model=f"model{number}",
            base_url=f"http://place{number}",
            wire=WIRES[number],
            keys=tuple(Secret(f"key-{key}-of-place-{number}") for key in range(self.keys)),
            window=self.window,
        )


def places(keys: st.SearchStrategy[int]) -> st.SearchStrategy[Place]:
    then = st.one_of(st.just(Step(said("At last."))), st.builds(Step, all_fails, st.sampled_from([0.0, 2.0])))
    return st.builds(Place, st.lists(steps, max_size=8), then, keys, st.sampled_from([None, 8_000, 100_000]))


all_places = st.tuples(places(st.integers(1, 3)), st.lists(places(st.just(1)), max_size=2)).map(
    lambda drawn: [drawn[0], *drawn[1]]
)


class Faulty:
    """Time passes while it works, and it breaks off when the turn's time is over, as the client does."""

    def __init__(self, endpoint: Endpoint, place: Place, clock: ManualClock) -> None:
        self.endpoint = endpoint
        self.asked: Callable[[str, str], bool] = lambda _, __: False
        """Told where and with which key; answers whether it is enough now."""
        self._script = deque(place.script)
        self._then = place.then
        self._clock = clock

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Assistant]:
        is_enough = self.asked(self.endpoint.label, request.key.reveal())
        step = Step(said("Enough!")) if is_enough else self._script.popleft() if self._script else self._then
        if request.seconds is not None and request.seconds <= step.takes_s:
            self._clock.advance(request.seconds)
            raise Disconnected("It took too long.")
        self._clock.advance(step.takes_s)
        await asyncio.sleep(0)
        match step.outcome:
            case Assistant() as answer:
                if answer.text:
                    yield TextDelta(answer.text)
                yield answer
            case Fails() as fails:
                yield TextDelta("Half of")
                raise fails.failure(self.endpoint.label)
            case None:
                yield TextDelta("Half of")
            case fault:
                raise fault("The other library's word for it.")

    async def models(self, key: Secret) -> Sequence[str]:
        return [self.endpoint.model]

    async def reconnect(self) -> None:
        """Nothing is connected."""


async def live_through(drawn: Sequence[Place], means: Means, gaps: Sequence[float]) -> None:
    clock = ManualClock(auto=True)
    endpoints = [place.endpoint(number) for number, place in enumerate(drawn)]
    providers = {endpoint: Faulty(endpoint, place, clock) for endpoint, place in zip(endpoints, drawn, strict=True)}
    route = Route(endpoints[0], tuple(endpoints[1:]))
    upstream = Upstream(providers.__getitem__, clock)
    limits = Limits(
        max_rounds=MAX_ROUNDS,
        max_seconds=means.seconds,
        max_wait_s=means.max_wait_s,
        turn=Cap(means.turn_tokens),
        day=Cap(means.day_tokens),
    )
    log = Log()
    with tempfile.TemporaryDirectory() as folder:
        async with MemoryStore(clock) as store:
            config = SessionConfig(route=route, cwd=Path(folder), home=Path(folder))
            session = LiveSession(
                None,
                SessionServices(SessionId("any"), config, Toolbox([log.noting()]), OpenGate()),
                options=TurnOptions(limits, means.max_attempts),
                process=process_services(store, await store.owners.join("test"), upstream, clock),
            )
            life = Life(session, log, route=route, upstream=upstream, store=store, clock=clock, means=means)
            in_a_turn = sum(most(len(endpoint.keys), means) for endpoint in endpoints)

            def asked(label: str, key: str) -> bool:
                log.asked.append((label, key))
                return len(log.asked) > in_a_turn * len(gaps)

            for provider in providers.values():
                provider.asked = asked
            for gap_s in gaps:
                clock.advance(gap_s)
                await life.turn()


@settings(max_examples=400, deadline=None)
@given(drawn=all_places, means=all_means, gaps=all_gaps)
async def test_whatever_models_do_every_turn_ends_within_its_means(
    drawn: Sequence[Place], means: Means, gaps: Sequence[float]
) -> None:
    await live_through(drawn, means, gaps)


@pytest.mark.long
@settings(max_examples=5_000, deadline=None)
@given(drawn=all_places, means=all_means, gaps=all_gaps)
async def test_whatever_models_do_five_thousand_times_every_turn_ends_within_its_means(
    drawn: Sequence[Place], means: Means, gaps: Sequence[float]
) -> None:
    await live_through(drawn, means, gaps)


# ---- servers on loopback

ENOUGH = 100
"""Requests of one turn at one server that nothing is worth."""
TICK_S = 400.0
"""Longer than any silence is waited for."""
KEY_HEADERS = ("authorization", "x-api-key")
HALF = "Half of an answer, and a little more of it."


@dataclass(frozen=True)
class Quotes:
    """A failure that quotes the key."""

    status: int


Script = Sequence[Answer | Quotes]


def replying(faults: Faults) -> Reply:
    return Reply(HALF, faults=faults)


def calls(ns: Sequence[int], is_cut_off: bool) -> Reply:
    written = [f'{{"n": {TORN}' if n == 0 else f'{{"n": {TORN if is_cut_off else n}}}' for n in ns]
    made = tuple(Call(f"call_{index}", "note", arguments) for index, arguments in enumerate(written))
    return Reply(calls=made, stop="length" if is_cut_off else None)


failures = st.builds(
    Failure,
    st.sampled_from([400, 401, 402, 403, 404, 408, 413, 429, 500, 502, 503, 529]),
    st.sampled_from([None, None, b"", b"<html>Oh no</html>", b"image input is not supported", b"unknown parameter"]),
    st.sampled_from(
        [{}, {}, {"retry-after": "1"}, {"retry-after": "0"}, {"retry-after": "99999999"}, {"retry-after-ms": "5"}]
    ),
)
torn = st.sampled_from(
    [
        Faults(hang=True),
        Faults(stall_at=600),
        Faults(hang_up=True),
        Faults(hang_up=True, reset=True),
        Faults(cut_at=0),
        Faults(cut_at=600, reset=True),
        Faults(cut_at=600, is_tidy=True),
        Faults(cut_before_end=True),
        Faults(error_in_stream={"type": "overloaded_error", "message": "Overloaded"}),
        Faults(raw_body=b"<html>Log in</html>"),
        Faults(raw_body=b"", content_type="text/event-stream"),
        Faults(noise=True, crlf=True),
    ]
)
scripts: st.SearchStrategy[Script] = st.lists(
    st.one_of(
        st.just("An answer."),
        st.just(Reply("")),
        st.builds(calls, st.lists(st.integers(0, 9), min_size=1, max_size=3), st.booleans()),
        failures,
        torn.map(replying),
        st.builds(Quotes, st.sampled_from([401, 429, 500])),
    ),
    max_size=8,
)


class Actor:
    """What one server says: its script, and then `then` for ever."""

    def __init__(self, script: Script, then: Answer) -> None:
        self._script = deque(script)
        self._then = then
        self.count = 0
        """Requests in this turn."""
        self.is_silent = False
        """It has fallen silent within an exchange."""

    def respond(self, request: RecordedRequest) -> Answer:
        """On the server's thread."""
        self.count += 1
        if self.count > ENOUGH:
            return "Enough!"
        answer = self._script.popleft() if self._script else self._then
        self.is_silent = isinstance(answer, Reply) and (answer.faults.hang or answer.faults.stall_at is not None)
        if isinstance(answer, Quotes):
            return Failure(answer.status, {"error": {"message": f"The key {key_of(request)} is no good."}})
        return answer


def key_of(request: RecordedRequest) -> str:
    sent = "".join(request.headers.get(name, "") for name in KEY_HEADERS)
    return sent.removeprefix("Bearer ")


class Stage:
    """A route of servers, with what each was asked."""

    def __init__(self, servers: Sequence[ModelServer], actors: Sequence[Actor]) -> None:
        self._servers = servers
        self._actors = actors
        self._seen = [0] * len(servers)

    def news(self) -> Iterator[tuple[str, str]]:
        """Where requests came since the last time, and with which key."""
        for number, server in enumerate(self._servers):
            requests = server.requests
            for request in requests[self._seen[number] :]:
                yield label(number), key_of(request)
            self._seen[number] = len(requests)

    def watch(self, event: Event) -> None:
        """Nobody waits any more for who was silent before."""
        for actor in self._actors:
            if isinstance(event, AnswerRestarted | TurnBegan):
                actor.is_silent = False
            if isinstance(event, TurnBegan):
                actor.count = 0

    async def let_time_pass(self, clock: ManualClock) -> None:
        """While somebody is silent."""
        while True:
            await asyncio.sleep(0.002)
            if any(actor.is_silent for actor in self._actors):
                clock.advance(TICK_S)


def label(number: int) -> str:
    return f"place{number}:model{number}"


def config(servers: Sequence[ModelServer], keys: int, means: Means) -> Config:
    return Config(
        model=ModelConfig(default=label(0)),
        providers={
            f"place{number}": ProviderConfig(
                base_url=server.base_url,
                wire=WIRES[number],
                api_keys=tuple(Secret(f"key-{key}-of-place-{number}") for key in range(1 if number else keys)),
            )
            for number, server in enumerate(servers)
        },
        fallback_providers=tuple(label(number) for number in range(1, len(servers))),
        agent=AgentConfig(max_turns=MAX_ROUNDS, api_max_retries=means.max_attempts, max_wait_s=means.max_wait_s),
        limits=LimitsConfig(turn=TurnCapConfig(tokens=means.turn_tokens), day=CapConfig(tokens=means.day_tokens)),
    )


def in_memory(_: Path, clock: Clock) -> AbstractAsyncContextManager[Store]:
    return MemoryStore(clock)


async def serve_through(drawn: Sequence[tuple[Script, Answer]], keys: int, means: Means, gaps: Sequence[float]) -> None:
    clock, log = ManualClock(auto=True), Log()
    actors = [Actor(script, then) for script, then in drawn]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers = [stack.enter_context(ModelServer(respond=actor.respond)) for actor in actors]
        stage = Stage(servers, actors)
        chosen = Settings(Path(folder), config(servers, keys, means), {})
        async with open_application(chosen, tools=[log.noting()], clock=clock, open_store=in_memory) as app:
            life = Life(
                app.session(cwd=Path(folder), origin="library"),
                log,
                route=app.route,
                upstream=app.upstream,
                store=app.store,
                clock=clock,
                means=means,
                watch=stage.watch,
                collect=stage.news,
            )
            passing = asyncio.create_task(stage.let_time_pass(clock))
            for gap_s in gaps:
                clock.advance(gap_s)
                await life.turn()
            passing.cancel()
            with suppress(asyncio.CancelledError):
                await passing
        for server in servers:
            await asyncio.to_thread(server.wait_for_connections, 0)


endings: st.SearchStrategy[Answer] = st.one_of(st.just("At last."), failures)
all_servers = st.lists(st.tuples(scripts, endings), min_size=1, max_size=3)
timeless = all_means.map(lambda means: replace(means, seconds=None))
"""While a server is silent, the time passes in leaps."""


OVERFLOW: Script = [Reply(""), Failure(413), Reply("")]
"""In the second turn the conversation is too long; who is to sum it up says nothing, and is waited for."""


@settings(max_examples=60, deadline=None)
@example(
    drawn=[(OVERFLOW, "At last."), ([calls([1], False)], "At last.")],
    keys=1,
    means=Means(2, 1.0, None, None, None),
    gaps=[0.0, 0.0],
)
@given(drawn=all_servers, keys=st.integers(1, 3), means=timeless, gaps=all_gaps)
async def test_whatever_servers_do_every_turn_ends_within_its_means(
    drawn: Sequence[tuple[Script, Answer]], keys: int, means: Means, gaps: Sequence[float]
) -> None:
    await serve_through(drawn, keys, means, gaps)


@pytest.mark.long
@settings(max_examples=1_000, deadline=None)
@given(drawn=all_servers, keys=st.integers(1, 3), means=timeless, gaps=all_gaps)
async def test_whatever_servers_do_a_thousand_times_every_turn_ends_within_its_means(
    drawn: Sequence[tuple[Script, Answer]], keys: int, means: Means, gaps: Sequence[float]
) -> None:
    await serve_through(drawn, keys, means, gaps)
