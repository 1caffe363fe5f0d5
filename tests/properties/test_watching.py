"""Whoever watches a session, from whenever on, wherever and however slowly, sees what the journal says and what is
being said: without gaps, without repeats, in order."""

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import aclosing, suppress
from pathlib import Path

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from tests.waiting import until

from talaria.core.entries import Entry, MessageAdded, TurnEnded, TurnStarted
from talaria.core.events import (
    AnswerRestarted,
    Event,
    RoundEnded,
    TextDelta,
    ThinkingDelta,
    ToolBegan,
    ToolEnded,
    ToolOutput,
    TurnBegan,
    TurnDone,
)
from talaria.core.ids import CallId, Epoch, OwnerId, SessionId, TurnId
from talaria.core.messages import NO_USAGE, Assistant, Text, ToolCall, ToolResult, user
from talaria.runtime.lease import Recorder, SessionLease
from talaria.runtime.store_changes import StoreChanges
from talaria.runtime.transcript import Transcript
from talaria.runtime.watching import START, Live, Restarted, Settled, Watched, Watching, WatchLimits
from talaria.store.base import NewSession
from talaria.store.memory import MemoryStore
from talaria.testing.manual_clock import ManualClock

SESSION = SessionId("watched")
QUICK_S = 0.001
NARROW = WatchLimits(queued=6, kept=4, retry_s=QUICK_S, flush_s=0)
WIDE = WatchLimits(retry_s=QUICK_S, flush_s=0)


class Screen:
    """Shows what is settled, and after it what is told live and not settled."""

    def __init__(self) -> None:
        self._settled: list[str] = []
        self._answer: list[str] = []
        self._settled_calls: set[CallId] = set()
        self.calls: dict[CallId, str] = {}
        """Those that run, and their output."""

    def settle(self, entry: Entry) -> None:
        match entry:
            case TurnStarted(turn):
                self._settled.append(f"<{turn}>")
            case MessageAdded(ToolResult(call_id=call, text=text)):
                self.calls.pop(call, None)
                self._settled_calls.add(call)
                self._settled.append(f"<{call}: {text}>")
            case MessageAdded(Assistant() as answer):
                self._answer.clear()
                self._settled.append(answer.text)
            case TurnEnded(turn):
                self.forget()
                self._settled.append(f"</{turn}>")
            case _:
                self._settled.append("<other>")

    def hear(self, event: Event) -> None:
        match event:
            case TextDelta(text):
                self._answer.append(text)
            case AnswerRestarted():
                self._answer.clear()
            case ToolBegan(call) if call not in self._settled_calls:
                self.calls[call] = ""
            case ToolOutput(call, tail) if call in self.calls:
                self.calls[call] = tail
            case _:
                pass

    def forget(self) -> None:
        self._answer.clear()
        self.calls.clear()

    @property
    def text(self) -> str:
        return "".join((*self._settled, *self._answer))

    @property
    def answer(self) -> str:
        """What is being written."""
        return "".join(self._answer)

    @property
    def now(self) -> tuple[str, dict[CallId, str]]:
        return self.text, dict(self.calls)


