"""The product as it is composed, over a store in memory, with a scripted model and perhaps a healthy second one.

Every turn of every test here keeps to the same rules: see `World._check`.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
import pytest

from talaria.app.build import OpenStore, open_application
from talaria.app.settings import Settings
from talaria.config.schema import AgentConfig, Config, LimitsConfig, ModelConfig, ProviderConfig, TimeoutsConfig
from talaria.core.clock import Clock
from talaria.core.entries import MessageAdded, Recorded, TurnEnded
from talaria.core.errors import LimitReached, ProviderFailure
from talaria.core.events import AnswerRestarted, Event, RoundEnded, RouteSwitched, TextDelta
from talaria.core.messages import Message, ToolResult, user
from talaria.core.secret import Secret
from talaria.providers.base import WireName
from talaria.runtime.session import LiveSession
from talaria.runtime.turn_runner import Report
from talaria.store.base import Store
from talaria.store.memory import MemoryStore
from talaria.testing.manual_clock import ManualClock
from talaria.testing.rules import chat_problems, transcript_problems
from talaria.testing.servers.model_server import ModelServer
from talaria.tools.base import INDEPENDENT
from talaria.tools.function import FunctionTool, tool

KEY = "sk-primary-0123456789abcdef"
SECOND_KEY = "sk-second-fedcba9876543210"
MAX_WAIT_S = 900.0
LIMITS = LimitsConfig()
TIMEOUTS = TimeoutsConfig(first_byte_s=60.0, chunk_s=30.0, total_s=120.0)
OTHER_WIRE: Mapping[WireName, WireName] = {
    "openai_chat": "anthropic_messages",
    "anthropic_messages": "openai_responses",
    "openai_responses": "openai_chat",
}
LONGEST_SENTENCES_CHARS = 700
UNFIT = ("Traceback", "\n", "\\n", "\\x", "<", ">", "object at 0x", "message=")
"""What no sentence for people holds."""
MANY_SIGNS = 14
"""Of a secret, from its beginning: more than anybody needs to recognise it."""


@dataclass
class World:
    primary: ModelServer
    second: ModelServer
    clock: ManualClock
    store: Store
    session: LiveSession
    secrets: Sequence[str]
    second_says: str | None
    events: list[Event] = field(default_factory=list[Event])
    runs: list[int] = field(default_factory=list[int])
    """What the tool was run with."""
    watch: Callable[[Event], None] = lambda _: None

    async def ask(self) -> Report:
        """Ends within real seconds, whatever the manual clock says."""
        async with asyncio.timeout(20):
            report = await self.session.ask(user("Question?"), self._observe)
        await self._check(report)
        return report

    def _observe(self, event: Event) -> None:
        self.events.append(event)
        self.watch(event)

    @property
    def restarts(self) -> int:
        return sum(isinstance(event, AnswerRestarted) for event in self.events)

    @property
    def shown(self) -> str:
        """What stands on a screen that strikes out what became void."""
        shown: list[str] = []
        for event in self.events:
            match event:
                case TextDelta(text):
                    shown.append(text)
                case AnswerRestarted():
                    shown.clear()
                case RoundEnded(message) if message.calls:
                    shown.clear()
                case _:
                    pass
        return "".join(shown)

    async def ends_without_the_first(self, says: str) -> None:
        """The second model answers; where there is none, people are told what `says` matches."""
        report = await self.ask()
        if self.second_says is None:
            assert report.error is not None
            assert re.search(says, str(report.error)), str(report.error)
        else:
            assert (report.error, report.text, self.shown) == (None, self.second_says, self.second_says)
            assert sum(isinstance(event, RouteSwitched) for event in self.events) == 1

    async def entries(self) -> Sequence[Recorded]:
        return await self.store.journal.entries(self.session.id)

    async def messages(self) -> list[Message]:
        return [recorded.entry.message for recorded in await self.entries() if isinstance(recorded.entry, MessageAdded)]

    async def results(self) -> list[str]:
        """Of tool calls, as the model reads them."""
        return [message.text for message in await self.messages() if isinstance(message, ToolResult)]

    async def _check(self, report: Report) -> None:
        """What holds however a turn ends."""
        entries = await self.entries()
        assert transcript_problems(await self.messages()) == []
        ends = [recorded.entry.outcome for recorded in entries if isinstance(recorded.entry, TurnEnded)]
        assert ends == [report.outcome]
        assert sum(self.clock.slept) <= MAX_WAIT_S
        assert min(self.clock.slept, default=0.0) >= 0.0
        assert (report.error is None) == (report.outcome == "completed")
        if report.error is not None:
            assert isinstance(report.error, ProviderFailure | LimitReached)
            check_sentences(str(report.error))
        told = msgspec.json.encode((self.events, entries)).decode() + repr(report) + str(report.error)
        assert not [secret for secret in self.secrets if secret[:MANY_SIGNS] in told], told
        assert not [request for request in self.primary.requests if SECOND_KEY in repr(request)]
        assert not [request for request in self.second.requests if KEY in repr(request)]
        for request in (*self.primary.requests, *self.second.requests):
            assert request.wire != "chat" or chat_problems(request.json) == []


def check_sentences(said: str) -> None:
    """A few whole sentences for people."""
    assert 20 < len(said) < LONGEST_SENTENCES_CHARS, said
    assert said.endswith("."), said
    assert not [sign for sign in UNFIT if sign in said], said


def noting(runs: list[int]) -> FunctionTool:
    @tool(effect=INDEPENDENT)
    async def note(n: int) -> str:
        """Note a number."""
        runs.append(n)
        for _ in range(n % 5):  # so that calls end in another order than they begin
            await asyncio.sleep(0)
        return f"noted {n}"

    return note


def in_memory(_: Path, clock: Clock) -> AbstractAsyncContextManager[Store]:
    return MemoryStore(clock)


class OpenWorld(Protocol):
    def __call__(
        self,
        primary: ModelServer,
        wire: WireName = "openai_chat",
        *,
        second_says: str | None = None,
        url: str | None = None,
        keys: Sequence[str] = (KEY,),
        headers: Mapping[str, str] | None = None,
        timeouts: TimeoutsConfig = TIMEOUTS,
        limits: LimitsConfig = LIMITS,
        max_attempts: int = 3,
        is_streaming: bool = True,
        open_store: OpenStore = in_memory,
    ) -> AbstractAsyncContextManager[World]:
        """`second_says`: there is a healthy fallback. `url`: of the first model, if not that of `primary`."""
        ...


@pytest.fixture(params=[None, "The second model answers."], ids=["alone", "backed"])
def second_says(request: pytest.FixtureRequest) -> str | None:
    """Both worlds: without a second model, and with a healthy one."""
    return request.param


@pytest.fixture
def open_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenWorld:
    """A world around a first model. When it ends, nobody may hold a connection any more."""
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name.upper()}_PROXY", raising=False)

    @asynccontextmanager
    async def opened(
        primary: ModelServer,
        wire: WireName = "openai_chat",
        *,
        second_says: str | None = None,
        url: str | None = None,
        keys: Sequence[str] = (KEY,),
        headers: Mapping[str, str] | None = None,
        timeouts: TimeoutsConfig = TIMEOUTS,
        limits: LimitsConfig = LIMITS,
        max_attempts: int = 3,
        is_streaming: bool = True,
        open_store: OpenStore = in_memory,
    ) -> AsyncGenerator[World]:
        clock, runs = ManualClock(auto=True), list[int]()
        secret_headers = {name: Secret(value) for name, value in (headers or {}).items()}
        with primary, ModelServer(respond=lambda _: second_says or "") as second:
            first = ProviderConfig(
                base_url=url or primary.base_url,
                api_keys=tuple(map(Secret, keys)),
                wire=wire,
                timeouts=timeouts,
                headers=secret_headers,
            )
            other = ProviderConfig(base_url=second.base_url, api_key=Secret(SECOND_KEY), wire=OTHER_WIRE[wire])
            config = Config(
                model=ModelConfig(default="first:model-1", streaming=is_streaming),
                providers={"first": first, "second": other},
                fallback_providers=() if second_says is None else ("second:model-2",),
                agent=AgentConfig(max_wait_s=MAX_WAIT_S, api_max_retries=max_attempts),
                limits=limits,
            )
            settings = Settings(tmp_path, config, {})
            async with open_application(settings, tools=[noting(runs)], clock=clock, open_store=open_store) as app:
                session = app.session(cwd=tmp_path, origin="library")
                secrets = (*keys, SECOND_KEY, *(headers or {}).values())
                yield World(primary, second, clock, app.store, session, secrets, second_says, runs=runs)
            for server in (primary, second):
                await asyncio.to_thread(server.wait_for_connections, 0)

    return opened
