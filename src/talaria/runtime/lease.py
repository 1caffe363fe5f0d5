"""The lease of a session: its row, the epoch under which this owner may write, and the recorder that writes under it.

The recorder is a turn's sink: it waits while the store is unavailable, shows events, and redacts known secrets.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from talaria.core.aio import complete, in_thread
from talaria.core.clock import Clock
from talaria.core.entries import Entry, MessageAdded, Recorded, TurnStarted
from talaria.core.errors import Fenced, SessionBusy, StoreUnavailable, UnknownSession
from talaria.core.events import AnswerRestarted, Event, Notice, RoundEnded, TextDelta, ThinkingDelta
from talaria.core.ids import Epoch, OwnerId, SessionId, TurnId, pid_of
from talaria.core.messages import User
from talaria.core.redaction import Redactor
from talaria.runtime.transcript import Transcript, contains_undo
from talaria.runtime.watching import Broadcast
from talaria.store.api_ports import HistoryPoint
from talaria.store.base import (
    BrokenRuleError,
    Held,
    Journal,
    NewSession,
    Session,
    SessionReleased,
    SessionSeized,
    Store,
    Write,
)

NEVER_HELD = Epoch(0)

log = logging.getLogger(__name__)


class SessionLease:
    """A cancelled caller never loses an epoch or a row: what the store grants is noted here at once."""

    def __init__(
        self, session: SessionId, store: Store, owner: OwnerId, row: Session | None, *, leaves_mail: bool = True
    ) -> None:
        """With `leaves_mail`, the session is released even if mail has come, which another process answers."""
        self.session = session
        self._store = store
        self._owner = owner
        self._leaves_mail = leaves_mail
        self._epoch: Epoch | None = None
        self.last: Epoch | None = None
        """The epoch that is held now, or was held last."""
        self.row = row
        """None: the session is not in the store yet."""

    @property
    def is_held(self) -> bool:
        return self._epoch is not None

    @property
    def seizing_write(self) -> SessionSeized:
        """As the first write, it seizes a session that nobody holds."""
        return SessionSeized(self._owner)

    @property
    def releasing_write(self) -> SessionReleased:
        """As the last write, it makes `release` unnecessary."""
        return SessionReleased(self._leaves_mail)

    async def create(self, new: Callable[[], NewSession]) -> bool:
        """True: we have just created the session's row, so nobody has ever held the session."""
        return self.row is None and await complete(self._create(new))

    async def _create(self, new: Callable[[], NewSession]) -> bool:
        try:
            self.row = await self._store.sessions.create(await in_thread(new))
        except BrokenRuleError:  # another process has created it meanwhile
            self.row = await self._store.sessions.get(self.session)
            if self.row is None:
                raise
            return False
        return True

    async def adopt(
        self,
        new: Callable[[], NewSession],
        created_at: float,
        journal: Sequence[Recorded],
        history: HistoryPoint | None = None,
    ) -> Session:
        """Create it with a journal, and the history with which it ends."""
        await self._store.sessions.adopt(await in_thread(new), created_at, journal, history)
        self.row = row = await self._store.sessions.get(self.session)
        if row is None:
            raise UnknownSession(f"There is no session {self.session} any more.")
        return row

    async def seize(self) -> Epoch:
        """Raises `SessionBusy` when another living owner has it."""
        return self._epoch if self._epoch is not None else await complete(self._seize())

    async def _seize(self) -> Epoch:
        match await self._store.journal.seize(self.session, self._owner):
            case Held(owner):
                process = f"process {pid_of(owner)}"
                raise SessionBusy(f"Session {self.session} is in use by {process}. Wait until it is done, or stop it.")
            case epoch:
                self._epoch = self.last = epoch
                return epoch

    async def record(self, epoch: Epoch, writes: Sequence[Write]) -> None:
        """Raises `Fenced`. If the writes seize or release the session, that is noted here at once."""
        try:
            is_released = await self._store.journal.record(self.session, epoch, writes)
        except asyncio.CancelledError:
            self._epoch = self.last = epoch  # the journal lets a cancellation through only after the commit
            raise
        self._epoch, self.last = None if is_released else epoch, epoch

    async def release(self, *, leaves_mail: bool = False) -> None:
        """If it fails, the next turn still has the epoch, and the session is released when this owner ends."""
        if self._epoch is not None:
            await complete(self._release(self._epoch, leaves_mail=leaves_mail or self._leaves_mail))

    async def _release(self, epoch: Epoch, *, leaves_mail: bool) -> None:
        try:
            if await self._store.journal.release(self.session, epoch, leaves_mail=leaves_mail):
                self._epoch = None
        except Fenced:
            self._epoch = None
        except StoreUnavailable as fault:
            log.warning("session %s not released: %s", self.session, fault)