class World:
    """A session over one journal, run by one process after the other, and what is true of it."""

    def __init__(self, store: MemoryStore, folder: Path, limits: WatchLimits) -> None:
        self.store = store
        self.truth = Screen()
        self.said = {""}
        """All that the truth has ever been."""
        self.here: Watching | None = None
        """Of the process that runs the session, or was the last to."""
        self._folder = folder
        self._limits = limits
        self._version = 0
        self._clock = ManualClock(auto=True)
        self._owner = OwnerId("")
        self._lease: SessionLease | None = None
        self._recorder: Recorder | None = None
        self._transcript = Transcript()
        self._turns = 0
        self._rounds = 0
        self._streamed = ""
        self._calls: list[CallId] = []
        """Without a result."""

    async def open_elsewhere(self) -> Watching:
        """Of a process that does not run the session."""
        return self._open(await self.store.owners.join("test"))

    def _open(self, owner: OwnerId) -> Watching:
        async def version() -> int:
            return self._version

        changes = StoreChanges(version, QUICK_S)
        return Watching(self.store.journal, changes, owner, self._folder, limits=self._limits)

    @property
    def is_running(self) -> bool:
        return self._recorder is not None

    async def _run(self) -> Recorder:
        """Go on with the turn; resume one that was left open; or begin one."""
        if self._recorder is not None:
            return self._recorder
        if self._lease is None:
            self._owner = await self.store.owners.join("test")
            self.here = self._open(self._owner)
            self._lease = SessionLease(SESSION, self.store, self._owner, None)
        assert self.here is not None
        epoch = await self._lease.seize()
        self._version += 1
        self._transcript = Transcript(await self.store.journal.entries(SESSION))
        broadcast = self.here.begin(SESSION, epoch, self._transcript.last_seq)
        self._recorder = Recorder(self._lease, epoch, self._transcript, self._clock, self._hear, broadcast)
        if self._transcript.open_turn is None:
            self._turns += 1
            await self._record(TurnStarted(self._turn, "terminal"), MessageAdded(user("?")))
        self._recorder.emit(TurnBegan(SESSION, self._turn, "model"))
        for call in tuple(self._calls):
            await self._finish_call(call, "lost")
        return self._recorder

    @property
    def _turn(self) -> TurnId:
        return TurnId(f"turn-{self._turns}")

    def _hear(self, event: Event) -> None:
        self.truth.hear(event)
        self.said.add(self.truth.text)

    async def _record(self, *entries: Entry) -> None:
        assert self._recorder is not None
        for entry in entries:  # who watches may know before whoever records
            self.truth.settle(entry)
            self.said.add(self.truth.text)
        await self._recorder.record(*entries)
        self._version += 1

    async def _finish_call(self, call: CallId, text: str) -> None:
        recorder, result = await self._run(), ToolResult(call, "tool", text)
        self._calls.remove(call)
        await self._record(MessageAdded(result))
        if text == "lost":
            recorder.emit(ToolBegan(call, "tool", "{}"))
        recorder.emit(ToolEnded(result, 0.0))

    async def say(self, text: str) -> None:
        recorder = await self._run()
        if not self._calls:
            self._streamed += text
            recorder.emit(TextDelta(text))

    async def think(self, text: str) -> None:
        (await self._run()).emit(ThinkingDelta(text))

    async def notify(self, text: str) -> None:
        (await self._run()).notify(text)

    async def restart_answer(self, text: str) -> None:
        recorder = await self._run()
        if not self._calls:
            self._streamed = ""
            recorder.emit(AnswerRestarted(text))

    async def end_round(self, text: str) -> None:
        """With two calls, which begin."""
        recorder = await self._run()
        if self._calls:
            return
        self._rounds += 1
        self._calls = [CallId(f"{text}{self._rounds}{one}") for one in "ab"]
        calls = [ToolCall(call, "tool", "{}") for call in self._calls]
        await self._record_answer(recorder, Assistant((Text(self._streamed), *calls), "calls"))
        for call in self._calls:
            recorder.emit(ToolBegan(call, "tool", "{}"))

    async def _record_answer(self, recorder: Recorder, answer: Assistant, *more: Entry) -> None:
        recorder.emit(RoundEnded(answer))
        await self._record(MessageAdded(answer), *more)
        self._streamed = ""

    async def print(self, text: str) -> None:
        recorder = await self._run()
        for call in self._calls:
            recorder.emit(ToolOutput(call, text))

    async def finish_call(self, text: str) -> None:
        await self._run()
        if self._calls:
            await self._finish_call(self._calls[0], text)

    async def end_turn(self, how: str) -> None:
        """The process keeps the session if `how` is `holds`: the next turn is then under the same epoch."""
        recorder = await self._run()
        while self._calls:
            await self._finish_call(self._calls[0], "done")
        answer = Assistant((Text(self._streamed),))
        await self._record_answer(recorder, answer, TurnEnded(self._turn, "completed", NO_USAGE))
        recorder.emit(TurnDone(self._turn, "completed", answer.text, NO_USAGE))
        await self._let_go(recorder, is_held=how == "holds")

    async def abandon(self, how: str) -> None:
        """The turn is left as it is, for the next process or for this one."""
        if self._recorder is not None:
            self._forget()
            self._recorder.emit(TurnDone(self._turn, "failed", "", NO_USAGE))
            await self._let_go(self._recorder, is_held=how == "holds")

    async def _let_go(self, recorder: Recorder, *, is_held: bool) -> None:
        assert self.here is not None
        assert self._lease is not None
        if not is_held:
            await self._lease.release()
            self._version += 1
        self.here.end(SESSION, recorder.broadcast)
        self._recorder = None

    async def kill(self) -> None:
        """Those who watch in the process that runs the session are gone before."""
        if self.here is not None and self._lease is not None:
            here, self.here = self.here, None
            await here.close()
            await self.store.owners.leave(self._owner)
            self._version += 1
            self._lease = self._recorder = None
            self._forget()

    def _forget(self) -> None:
        self._streamed = ""
        self.truth.forget()
        self.said.add(self.truth.text)


