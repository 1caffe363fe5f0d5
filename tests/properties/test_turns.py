"""For any script of answers, outcomes, interruptions and crashes: the transcript stays legal, the prefix stable."""

import asyncio
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.live_sessions import process_services, running_turn
from tests.port_proxies import JournalProxy, StoreProxy
from tests.rules import chat_problems, messages_problems, responses_problems, transcript_problems
from tests.scripted_provider import RenderedRequest, ScriptedProvider

from talaria.agent.budget import Limits
from talaria.core.entries import MessageAdded, TurnEnded
from talaria.core.errors import Overloaded, RequestRejected, StoreUnavailable, ToolFailed
from talaria.core.events import Event, TextDelta, ToolBegan
from talaria.core.ids import CallId, Epoch, OwnerId, SessionId
from talaria.core.messages import Assistant, Image, StopReason, Text, ToolCall, user
from talaria.providers.base import Route, WireName
from talaria.providers.upstream import Upstream
from talaria.runtime.session import LiveSession
from talaria.runtime.session_config import SessionConfig, TurnOptions
from talaria.runtime.session_services import SessionServices
from talaria.runtime.turn_runner import Report
from talaria.store.base import Held, Journal, NewSession, Session, Sessions, Write
from talaria.store.memory import MemoryStore
from talaria.testing.manual_clock import ManualClock
from talaria.tools.base import EXCLUSIVE, INDEPENDENT, OpenGate, RichResult, Tool
from talaria.tools.function import tool
from talaria.tools.registry import Toolbox

SESSION = SessionId("any")


class Crash(BaseException):
    """The process is gone; nothing of ours runs after it."""


class Impatience:
    """Cancels whoever asks, at the n-th call to the store."""

    def __init__(self, cancel_at: int | None) -> None:
        self._left = cancel_at
        self.asking: asyncio.Task[object] | None = None

    async def feel(self) -> None:
        if self._left is not None and self.asking is not None:
            self._left -= 1
            if self._left == 0:
                self.asking.cancel()
        await asyncio.sleep(0)


class SlowSessions:
    """The sessions of a store, with an await before and after each creation."""

    def __init__(self, sessions: Sessions, impatience: Impatience) -> None:
        self._sessions = sessions
        self._impatience = impatience
        self.get, self.find, self.list, self.latest = sessions.get, sessions.find, sessions.list, sessions.latest
        self.rename, self.delete = sessions.rename, sessions.delete
        self.fork, self.adopt = sessions.fork, sessions.adopt

    async def create(self, new: NewSession) -> Session:
        await self._impatience.feel()
        created = await self._sessions.create(new)
        await self._impatience.feel()
        return created


class MortalJournal(JournalProxy):
    """Dies at the n-th commit, on either side of it; from then on it answers nobody. May be full for a while."""

    def __init__(self, journal: Journal, wrong: "Disturbance", impatience: Impatience) -> None:
        super().__init__(journal)
        self._left = wrong.die_at
        self._full_in = wrong.full_at
        self._is_committed = wrong.is_committed
        self._impatience = impatience
        self.is_dead = False

    async def seize(self, session: SessionId, owner: OwnerId) -> Epoch | Held:
        await self._impatience.feel()
        held = await super().seize(session, owner)
        await self._impatience.feel()
        return held

    async def record(self, session: SessionId, epoch: Epoch, writes: Sequence[Write]) -> bool:
        await self._impatience.feel()
        self._check()
        if self._full_in is not None:
            self._full_in -= 1
            if self._full_in == 0:
                raise StoreUnavailable("The disk is full.")
        if self._left is not None:
            self._left -= 1
        if self._left == 0:
            if self._is_committed:
                await super().record(session, epoch, writes)
            self.is_dead = True
        self._check()
        is_released = await super().record(session, epoch, writes)
        await self._impatience.feel()
        return is_released

    async def release(self, session: SessionId, epoch: Epoch, *, leaves_mail: bool = False) -> bool:
        self._check()
        await self._impatience.feel()
        is_released = await super().release(session, epoch, leaves_mail=leaves_mail)
        await self._impatience.feel()
        return is_released

    def _check(self) -> None:
        if self.is_dead:
            raise Crash


arguments = st.sampled_from(
    ['{"way": "fine"}', '{"way": "fails"}', '{"way": "yields"}', '{"way": "shows"}', '{"way": ', "[]", ""]
)
made_calls = st.builds(
    ToolCall,
    st.sampled_from(["", "c", "d", "e"]).map(CallId),
    st.sampled_from(["alone", "beside", "unheard_of"]),
    arguments,
)
stops: st.SearchStrategy[StopReason] = st.sampled_from(["calls", "calls", "calls", "length", "end"])


def calling(made: list[ToolCall], stop: StopReason) -> Assistant:
    return Assistant(tuple(made), stop)


answers: st.SearchStrategy[Any] = st.one_of(
    st.just("text"),
    st.builds(calling, st.lists(made_calls, min_size=1, max_size=4), stops),
    made_calls.map(lambda call: Assistant((Text("so"), call), "calls")),
    st.just(Assistant(())),
    st.just(Overloaded("hot")),
    st.just(RequestRejected("no")),
)


@dataclass(frozen=True)
class Disturbance:
    """What goes wrong in one turn."""

    die_at: int | None = None
    is_committed: bool = False
    full_at: int | None = None
    stop_at: int | None = None
    cancel_at: int | None = None


