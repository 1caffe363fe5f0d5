"""The hold on a session: its row, and the epoch under which this owner may write."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from talaria.core.errors import Fenced, SessionBusy, StoreUnavailable
from talaria.core.ids import Epoch, OwnerId, SessionId, pid_of
from talaria.store.base import BrokenRuleError, Held, Left, NewSession, Seized, Session, Store, Write
from talaria.waiting import in_thread

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
