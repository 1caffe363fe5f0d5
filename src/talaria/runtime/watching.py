"""Watching a conversation: what is settled comes from the journal, what is being said and done from the process that
runs the session, which may be another one.

Everything is told live while it happens, and settled once it is on the disk. `Watching.watch` joins the two without
gaps or repeats. A watcher never slows a turn: one that reads too slowly is cut off, and begins again with what is
settled by then.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager, suppress
from itertools import groupby
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
    TextDelta,
    ThinkingDelta,
    ToolBegan,
    ToolEnded,
    ToolOutput,
    TurnDone,
)
from talaria.core.ids import CallId, Epoch, OwnerId, SessionId
from talaria.core.messages import Assistant, ToolResult
from talaria.runtime.live_socket import (
    Ended,
    FellBehind,
    Frame,
    FrameSource,
    Joined,
    Live,
    LiveSocket,
    Settled,
    watch_remotely,
)
from talaria.runtime.store_changes import StoreChanges
from talaria.store.base import Journal

MAX_QUEUED = 1_000
"""Frames that wait for one watcher. Then it is cut off."""
MAX_KEPT = 2_000
"""Live events kept for those who join late. When there are more, pieces of text are joined."""
RETRY_S = 0.5
"""Until a process that runs the session, but could not be reached, is tried again."""


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


START = Position()


class Subscription:
    """The frames for one watcher, in order. They wait here, up to a number."""

    def __init__(self, joined: Joined, settled_calls: Collection[CallId]) -> None:
        self._frames: deque[Frame] = deque([joined])
        self._settled_calls = settled_calls
        """When it began. What is still said of them live is no news."""
        self._has_arrived = asyncio.Event()
        self._is_cut_off = False

    def put(self, frame: Frame) -> None:
        if self._is_cut_off or (isinstance(frame, Live) and _call_of(frame.event) in self._settled_calls):
            return
        if len(self._frames) >= MAX_QUEUED:
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
    """What this process does in one session, told to everybody who watches."""

    def __init__(self) -> None:
        self._epoch = Epoch(0)
        self._seq = 0
        self._number = 0
        self._kept: list[Live] = []
        """Of the running turn, and not settled."""
        self._settled_calls: set[CallId] = set()
        """Of the running turn."""
        self._subscriptions: set[Subscription] = set()
        self.is_running = False

    def begin(self, epoch: Epoch, seq: int) -> None:
        """Entries up to `seq` are in the journal."""
        if epoch != self._epoch:
            self._epoch, self._number = epoch, 0
        self._seq = seq
        self.is_running = True

    def end(self) -> None:
        self.is_running = False
        self._clear()
        self._tell(Ended())

    def emit(self, event: Event) -> None:
        self._number += 1
        live = Live(self._epoch, self._number, event)
        if isinstance(event, TurnDone):
            self._clear()
        elif isinstance(event, QuestionClosed):
            self._forget(lambda one: isinstance(one, QuestionAsked) and one.question.id == event.id)
        elif _call_of(event) not in self._settled_calls:
            if isinstance(event, ToolOutput):  # only the latest counts
                self._forget(lambda one: isinstance(one, ToolOutput) and one.call == event.call)
            self._kept.append(live)
            if len(self._kept) > MAX_KEPT:
                self._kept = join_texts(self._kept)
        self._tell(live)

    def settle(self, recorded: Recorded) -> None:
        """This is in the journal now."""
        self._seq = recorded.seq
        was_live = True
        match recorded.entry:
            case MessageAdded(Assistant()):
                told = (TextDelta, ThinkingDelta, AnswerRestarted, RoundEnded)
                self._forget(lambda event: isinstance(event, told))
            case MessageAdded(ToolResult(call_id=call)):
                self._settled_calls.add(call)
                self._forget(lambda event: _call_of(event) == call)
            case RouteChanged():
                pass
            case TurnStarted() | TurnEnded():
                was_live = False
                self._clear()
            case _:
                was_live = False
        self._tell(Settled(recorded, was_live))

    def subscribe(self) -> Subscription:
        """From what is not settled at this moment, on."""
        joined = Joined(self._seq, self._epoch, tuple(join_texts(self._kept)))
        subscription = Subscription(joined, frozenset(self._settled_calls))
        self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)

    @property
    def is_needed(self) -> bool:
        return self.is_running or bool(self._subscriptions)

    def _tell(self, frame: Frame) -> None:
        for subscription in self._subscriptions:
            subscription.put(frame)

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


def join_texts(kept: Sequence[Live]) -> list[Live]:
    """Neighbouring pieces of text, or of thinking, as one."""

    def kind(one: Live) -> object:
        return type(one.event) if isinstance(one.event, TextDelta | ThinkingDelta) else one.number

    joined: list[Live] = []
    for _, group in groupby(kept, kind):
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
    ) -> None:
        """`folder`: where processes find each other's sockets; None: only this process can be watched. `on_signal` is
        called when another process says that it has sent a signal."""
        self._journal = journal
        self._changes = changes
        self._owner = owner
        self._folder = folder
        self._on_signal = on_signal
        self._broadcasts: dict[SessionId, Broadcast] = {}
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
        if self._serving is None and self._folder is not None:
            socket = LiveSocket(self._folder, self._owner, self._subscribe, self._on_signal)
            self._serving = asyncio.create_task(socket.serve(), name="live socket")
        broadcast = self._broadcasts.setdefault(session, Broadcast())
        broadcast.begin(epoch, seq)
        for idle in self._idle.get(session, ()):
            idle.set()
        return broadcast

    def end(self, session: SessionId) -> None:
        if (broadcast := self._broadcasts.get(session)) is not None:
            broadcast.end()
            self._drop_unneeded(session)

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
                        async with aclosing(follower.follow(frames)) as told:
                            async for one in told:
                                yield one
                    if not follower.is_cut_off:
                        with suppress(TimeoutError):
                            async with asyncio.timeout(None if follower.is_at_rest else RETRY_S):
                                await idle.wait()
        finally:
            self._idle[session].discard(idle)
            if not self._idle[session]:
                del self._idle[session]

    async def _find_runner(self, session: SessionId, stack: AsyncExitStack) -> Runner:
        """What the process that runs the session tells."""
        broadcast = self._broadcasts.get(session)
        if broadcast is not None and broadcast.is_running:
            return stack.enter_context(self._subscribe(session))
        holder = await self._journal.holder(session)
        if holder is None or holder == self._owner or self._folder is None:
            return "nobody"
        return await stack.enter_async_context(watch_remotely(self._folder, holder, session)) or "unreachable"

    @contextmanager
    def _subscribe(self, session: SessionId) -> Generator[Subscription]:
        broadcast = self._broadcasts.setdefault(session, Broadcast())
        subscription = broadcast.subscribe()
        try:
            if not broadcast.is_running:  # it was, when somebody asked for the way here
                subscription.put(Ended())
            yield subscription
        finally:
            broadcast.unsubscribe(subscription)
            self._drop_unneeded(session)

    def _drop_unneeded(self, session: SessionId) -> None:
        if (broadcast := self._broadcasts.get(session)) is not None and not broadcast.is_needed:
            del self._broadcasts[session]


class _Follower:
    """One watcher's way through a session: where it is, and what it is told next."""

    def __init__(self, journal: Journal, session: SessionId, position: Position) -> None:
        self._journal = journal
        self._session = session
        self._seq = position.seq
        self._epoch: Epoch = position.epoch
        self._number = position.number
        self.is_cut_off = False
        """It was too slow: it has to begin again at once."""
        self.is_at_rest = True
        """Nobody runs the session."""

    async def follow(self, frames: Runner) -> AsyncGenerator[Watched]:
        """What was settled meanwhile; then what the process that runs the session tells, as long as it does."""
        self.is_cut_off, self.is_at_rest = False, frames == "nobody"
        joined = None if isinstance(frames, str) else await frames.next()
        if isinstance(frames, str) or not isinstance(joined, Joined):
            async for settled in self._read_journal():
                yield settled
            return
        async for settled in self._read_journal(joined.seq):
            yield settled
        is_torn = any(one.first <= self._number < one.number for one in joined.kept if one.first)
        if self._number and (joined.epoch != self._epoch or is_torn):
            self._number = 0
            yield Restarted()
        self._epoch = joined.epoch
        for live in joined.kept:
            if live.number > self._number:
                self._number = live.number
                yield live
        while True:
            match await frames.next():
                case Settled(recorded) as settled:
                    if recorded.seq > self._seq:
                        self._seq = recorded.seq
                        yield settled
                case Live(_, number) as live:
                    self._number = number
                    yield live
                case Ended():
                    self._number = 0
                    return
                case FellBehind():
                    self.is_cut_off, self._number = True, 0
                    yield Restarted()
                    return
                case None | Joined():  # it is gone, perhaps killed
                    self._number = 0
                    yield Restarted()
                    return

    async def _read_journal(self, until: int | None = None) -> AsyncGenerator[Settled]:
        for recorded in await self._journal.entries(self._session, self._seq):
            if until is None or recorded.seq <= until:
                self._seq = recorded.seq
                yield Settled(recorded, was_live=False)
