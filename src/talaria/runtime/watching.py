"""Watching a conversation: what is settled comes from the journal, what is being said and done from the process that
runs the session, which may be another one.

Everything is told live while it happens, and settled once it is on the disk. `Watching.watch` joins the two without
gaps or repeats. A watcher never slows a turn: one that reads too slowly is cut off, and begins again with what is
settled by then.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager, suppress
from pathlib import Path
from typing import Literal

import msgspec

from talaria.core.entries import MessageAdded, Recorded, RouteChanged, TurnEnded, TurnStarted
from talaria.core.events import (
    AnswerRestarted,
    Event,
    QuestionAsked,
    QuestionClosed,
    RoundEnded,
    RouteSwitched,
    TextDelta,
    ThinkingDelta,
    ToolBegan,
    ToolEnded,
    ToolOutput,
    TurnBegan,
    TurnDone,
)
from talaria.core.ids import CallId, Epoch, OwnerId, SessionId
from talaria.core.messages import Assistant, ToolResult
from talaria.runtime.live_socket import (
    FellBehind,
    Frame,
    FrameSource,
    Joined,
    Live,
    LiveSocket,
    Released,
    Settled,
    watch_remotely,
)
from talaria.runtime.store_changes import StoreChanges
from talaria.store.base import Journal


class WatchLimits(msgspec.Struct, frozen=True):
    queued: int = 1_000
    """Frames that wait for one watcher. Then it is cut off."""
    kept: int = 2_000
    """Live events kept for those who join late. When there are more, pieces of text are joined."""
    retry_s: float = 0.5
    """Until a process that runs the session, but could not be reached, is tried again."""
    flush_s: float = 0.2
    """How long a process that ends waits for those who have not read the last frames."""


class Restarted(msgspec.Struct, frozen=True, tag="restarted"):
    """Forget what was told live and is not settled. If it still holds, it is told anew."""


Watched = Settled | Live | Restarted
Runner = FrameSource | Literal["nobody", "unreachable"]
"""The process that runs a session."""


class Position(msgspec.Struct, frozen=True):
    """How far somebody has watched."""

    seq: int = 0
    """The last entry that was settled."""
    epoch: Epoch = Epoch(0)
    number: int = 0
    """The last live event under that epoch; 0: none since the last turn ended."""

    def after(self, one: Watched) -> "Position":
        match one:
            case Settled(recorded):
                is_over = isinstance(recorded.entry, TurnEnded)
                return Position(recorded.seq, self.epoch, 0 if is_over else self.number)
            case Live(epoch, number, event):
                is_over = isinstance(event, TurnDone) and self.number == 0  # else the turn was left open
                return Position(self.seq, epoch, 0 if is_over else number)
            case Restarted():
                return Position(self.seq, self.epoch)


START = Position()


class WatchQueue:
    """The frames for one watcher, in order. They wait here, up to a number."""

    def __init__(self, first: Frame, settled_calls: Collection[CallId] = (), max_queued: int = 1) -> None:
        self._frames: deque[Frame] = deque([first])
        self._settled_calls = settled_calls
        """When it began. What is still said of them live is no news."""
        self._max_queued = max_queued
        self._has_arrived = asyncio.Event()
        self._is_cut_off = False

    def put(self, frame: Frame) -> None:
        if self._is_cut_off or (isinstance(frame, Live) and _call_of(frame.event) in self._settled_calls):
            return
        if len(self._frames) >= self._max_queued:
            self._frames.clear()
            self._is_cut_off = True
            frame = FellBehind()
        self._frames.append(frame)
        self._has_arrived.set()

    async def next(self) -> Frame:
        while not self._frames:
            self._has_arrived.clear()
            await self._has_arrived.wait()
        return self._frames.popleft()


class Broadcast:
    """What this process does in one session under one epoch, told to everybody who watches, until `end`."""

    def __init__(self, epoch: Epoch, seq: int, numbers: Iterator[int], limits: WatchLimits) -> None:
        """Entries up to `seq` are in the journal."""
        self.epoch = epoch
        self._seq = seq
        self._numbers = numbers
        self._since = next(numbers)
        self._limits = limits
        self._kept: list[Live] = []
        """Of the running turn, and not settled."""
        self._join_at = limits.kept
        self._settled_calls: set[CallId] = set()
        """Of the running turn."""
        self._is_turn_live = False
        """A turn is told live, and has not ended."""
        self._subscriptions: set[WatchQueue] = set()

    def end(self) -> None:
        self._tell(Released(left_open=self._is_turn_live))

    def emit(self, event: Event) -> None:
        live = Live(self.epoch, next(self._numbers), event)
        match event:
            case TurnBegan():
                self._is_turn_live = True
                self._keep(live)
            case RouteSwitched(_, model, _, window, compact_at):  # is settled; who comes later need only know the model
                self._kept = [_with_model(one, model, window, compact_at) for one in self._kept]
            case QuestionClosed(question):
                self._forget(lambda one: isinstance(one, QuestionAsked) and one.question.id == question)
                self._keep(live)
            case ToolOutput(call) if call not in self._settled_calls:
                self._forget(lambda one: isinstance(one, ToolOutput) and one.call == call)  # only the latest counts
                self._keep(live)
            case TurnDone():
                self._clear()
            case _ if _call_of(event) not in self._settled_calls:
                self._keep(live)
            case _:
                pass
        self._tell(live)

    def settle(self, recorded: Recorded) -> None:
        """This is in the journal now."""
        self._seq = recorded.seq
        was_live = self._is_turn_live
        match recorded.entry:
            case MessageAdded(Assistant()):
                told = (TextDelta, ThinkingDelta, AnswerRestarted, RoundEnded)
                self._forget(lambda event: isinstance(event, told))
            case MessageAdded(ToolResult(call_id=call)):
                self._settled_calls.add(call)
                self._forget(lambda event: _call_of(event) == call)
            case RouteChanged():
                pass
            case TurnStarted():
                was_live = False
                self._clear()
            case TurnEnded():
                was_live = self._is_turn_live = False
                self._kept.clear()
            case _:
                was_live = False
        self._tell(Settled(recorded, was_live))

    def subscribe(self) -> WatchQueue:
        """From what is not settled at this moment, on."""
        joined = Joined(self._seq, self.epoch, self._since, tuple(join_texts(self._kept)))
        subscription = WatchQueue(joined, frozenset(self._settled_calls), self._limits.queued)
        self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: WatchQueue) -> None:
        self._subscriptions.discard(subscription)

    def _tell(self, frame: Frame) -> None:
        for subscription in self._subscriptions:
            subscription.put(frame)

    def _keep(self, live: Live) -> None:
        self._kept.append(live)
        if len(self._kept) > self._join_at:
            self._kept = join_texts(self._kept)
            self._join_at = max(self._limits.kept, 2 * len(self._kept))

    def _forget(self, is_settled: Callable[[Event], bool]) -> None:
        self._kept = [one for one in self._kept if not is_settled(one.event)]

    def _clear(self) -> None:
        self._kept.clear()
        self._settled_calls.clear()


def _call_of(event: Event) -> CallId | None:
    match event:
        case ToolBegan(call) | ToolOutput(call):
            return call
        case ToolEnded(result):
            return result.call_id
        case _:
            return None


def _with_model(live: Live, model: str, window: int | None, compact_at: int | None) -> Live:
    match live.event:
        case TurnBegan(session, turn):
            return msgspec.structs.replace(live, event=TurnBegan(session, turn, model, window, compact_at))
        case _:
            return live


def join_texts(kept: Sequence[Live]) -> list[Live]:
    """Neighbouring pieces of text, or of thinking, as one."""

    def kind(one: Live) -> object:
        return type(one.event) if isinstance(one.event, TextDelta | ThinkingDelta) else one.number

    joined: list[Live] = []
    for _, group in itertools.groupby(kept, kind):
        pieces = list(group)
        first, last = pieces[0], pieces[-1]
        if len(pieces) > 1:
            text = "".join(one.event.text for one in pieces if isinstance(one.event, TextDelta | ThinkingDelta))
            event = TextDelta(text) if isinstance(first.event, TextDelta) else ThinkingDelta(text)
            last = Live(last.epoch, last.number, event, first.first or first.number)
        joined.append(last)
    return joined


class Watching:
    """Of one process: what it tells of its own sessions, and how it watches those of others."""

    def __init__(
        self,
        journal: Journal,
        changes: StoreChanges,
        owner: OwnerId,
        folder: Path | None = None,
        on_signal: Callable[[], None] = lambda: None,
        limits: WatchLimits | None = None,
    ) -> None:
        """`folder`: where processes find each other's sockets; None: only this process can be watched. `on_signal` is
        called when another process says that it has sent a signal."""
        self._journal = journal
        self._changes = changes
        self._owner = owner
        self._folder = folder
        self._on_signal = on_signal
        self._limits = limits or WatchLimits()
        self._numbers = itertools.count(1)
        """Of live events: they grow as long as the process lives, whatever it runs."""
        self._broadcasts: dict[SessionId, Broadcast] = {}
        """Of the sessions that this process runs."""
        self._idle: dict[SessionId, set[asyncio.Event]] = {}
        """Set when this process begins to run the session."""
        self._serving: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if (serving := self._serving) is not None:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving

    def begin(self, session: SessionId, epoch: Epoch, seq: int) -> Broadcast:
        """This process runs the session, until `end`. Entries up to `seq` are in the journal."""
        broadcast = Broadcast(epoch, seq, self._numbers, self._limits)
        other = self._broadcasts.get(session)
        if other is not None and other.epoch >= epoch:
            return broadcast  # nobody is told: the epoch is a guess, and wrong
        if other is not None:
            other.end()
        if self._serving is None and self._folder is not None:
            socket = LiveSocket(self._folder, self._owner, self._subscribe, self._on_signal, self._limits.flush_s)
            self._serving = asyncio.create_task(socket.serve(), name="live socket")
        self._broadcasts[session] = broadcast
        for idle in self._idle.get(session, ()):
            idle.set()
        return broadcast

    def end(self, session: SessionId, broadcast: Broadcast) -> None:
        broadcast.end()
        if self._broadcasts.get(session) is broadcast:
            del self._broadcasts[session]

    async def watch(self, session: SessionId, after: Position = START) -> AsyncGenerator[Watched]:
        """All that happens in the session after that position, until the caller stops."""
        idle = asyncio.Event()
        self._idle.setdefault(session, set()).add(idle)
        follower = _Follower(self._journal, session, after)
        try:
            with self._changes.subscribe(idle):
                while True:
                    idle.clear()
                    async with AsyncExitStack() as stack:
                        frames = await self._find_runner(session, stack)
                        async with aclosing(await follower.join(frames)) as told:
                            async for one in told:
                                follower.position = follower.position.after(one)
                                yield one
                    del stack, frames, told  # there may be thousands who wait
                    if follower.is_at_rest:
                        await idle.wait()
                    elif not follower.is_cut_off:
                        with suppress(TimeoutError):
                            async with asyncio.timeout(self._limits.retry_s):
                                await idle.wait()
        finally:
            self._idle[session].discard(idle)
            if not self._idle[session]:
                del self._idle[session]

    async def _find_runner(self, session: SessionId, stack: AsyncExitStack) -> Runner:
        """What the process that runs the session tells."""
        if session in self._broadcasts:
            return stack.enter_context(self._subscribe(session))
        holder = await self._journal.holder(session)
        if session in self._broadcasts:
            return stack.enter_context(self._subscribe(session))
        if holder is None or holder == self._owner or self._folder is None:
            return "nobody"
        return await stack.enter_async_context(watch_remotely(self._folder, holder, session)) or "unreachable"

    @contextmanager
    def _subscribe(self, session: SessionId) -> Generator[WatchQueue]:
        broadcast = self._broadcasts.get(session)
        if broadcast is None:  # it was there when somebody asked for the way here
            yield WatchQueue(Released())
            return
        subscription = broadcast.subscribe()
        try:
            yield subscription
        finally:
            broadcast.unsubscribe(subscription)


class _Follower:
    """One watcher's way through a session: where it is, and what it is told next."""

    def __init__(self, journal: Journal, session: SessionId, position: Position) -> None:
        self._journal = journal
        self._session = session
        self.position = position
        """Of all that was told."""
        self.is_cut_off = False
        """It was too slow: it has to begin again at once."""
        self.is_at_rest = True
        """Nobody has the session."""

    async def join(self, frames: Runner) -> AsyncGenerator[Watched]:
        """What was settled meanwhile; then what the process that runs the session tells, as long as it does."""
        first = None if isinstance(frames, str) else await frames.next()
        self.is_cut_off = isinstance(first, FellBehind)
        self.is_at_rest = frames == "nobody"  # a process that still has the session may go on without a commit
        if isinstance(first, Joined) and not isinstance(frames, str):
            return self._follow(first, frames)
        return self._tell_settled()

    async def _tell_settled(self) -> AsyncGenerator[Watched]:
        if self.position.number:
            yield Restarted()
        for recorded in await self._journal.entries(self._session, self.position.seq):
            yield Settled(recorded)

    async def _follow(self, joined: Joined, frames: FrameSource) -> AsyncGenerator[Watched]:
        if joined.seq < self.position.seq:
            return  # we have read what it has just written, and does not know yet: ask again
        if self._is_void(joined):
            yield Restarted()
        for recorded in await self._read_until(joined.seq):
            yield Settled(recorded)
        for live in joined.kept:
            if live.number > self.position.number:
                yield live
        while True:
            match await frames.next():
                case Settled(recorded) as settled:
                    if recorded.seq > self.position.seq:
                        yield settled
                case Live() as live:
                    yield live
                case Released(left_open):
                    if left_open and self.position.number:
                        yield Restarted()
                    self.position = Position(self.position.seq)
                    return
                case FellBehind():
                    self.is_cut_off = True
                    yield Restarted()
                    return
                case None | Joined():  # it is gone, perhaps killed
                    yield Restarted()
                    return

    async def _read_until(self, seq: int) -> Sequence[Recorded]:
        """What was settled after our position."""
        if seq <= self.position.seq:
            return ()
        return [one for one in await self._journal.entries(self._session, self.position.seq) if one.seq <= seq]

    def _is_void(self, joined: Joined) -> bool:
        """What was told live is of another process, of an earlier turn, or a part of what would now be told at once."""
        number = self.position.number
        is_other = joined.epoch != self.position.epoch or number <= joined.since
        return number > 0 and (is_other or any(one.first <= number < one.number for one in joined.kept if one.first))
