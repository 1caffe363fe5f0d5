"""Ports that pass everything on: override one method to watch it, to disturb it, or to die in it."""

from collections.abc import Sequence

from talaria.model.entries import Recorded
from talaria.model.ids import Epoch, OwnerId, SessionId, TurnId
from talaria.store.base import CallRow, Cursor, Held, Inbound, Journal, Sessions, Store, Write


class JournalProxy:
    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    async def accept(self, inbounds: Sequence[Inbound], cursor: Cursor | None = None) -> Sequence[bool]:
        return await self.journal.accept(inbounds, cursor)

    async def cursor(self, platform: str, account: str) -> str | None:
        return await self.journal.cursor(platform, account)

    async def pending(self, session: SessionId) -> Sequence[Inbound]:
        return await self.journal.pending(session)

    async def seize(self, session: SessionId, owner: OwnerId) -> Epoch | Held:
        return await self.journal.seize(session, owner)

    async def record(self, session: SessionId, epoch: Epoch, writes: Sequence[Write]) -> None:
        await self.journal.record(session, epoch, writes)

    async def release(self, session: SessionId, epoch: Epoch) -> bool:
        return await self.journal.release(session, epoch)

    async def entries(self, session: SessionId, after: int = 0) -> Sequence[Recorded]:
        return await self.journal.entries(session, after)

    async def calls(self, session: SessionId, turn: TurnId) -> Sequence[CallRow]:
        return await self.journal.calls(session, turn)

    async def interrupted(self) -> Sequence[SessionId]:
        return await self.journal.interrupted()


class StoreProxy:
    """A store with its journal, and perhaps its sessions, exchanged."""

    def __init__(self, store: Store, journal: Journal, sessions: Sessions | None = None) -> None:
        self.journal = journal
        self.sessions = sessions or store.sessions
        self.owners = store.owners
        self.outbox = store.outbox
        self.handoffs = store.handoffs
        self.search = store.search
        self.spending = store.spending
        self.approvals = store.approvals
        self.grants = store.grants