class SessionState:
    """The transcript of a session as far as this process knows it, and the lease under which it grows."""

    def __init__(self, lease: SessionLease, journal: Journal) -> None:
        self.lease = lease
        self.transcript = Transcript()
        self._journal = journal
        self._known_until: Epoch | None = None
        """The epoch of the last turn, after which the transcript was complete; None: unknown."""

    def enter(self) -> Epoch | None:
        """The epoch up to which the transcript is complete. Unless `leave` follows, the next call returns None."""
        known, self._known_until = self._known_until, None
        return known

    def leave(self) -> None:
        self._known_until = self.lease.last if self.transcript.open_turn is None else None

    async def seize(self, known: Epoch | None) -> Epoch:
        """`known` is what `enter` returned. The transcript is up to date afterwards."""
        epoch = await self.lease.seize()
        if known is None or epoch > known + 1:  # else nobody else had the session: each owner adds one
            await self.read_new_entries()
        return epoch

    async def read_new_entries(self) -> None:
        news = await self._journal.entries(self.lease.session, self.transcript.last_seq)
        if self.transcript.last_seq == 0:
            self.transcript = Transcript(news)
        elif contains_undo(news):
            await self.reload()
        else:
            self.transcript.extend(news)

    async def reload(self) -> None:
        self.transcript = Transcript(await self._journal.entries(self.lease.session))

    def unload(self) -> None:
        """Only the lease is kept."""
        self.transcript = Transcript()

    @property
    def last_question(self) -> str:
        """What the person said last."""
        said = [one for one in self.transcript.history if isinstance(one, User) and one.author == "person"]
        return said[-1].text if said else ""

    async def question_of(self, turn: TurnId) -> str:
        """What the person said at the beginning of a turn."""
        entries = [recorded.entry for recorded in await self._journal.entries(self.lease.session)]
        start = next(
            index for index, entry in enumerate(entries) if isinstance(entry, TurnStarted) and entry.turn == turn
        )
        said = (entry.message for entry in entries[start:] if isinstance(entry, MessageAdded))
        return next((message.text for message in said if isinstance(message, User)), "")


PATIENCE_S = 120.0
FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 4.0

T = TypeVar("T")
Observer = Callable[[Event], None]


class Recorder:
    def __init__(
        self,
        lease: SessionLease,
        epoch: Epoch,
        transcript: Transcript,
        clock: Clock,
        observer: Observer,
        broadcast: Broadcast,
        redactor: Redactor | None = None,
    ) -> None:
        self._lease = lease
        self._epoch = epoch
        self._transcript = transcript
        self._clock = clock
        self._observer = observer
        self.broadcast = broadcast
        """What others are told of it."""
        self._redactor = redactor or Redactor()
        self._shown: list[str] = []
        self._hurried = asyncio.Event()
        self._is_closed = False
        self._settle: Callable[[Sequence[Write]], None] = lambda _: None

    async def record(self, *writes: Write) -> None:
        """Durable when it returns, also when it returns by cancellation. Raises `Fenced`, `StoreUnavailable`."""
        if self._is_closed:
            raise Fenced(f"Session {self._lease.session} is left as it is.")
        redacted = self._redactor.value(writes)
        await complete(self.with_retries(lambda: self._write(redacted)))

    async def begin(self, *writes: Write) -> bool:
        """Seize the session and record, in one commit. False: somebody else has had it meanwhile; nothing is written.

        Like `seize`, it does not wait out a store outage. Raises `StoreUnavailable`.
        """
        return await complete(self._begin((self._lease.seizing_write, *self._redactor.value(writes))))

    async def _begin(self, writes: tuple[Write, ...]) -> bool:
        try:
            await self._write(writes)
        except Fenced:
            return False
        return True

    def on_commit(self, settle: Callable[[Sequence[Write]], None]) -> None:
        """Call this with the writes of each record once they are durable, even if the record was cancelled."""
        self._settle = settle

    def close(self) -> None:
        """Write nothing more: the turn will be resumed from the disk, elsewhere or later."""
        self._is_closed = True
        self.hurry()

    def hurry(self) -> None:
        """Stop waiting for an unavailable store: the turn is being stopped."""
        self._hurried.set()

    async def with_retries(self, work: Callable[[], Awaitable[T]]) -> T:
        """Retry work on the store while that is unavailable. Raises `StoreUnavailable` if it stays so."""
        wait_s = FIRST_WAIT_S
        deadline = self._clock.monotonic() + PATIENCE_S
        while True:
            try:
                return await work()
            except StoreUnavailable as fault:
                if self._hurried.is_set() or self._clock.monotonic() + wait_s > deadline:
                    raise
                if wait_s == FIRST_WAIT_S:
                    self.notify(f"{fault} Waiting for it.")
            waits = [asyncio.ensure_future(self._clock.sleep(wait_s)), asyncio.ensure_future(self._hurried.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)

    async def _write(self, writes: tuple[Write, ...]) -> None:
        try:
            await self._lease.record(self._epoch, writes)
        except asyncio.CancelledError:
            self._apply(writes)  # the journal lets a cancellation through only after the commit
            raise
        self._apply(writes)

    def _apply(self, writes: Sequence[Write]) -> None:
        now = self._clock.now()
        for write in writes:
            if isinstance(write, Entry):
                self._transcript.add(write, now)
                self.broadcast.settle(Recorded(self._transcript.last_seq, now, write))
        self._settle(writes)

    def notify(self, text: str) -> None:
        """Tell the person something."""
        self.emit(Notice(text))

    def emit(self, event: Event) -> None:
        match event:
            case TextDelta(text):  # what the model writes was redacted as it came in
                self._shown.append(text)
            case ThinkingDelta():
                pass
            case AnswerRestarted() | RoundEnded():
                self._shown.clear()
                event = self._redactor.value(event)
            case _:
                event = self._redactor.value(event)
        self.broadcast.emit(event)
        try:
            self._observer(event)
        except Exception:
            log.exception("an observer failed on %s", type(event).__name__)

    @property
    def partial_text(self) -> str:
        """What people have seen of an answer that is not recorded yet."""
        return "".join(self._shown)