class Watcher:
    """Comes and goes, and knows how far it was."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.screen = Screen()
        self._position = START
        self._last = (Epoch(0), 0)
        """The last live event since it was told to forget them."""
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._task: asyncio.Task[None] | None = None
        self.is_here = False
        """In the process that runs the session."""

    def join(self, watching: Watching, *, is_here: bool) -> None:
        self.is_here = is_here
        self._task = asyncio.create_task(self._watch(watching))

    async def leave(self) -> None:
        if (task := self._task) is not None:
            self._task = None
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def pause(self) -> None:
        self._may_read.clear()

    def go_on(self) -> None:
        self._may_read.set()

    async def catch_up(self) -> None:
        """What it has seen is wrong: raised here. It reads on until it shows what is true."""
        task = self._task
        assert task is not None
        await until(lambda: task.done() or self.screen.now == self._world.truth.now)
        if task.done():
            await task

    @property
    def is_watching(self) -> bool:
        return self._task is not None and self._may_read.is_set()

    async def _watch(self, watching: Watching) -> None:
        async with aclosing(watching.watch(SESSION, self._position)) as told:
            async for one in told:
                self.note(one)
                await self._may_read.wait()

    def note(self, one: Watched) -> None:
        match one:
            case Settled(recorded):
                assert recorded.seq == self._position.seq + 1, "each entry once, and in order"
                self.screen.settle(recorded.entry)
            case Live(epoch, number, event, first):
                assert (epoch, first or number) > self._last, "no event twice, and in order"
                self._last = (epoch, number)
                self.screen.hear(event)
            case Restarted():
                self._last = (Epoch(0), 0)
                self.screen.forget()
        self._position = self._position.after(one)
        assert self.screen.text in self._world.said


texts = st.text("xyz", min_size=1, max_size=3)
watchers = st.integers(0, 2)
turns = st.one_of(
    st.tuples(st.just("say"), texts),
    st.tuples(st.sampled_from(["say", "say", "think", "notify", "restart_answer"]), texts),
    st.tuples(st.sampled_from(["end_round", "end_round", "print", "finish_call"]), texts),
)
ends = st.one_of(
    st.tuples(st.sampled_from(["end_turn", "abandon"]), st.sampled_from(["holds", "releases"])),
    st.tuples(st.just("kill"), st.just("")),
)
visits = st.one_of(
    st.tuples(st.sampled_from(["join_here", "join_elsewhere", "join_elsewhere", "leave", "pause", "go_on"]), watchers),
    st.tuples(st.sampled_from(["yield", "catch_up", "catch_up"]), st.integers(0, 5)),
)
step = st.sampled_from([turns, turns, turns, visits, visits, visits, ends]).flatmap(lambda kind: kind)
scripts = st.lists(step, min_size=20, max_size=80)
Step = tuple[str, str | int]


SAID_AND_SEEN: tuple[Step, ...] = (("say", "x"), ("join_elsewhere", 0), ("catch_up", 0))
TORN = (*SAID_AND_SEEN, ("leave", 0), ("say", "y"), ("say", "z"), ("join_elsewhere", 0), ("catch_up", 0))
LATE: tuple[Step, ...] = (("say", "x"), ("end_round", "x"), ("join_elsewhere", 0), ("catch_up", 0))
LEFT_OPEN = (*SAID_AND_SEEN, ("abandon", "releases"), ("catch_up", 0))
KILLED = (*SAID_AND_SEEN, ("leave", 0), ("kill", ""), ("join_elsewhere", 0), ("catch_up", 0))


async def follow(script: Sequence[Step], limits: WatchLimits, kind: type[Watcher] = Watcher) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with MemoryStore(ManualClock()) as store:
            await store.sessions.create(NewSession(SESSION, "test"))
            await Play(World(store, Path(folder), limits), kind).perform(script)


class Play:
    def __init__(self, world: World, kind: type[Watcher]) -> None:
        self._world = world
        self._watchers = [kind(world) for _ in range(3)]

    async def perform(self, script: Sequence[Step]) -> None:
        elsewhere = await self._world.open_elsewhere()
        try:
            for name, value in script:
                await self._do(name, value, elsewhere)
            for watcher in self._watchers:
                watcher.go_on()
                await watcher.leave()
                watcher.join(elsewhere, is_here=False)
            await self._catch_up()
            await self._world.end_turn("releases")
            await self._catch_up()
        finally:
            for watcher in self._watchers:
                await watcher.leave()
            await self._world.kill()

    async def _do(self, name: str, value: str | int, elsewhere: Watching) -> None:
        world = self._world
        if name == "catch_up":
            await self._catch_up()
        elif isinstance(value, int):
            for _ in range(value if name == "yield" else 0):
                await asyncio.sleep(0)
            if name != "yield":
                await self._direct(self._watchers[value], name, elsewhere)
        elif name == "kill":
            for watcher in self._watchers:
                if watcher.is_here:
                    await watcher.leave()
            await world.kill()
        else:
            await getattr(world, name)(value)

    async def _direct(self, watcher: Watcher, name: str, elsewhere: Watching) -> None:
        match name:
            case "pause":
                watcher.pause()
            case "go_on":
                watcher.go_on()
            case _:
                await watcher.leave()
        if name == "join_elsewhere" or (name == "join_here" and self._world.here is not None):
            here = self._world.here if name == "join_here" else None
            watcher.join(here or elsewhere, is_here=here is not None)

    async def _catch_up(self) -> None:
        for watcher in self._watchers:
            if watcher.is_watching:
                await watcher.catch_up()


@example(script=TORN, limits=WIDE)
@example(script=LATE, limits=WIDE)
@example(script=LEFT_OPEN, limits=WIDE)
@example(script=KILLED, limits=WIDE)
@settings(max_examples=100, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(script=scripts, limits=st.sampled_from([NARROW, NARROW, WIDE]))
def test_watchers_see_everything_once_and_in_order(script: Sequence[Step], limits: WatchLimits) -> None:
    asyncio.run(follow(script, limits))


@pytest.mark.long
@settings(max_examples=1_500)
@given(script=scripts, limits=st.sampled_from([NARROW, NARROW, WIDE]))
def test_watchers_see_everything_once_and_in_order_at_length(script: Sequence[Step], limits: WatchLimits) -> None:
    asyncio.run(follow(script, limits))
