"""Ports that pass everything on: override one method to watch it, to disturb it, or to die in it."""

from collections.abc import Callable, Mapping, Sequence

from talaria.model.entries import Recorded
from talaria.model.ids import Epoch, InboxId, OutboxId, OwnerId, SessionId, TurnId
from talaria.store.base import CallRow, Held, Journal, Sessions, Store, Write
from talaria.store.chats import BusyMode, ChatRow, Chats
from talaria.store.mail import Cursor, Inbound, Inbox, Outbox, OutboxRow, OutboxState, Outgoing


class JournalProxy:
    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    async def seize(self, session: SessionId, owner: OwnerId) -> Epoch | Held:
        return await self.journal.seize(session, owner)

    async def record(self, session: SessionId, epoch: Epoch, writes: Sequence[Write]) -> bool:
        return await self.journal.record(session, epoch, writes)

    async def release(self, session: SessionId, epoch: Epoch, *, leaves_mail: bool = False) -> bool:
        return await self.journal.release(session, epoch, leaves_mail=leaves_mail)

    async def entries(self, session: SessionId, after: int = 0) -> Sequence[Recorded]:
        return await self.journal.entries(session, after)

    async def calls(self, session: SessionId, turn: TurnId) -> Sequence[CallRow]:
        return await self.journal.calls(session, turn)

    async def interrupted(self) -> Sequence[SessionId]:
        return await self.journal.interrupted()


class InboxProxy:
    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox

    async def accept(self, inbounds: Sequence[Inbound], cursor: Cursor | None = None) -> Sequence[Inbound | None]:
        return await self.inbox.accept(inbounds, cursor)

    async def cursor(self, platform: str, account: str) -> str | None:
        return await self.inbox.cursor(platform, account)

    async def pending(self, session: SessionId, limit: int = 1000) -> Sequence[Inbound]:
        return await self.inbox.pending(session, limit)

    async def waiting(self) -> Sequence[SessionId]:
        return await self.inbox.waiting()

    async def take(self, id: InboxId) -> SessionId | None:
        return await self.inbox.take(id)

    async def finish(self, session: SessionId, ids: Sequence[InboxId], replies: Sequence[Outgoing] = ()) -> None:
        await self.inbox.finish(session, ids, replies)

    async def prune(self, before: float) -> int:
        return await self.inbox.prune(before)


class OutboxProxy:
    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox

    async def targets(self) -> Sequence[str]:
        return await self.outbox.targets()

    async def due(self, target: str, limit: int = 20) -> Sequence[OutboxRow]:
        return await self.outbox.due(target, limit)

    async def add(self, session: SessionId, outgoing: Sequence[Outgoing]) -> None:
        await self.outbox.add(session, outgoing)

    async def begin(self, session: SessionId, draft: Outgoing) -> OutboxRow | None:
        return await self.outbox.begin(session, draft)

    async def start(self, row: OutboxId) -> OutboxRow | None:
        return await self.outbox.start(row)

    async def start_due(
        self, target: str, limit: int, is_wanted: Callable[[OutboxRow], bool]
    ) -> tuple[OutboxRow | None, Sequence[OutboxRow]]:
        return await self.outbox.start_due(target, limit, is_wanted)

    async def sent(self, row: OutboxId, sent_id: str) -> None:
        await self.outbox.sent(row, sent_id)

    async def defer(self, row: OutboxId, error: str) -> None:
        await self.outbox.defer(row, error)

    async def fail(self, row: OutboxId, error: str) -> None:
        await self.outbox.fail(row, error)

    async def expire(self, row: OutboxId) -> None:
        await self.outbox.expire(row)

    async def count(self) -> Mapping[OutboxState, int]:
        return await self.outbox.count()

    async def retry(self, row: OutboxId, expires_at: float) -> bool:
        return await self.outbox.retry(row, expires_at)

    async def move(self, target: str, to: str) -> None:
        await self.outbox.move(target, to)

    async def rows(self, session: SessionId) -> Sequence[OutboxRow]:
        return await self.outbox.rows(session)

    async def find(self, key: str) -> OutboxRow | None:
        return await self.outbox.find(key)

    async def list(self, states: Sequence[OutboxState], limit: int = 100) -> Sequence[OutboxRow]:
        return await self.outbox.list(states, limit)

    async def prune(self, before: float) -> int:
        return await self.outbox.prune(before)


class ChatsProxy:
    def __init__(self, chats: Chats) -> None:
        self.chats = chats

    async def get(self, key: str) -> ChatRow | None:
        return await self.chats.get(key)

    async def bind(self, key: str, session: SessionId, address: str) -> SessionId | None:
        return await self.chats.bind(key, session, address)

    async def of(self, session: SessionId) -> Sequence[ChatRow]:
        return await self.chats.of(session)

    async def move(self, key: str, to_key: str, address: str, to: str) -> None:
        await self.chats.move(key, to_key, address, to)

    async def set_busy_mode(self, key: str, mode: BusyMode | None) -> None:
        await self.chats.set_busy_mode(key, mode)

    async def home(self, platform: str) -> str | None:
        return await self.chats.home(platform)

    async def set_home(self, platform: str, address: str) -> None:
        await self.chats.set_home(platform, address)


class StoreProxy:
    """A store with its journal, and perhaps other parts, exchanged."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        sessions: Sessions | None = None,
        *,
        inbox: Inbox | None = None,
        outbox: Outbox | None = None,
        chats: Chats | None = None,
    ) -> None:
        self.version = store.version
        self.journal = journal
        self.inbox = inbox or store.inbox
        self.chats = chats or store.chats
        self.access = store.access
        self.sessions = sessions or store.sessions
        self.owners = store.owners
        self.outbox = outbox or store.outbox
        self.handoffs = store.handoffs
        self.search = store.search
        self.spending = store.spending
        self.approvals = store.approvals
        self.grants = store.grants
