"""The hold on a session: its row, and the epoch under which this owner may write.

How a conversation stands: what is known of it here, and our hold on it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from talaria.core.aio import in_thread
from talaria.core.entries import MessageAdded, TurnStarted
from talaria.core.errors import Fenced, SessionBusy, StoreUnavailable
from talaria.core.ids import Epoch, OwnerId, SessionId, TurnId, pid_of
from talaria.core.messages import User
from talaria.runtime.transcript import Transcript, contains_undo
from talaria.store.base import BrokenRuleError, Held, Journal, Left, NewSession, Seized, Session, Store, Write

log = logging.getLogger(__name__)


class SessionLease:
    def __init__(
        self, session: SessionId, store: Store, owner: OwnerId, row: Session | None, *, leaves_mail: bool = True
    ) -> None:
        """`leaves_mail`: the session is let go of although mail has come; another process sees to that."""
        self.session = session
        self._store = store
        self._owner = owner
        self._leaves_mail = leaves_mail
        self._epoch: Epoch | None = None
        self.last: Epoch | None = None
        """The epoch that is held, or was held last."""
        self.row = row
        """None: the session has not begun."""

    async def hold(self, begin: Callable[[], NewSession]) -> Epoch:
        """What it takes is kept here at once: a cancelled caller must not lose an epoch or a row.

        Raises `SessionBusy` when another living owner has it.
        """
        if self.row is None:
            await self.begin(begin)
        if self._epoch is None:
            self._epoch = self.last = await self._seized()
        return self._epoch

    async def begin(self, begin: Callable[[], NewSession]) -> bool:
        """False: another process has done so meanwhile."""
        try:
            self.row = await self._store.sessions.create(await in_thread(begin))
        except BrokenRuleError:
            self.row = await self._store.sessions.get(self.session)
            if self.row is None:
                raise
            return False
        return True

    async def _seized(self) -> Epoch:
        match await self._store.journal.seize(self.session, self._owner):
            case Held(owner):
                process = f"process {pid_of(owner)}"
                raise SessionBusy(f"Session {self.session} is at work in {process}; wait for it, or stop it.")
            case epoch:
                return epoch

    @property
    def is_held(self) -> bool:
        return self._epoch is not None

    @property
    def seizing(self) -> Seized:
        """Written first, it takes a session that nobody holds."""
        return Seized(self._owner)

    @property
    def leaving(self) -> Left:
        """Written last, it spares a `let_go`."""
        return Left(self._leaves_mail)

    async def record(self, epoch: Epoch, writes: Sequence[Write]) -> None:
        """Raises `Fenced`. What is taken or given up with the writes is known here at once."""
        try:
            is_released = await self._store.journal.record(self.session, epoch, writes)
        except asyncio.CancelledError:
            self._epoch = self.last = epoch  # the journal lets a cancellation through only after the commit
            raise
        self._epoch, self.last = None if is_released else epoch, epoch

    async def let_go(self, *, leaves_mail: bool = False) -> None:
        """A release that fails is made up for: by the next turn, which still has the epoch, or by this owner's end."""
        if self._epoch is None:
            return
        leaves = leaves_mail or self._leaves_mail
        try:
            if await self._store.journal.release(self.session, self._epoch, leaves_mail=leaves):
                self._epoch = None
        except Fenced:
            self._epoch = None
        except StoreUnavailable as fault:
            log.warning("session %s not released: %s", self.session, fault)


NEVER_HELD = Epoch(0)


class SessionState:
    def __init__(self, tenure: SessionLease, journal: Journal) -> None:
        self.tenure = tenure
        self.view = Transcript()
        self._journal = journal
        self._left_at: Epoch | None = None
        """The epoch of the last turn, after which the view was complete; None: that is not known."""

    def enter(self) -> Epoch | None:
        """The epoch up to which all is known; it has to be left in good order to be known again."""
        left, self._left_at = self._left_at, None
        return left

    def leave(self) -> None:
        self._left_at = self.tenure.last if self.view.open_turn is None else None

    async def begun(self, begin: Callable[[], NewSession]) -> bool:
        """Whether the conversation is begun now, by us: then nobody has ever held it."""
        return self.tenure.row is None and await self.tenure.begin(begin)

    async def hold(self, left: Epoch | None, begin: Callable[[], NewSession]) -> Epoch:
        epoch = await self.tenure.hold(begin)
        if left is None or epoch > left + 1:  # nobody else had it, or it would have grown by more
            await self.read_on()
        return epoch

    async def read_on(self) -> None:
        news = await self._journal.entries(self.tenure.session, self.view.last_seq)
        if self.view.last_seq == 0:
            self.view = Transcript(news)
        elif contains_undo(news):
            await self.look_anew()
        else:
            self.view.extend(news)

    async def look_anew(self) -> None:
        self.view = Transcript(await self._journal.entries(self.tenure.session))

    def forget(self) -> None:
        """Only the hold is kept."""
        self.view = Transcript()

    @property
    def last_asked(self) -> str:
        """What the person said last."""
        said = [one for one in self.view.history if isinstance(one, User) and one.author == "person"]
        return said[-1].text if said else ""

    async def asked_in(self, turn: TurnId) -> str:
        """What the person said at the beginning of a turn."""
        entries = [recorded.entry for recorded in await self._journal.entries(self.tenure.session)]
        start = next(
            index for index, entry in enumerate(entries) if isinstance(entry, TurnStarted) and entry.turn == turn
        )
        said = (entry.message for entry in entries[start:] if isinstance(entry, MessageAdded))
        return next((message.text for message in said if isinstance(message, User)), "")