maybe = st.one_of(st.none(), st.integers(1, 8))
disturbances = st.builds(
    Disturbance, maybe, st.booleans(), maybe, maybe, st.one_of(st.none(), st.none(), st.integers(1, 30))
)


def hands() -> list[Tool]:
    async def act(way: str) -> str | RichResult:
        if way == "shows":
            return RichResult(way, (Image("image/png", "aVZC"),))
        if way == "fails":
            raise ToolFailed("as told")
        if way == "yields":
            await asyncio.sleep(0)
        return way

    return [tool(act, name="alone", effect=EXCLUSIVE), tool(act, name="beside", effect=INDEPENDENT)]


class Life:
    """One conversation over many processes."""

    def __init__(self, store: MemoryStore, clock: ManualClock, folder: Path, script: Sequence[Any]) -> None:
        self._store = store
        self._clock = clock
        self._folder = folder
        self.provider = ScriptedProvider(script)

    async def turn(self, text: str, wrong: Disturbance) -> None:
        """Ask as a new process; then another one opens the conversation, and resumes what is open."""
        impatience = Impatience(wrong.cancel_at)
        journal = MortalJournal(self._store.journal, wrong, impatience)
        owner = await self._store.owners.join("mortal")
        live = await self._open(owner, journal, SlowSessions(self._store.sessions, impatience))
        left = wrong.stop_at

        def watch(event: Event) -> None:
            nonlocal left
            if left is not None and isinstance(event, TextDelta | ToolBegan):
                left -= 1
                if left == 0:
                    running_turn(live).interrupt()

        impatience.asking = asking = asyncio.create_task(live.ask(user(text), watch))
        await asyncio.wait([asking])
        if asking.cancelled():  # whoever was cancelled may ask again through the same session
            asking = asyncio.create_task(live.ask(user("once more")))
            await asyncio.wait([asking])
        await self._store.owners.leave(owner)
        match asking.exception():
            case Crash():
                pass
            case StoreUnavailable():
                await self._is_not_taken()
            case _:
                await self._is_told_truly(asking.result())
        survivor = await self._store.owners.join("survivor")
        await (await self._open(survivor, self._store.journal, self._store.sessions)).resume()

    async def _is_not_taken(self) -> None:
        row = await self._store.sessions.get(SESSION)
        assert row is not None
        assert row.open_turn is None

    async def _is_told_truly(self, report: Report) -> None:
        entries = await self._store.journal.entries(SESSION)
        ended = [one.entry for one in entries if isinstance(one.entry, TurnEnded) and one.entry.turn == report.turn]
        if ended:
            assert ended[0].outcome == report.outcome
        else:
            assert isinstance(report.error, StoreUnavailable)

    async def _open(self, owner: OwnerId, journal: Journal, sessions: Sessions) -> LiveSession:
        config = SessionConfig(route=Route(self.provider.endpoint), cwd=self._folder, home=self._folder)
        return LiveSession(
            await self._store.sessions.get(SESSION),
            SessionServices(SESSION, config, Toolbox(hands()), OpenGate()),
            options=TurnOptions(Limits(max_rounds=4)),
            process=process_services(
                StoreProxy(self._store, journal, sessions),
                owner,
                Upstream(lambda _: self.provider, self._clock),
                self._clock,
            ),
        )

    async def check(self) -> None:
        entries = await self._store.journal.entries(SESSION)
        messages = [recorded.entry.message for recorded in entries if isinstance(recorded.entry, MessageAdded)]
        assert transcript_problems(messages) == []
        check_prefixes(self.provider.asked)


JUDGES: dict[WireName, Callable[[dict[str, Any]], list[str]]] = {
    "openai_chat": chat_problems,
    "openai_responses": responses_problems,
    "anthropic_messages": messages_problems,
}


def check_prefixes(asked: Sequence[RenderedRequest]) -> None:
    for earlier, later in pairwise(asked):
        assert earlier.system == later.system
        assert earlier.tools == later.tools
        for wire, encoded in earlier.encoded.items():
            assert later.encoded[wire][: len(encoded)] == encoded
            before, after = earlier.bodies[wire], later.bodies[wire]
            ending = encoded[-1][-20:]  # the wire may have merged the message with the one before it
            assert after.startswith(before[: before.rindex(ending) + len(ending)])
            assert JUDGES[wire](json.loads(before)) == []


async def live_through(script: list[Any], turns: list[Disturbance]) -> None:
    clock = ManualClock(auto=True)
    with tempfile.TemporaryDirectory() as folder:
        async with MemoryStore(clock) as store:
            life = Life(store, clock, Path(folder), script)
            for number, wrong in enumerate(turns):
                await life.turn(f"question {number}", wrong)
                if await store.sessions.get(SESSION) is not None:
                    await life.check()


scripts = st.lists(answers, max_size=14)
many_turns = st.lists(disturbances, min_size=1, max_size=4)


@settings(max_examples=300, deadline=None)
@given(script=scripts, turns=many_turns)
async def test_whatever_happens_the_transcript_is_legal_and_the_prefix_stable(
    script: list[Any], turns: list[Disturbance]
) -> None:
    await live_through(script, turns)


@pytest.mark.long
@settings(max_examples=10_000, deadline=None)
@given(script=scripts, turns=many_turns)
async def test_whatever_happens_ten_thousand_times_the_transcript_is_legal_and_the_prefix_stable(
    script: list[Any], turns: list[Disturbance]
) -> None:
    await live_through(script, turns)
