"""For any script of answers, outcomes, interruptions and crashes: the transcript stays legal, the prefix stable."""

import asyncio
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.agent.limits import Limits
from talaria.model.entries import MessageAdded
from talaria.model.errors import Overloaded, RequestRejected, StoreUnavailable, ToolFailed
from talaria.model.events import Event, TextDelta, ToolBegan
from talaria.model.ids import CallId, Epoch, SessionId
from talaria.model.messages import Assistant, StopReason, Text, ToolCall, user
from talaria.runtime.session import LiveSession
from talaria.runtime.setup import Setup
from talaria.store.base import Journal, Write
from talaria.store.memory import MemoryStore
from talaria.testing.clock import ManualClock
from talaria.testing.provider import Asked, ScriptedProvider
from talaria.testing.proxies import JournalProxy, StoreProxy
from talaria.testing.rules import transcript_problems
from talaria.tools.approval import OpenGate
from talaria.tools.base import EXCLUSIVE, INDEPENDENT, Tool
from talaria.tools.function import tool
from talaria.tools.registry import Toolbox

SESSION = SessionId("any")


class Crash(BaseException):
    """The process is gone; nothing of ours runs after it."""


class MortalJournal(JournalProxy):
    """Dies at the n-th commit, on either side of it; from then on it answers nobody. May be full for a while."""

    def __init__(self, journal: Journal, die_at: int | None, *, is_committed: bool, full_at: int | None) -> None:
        super().__init__(journal)
        self._left = die_at
        self._full_in = full_at
        self._is_committed = is_committed
        self.is_dead = False

    async def record(self, session: SessionId, epoch: Epoch, writes: Sequence[Write]) -> None:
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
        await super().record(session, epoch, writes)

    async def release(self, session: SessionId, epoch: Epoch) -> bool:
        self._check()
        return await super().release(session, epoch)

    def _check(self) -> None:
        if self.is_dead:
            raise Crash


arguments = st.sampled_from(['{"way": "fine"}', '{"way": "fails"}', '{"way": "yields"}', '{"way": ', "[]", ""])
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


class Disturbance:
    """What goes wrong in one turn."""

    def __init__(self, die_at: int | None, is_committed: bool, full_at: int | None, stop_at: int | None) -> None:
        self.die_at = die_at
        self.is_committed = is_committed
        self.full_at = full_at
        self.stop_at = stop_at

    def __repr__(self) -> str:
        return f"Disturbance({self.die_at}, {self.is_committed}, {self.full_at}, {self.stop_at})"


maybe = st.one_of(st.none(), st.integers(1, 8))
disturbances = st.builds(Disturbance, maybe, st.booleans(), maybe, maybe)


def hands() -> list[Tool]:
    async def act(way: str) -> str:
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
        """Ask as a new process; if it dies, another resumes."""
        journal = MortalJournal(
            self._store.journal, wrong.die_at, is_committed=wrong.is_committed, full_at=wrong.full_at
        )
        owner = await self._store.owners.join("mortal")
        live = await self._open(owner, journal)
        left = wrong.stop_at

        def watch(event: Event) -> None:
            nonlocal left
            if left is not None and isinstance(event, TextDelta | ToolBegan):
                left -= 1
                if left == 0:
                    live.interrupt()

        try:
            await live.ask(user(text), watch)
        except Crash:
            await self._store.owners.leave(owner)
            survivor = await self._store.owners.join("survivor")
            await (await self._open(survivor, self._store.journal)).resume()
        assert not journal.is_dead or await self._store.journal.interrupted() == []

    async def _open(self, owner: Any, journal: Journal) -> LiveSession:
        return LiveSession(
            SESSION,
            row=await self._store.sessions.get(SESSION),
            setup=Setup(cwd=self._folder, home=self._folder, limits=Limits(max_rounds=4)),
            store=StoreProxy(self._store, journal),
            owner=owner,
            provider=self.provider,
            toolbox=Toolbox(hands()),
            gate=OpenGate(),
            clock=self._clock,
        )

    async def check(self) -> None:
        entries = await self._store.journal.entries(SESSION)
        messages = [recorded.entry.message for recorded in entries if isinstance(recorded.entry, MessageAdded)]
        assert transcript_problems(messages) == []
        check_prefixes(self.provider.asked)


def check_prefixes(asked: Sequence[Asked]) -> None:
    for earlier, later in pairwise(asked):
        assert earlier.system == later.system
        assert earlier.tools == later.tools
        for wire, encoded in earlier.encoded.items():
            assert later.encoded[wire][: len(encoded)] == encoded
            before, after = earlier.bodies[wire], later.bodies[wire]
            ending = encoded[-1][-20:]  # the wire may have merged the message with the one before it
            assert after.startswith(before[: before.rindex(ending) + len(ending)])


@settings(max_examples=300, deadline=None)
@given(script=st.lists(answers, max_size=14), turns=st.lists(disturbances, min_size=1, max_size=4))
async def test_whatever_happens_the_transcript_is_legal_and_the_prefix_stable(
    script: list[Any], turns: list[Disturbance]
) -> None:
    clock = ManualClock(auto=True)
    with tempfile.TemporaryDirectory() as folder:
        async with MemoryStore(clock) as store:
            life = Life(store, clock, Path(folder), script)
            for number, wrong in enumerate(turns):
                await life.turn(f"question {number}", wrong)
                if await store.sessions.get(SESSION) is not None:
                    await life.check()
