"""The outbox in memory.

The inbox in memory.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from talaria.core.clock import Clock
from talaria.core.ids import InboxId, OutboxId, SessionId, TurnId
from talaria.store.base import BrokenRuleError
from talaria.store.chats import ChatRow
from talaria.store.mail import Cursor, Inbound, InboxState, OutboxRow, OutboxState, Outgoing
from talaria.store.memory.tables import InboxRow, MemoryDatabase, Tables

_DUE: tuple[OutboxState, ...] = ("pending", "started")


class Outbox:
    def __init__(self, memory: MemoryDatabase, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock

    async def targets(self) -> Sequence[str]:
        return list(dict.fromkeys(row.target for row in _due(self._memory.tables)))

    async def due(self, target: str, limit: int = 20) -> Sequence[OutboxRow]:
        return [row for row in _due(self._memory.tables) if row.target == target][:limit]

    async def add(self, session: SessionId, outgoing: Sequence[Outgoing]) -> None:
        with self._memory.transaction() as tables:
            for part in outgoing:
                post(tables, session, part, self._clock.now())

    async def begin(self, session: SessionId, draft: Outgoing) -> OutboxRow | None:
        with self._memory.transaction() as tables:
            if _of_key(tables, draft.key) is not None:
                return None
            now = self._clock.now()
            new = _new(tables, session, draft, now)
            return _put(tables, msgspec.structs.replace(new, state="started", attempts=1, started_at=now))

    async def start(self, row: OutboxId) -> OutboxRow | None:
        with self._memory.transaction() as tables:
            found = tables.outbox.get(row)
            return _start(tables, found, self._clock.now()) if found is not None and found.state in _DUE else None

    async def start_due(
        self, target: str, limit: int, is_wanted: Callable[[OutboxRow], bool]
    ) -> tuple[OutboxRow | None, Sequence[OutboxRow]]:
        rows = await self.due(target, limit)
        if not rows or rows[0].state != "pending" or not is_wanted(rows[0]):
            return None, rows
        with self._memory.transaction() as tables:
            return _start(tables, rows[0], self._clock.now()), rows[1:]

    async def sent(self, row: OutboxId, sent_id: str) -> None:
        with self._memory.transaction() as tables:
            found = msgspec.structs.replace(_at(tables, row, ("started",)), sent_id=sent_id, error="")
            if row in tables.reworded:
                tables.reworded -= {row}
                _put(tables, msgspec.structs.replace(found, state="pending", attempts=0))
            else:
                _put(tables, msgspec.structs.replace(found, state="sent"))

    async def defer(self, row: OutboxId, error: str) -> None:
        self._leave(row, ("started",), "pending", error)

    async def fail(self, row: OutboxId, error: str) -> None:
        self._leave(row, _DUE, "failed", error)

    async def expire(self, row: OutboxId) -> None:
        self._leave(row, _DUE, "expired", "not delivered in time")

    def _leave(self, row: OutboxId, leaving: tuple[OutboxState, ...], state: OutboxState, error: str) -> None:
        with self._memory.transaction() as tables:
            _put(tables, msgspec.structs.replace(_at(tables, row, leaving), state=state, error=error))

    async def retry(self, row: OutboxId, expires_at: float) -> bool:
        with self._memory.transaction() as tables:
            found = tables.outbox.get(row)
            if found is None or found.state not in ("failed", "expired"):
                return False
            _put(tables, msgspec.structs.replace(_afresh(found), expires_at=expires_at))
        return True

    async def move(self, target: str, to: str) -> None:
        with self._memory.transaction() as tables:
            for row in _due(tables):
                if row.target == target:
                    _put(tables, msgspec.structs.replace(row, target=to))

    async def rows(self, session: SessionId) -> Sequence[OutboxRow]:
        return [row for row in self._memory.tables.outbox.values() if row.session == session]

    async def find(self, key: str) -> OutboxRow | None:
        return _of_key(self._memory.tables, key)

    async def count(self) -> Mapping[OutboxState, int]:
        return Counter(row.state for row in self._memory.tables.outbox.values())

    async def list(self, states: Sequence[OutboxState], limit: int = 100) -> Sequence[OutboxRow]:
        return [row for row in reversed(self._memory.tables.outbox.values()) if row.state in states][:limit]

    async def prune(self, before: float) -> int:
        with self._memory.transaction() as tables:
            old = [row.id for row in tables.outbox.values() if row.state == "sent" and row.created_at < before]
            for id in old:
                del tables.outbox[id]
        return len(old)


def post(tables: Tables, session: SessionId, part: Outgoing, now: float) -> None:
    """A new row, or what the row with this key is to read: sent again as an edit, unless it reads so already."""
    row = _of_key(tables, part.key)
    if row is None:
        _put(tables, _new(tables, session, part, now))
        return
    if row.session != session:
        raise BrokenRuleError(f"outbox key {part.key} belongs to another session")
    if row.body == part.body and row.state == "sent":
        return
    if row.state == "started" and row.body != part.body:
        tables.reworded |= {row.id}
    due = row if row.state in _DUE else _afresh(row)
    _put(tables, msgspec.structs.replace(due, body=part.body, expires_at=part.expires_at))


def _new(tables: Tables, session: SessionId, part: Outgoing, now: float) -> OutboxRow:
    return OutboxRow(
        id=OutboxId(tables.next_id()),
        session=session,
        target=part.target,
        body=part.body,
        key=part.key,
        created_at=now,
        expires_at=part.expires_at,
        state="pending",
        attempts=0,
        started_at=None,
        sent_id=None,
        error="",
    )


def _afresh(row: OutboxRow) -> OutboxRow:
    return msgspec.structs.replace(row, state="pending", attempts=0, error="")


def _start(tables: Tables, row: OutboxRow, now: float) -> OutboxRow:
    tables.reworded -= {row.id}
    began = now if row.started_at is None else row.started_at
    return _put(tables, msgspec.structs.replace(row, state="started", attempts=row.attempts + 1, started_at=began))


def _put(tables: Tables, row: OutboxRow) -> OutboxRow:
    tables.outbox[row.id] = row
    return row


def _due(tables: Tables) -> list[OutboxRow]:
    return [row for row in tables.outbox.values() if row.state in _DUE]


def _of_key(tables: Tables, key: str) -> OutboxRow | None:
    return next((row for row in tables.outbox.values() if row.key == key), None)


def _at(tables: Tables, row: OutboxId, states: tuple[OutboxState, ...]) -> OutboxRow:
    found = tables.outbox.get(row)
    if found is None or found.state not in states:
        raise BrokenRuleError(f"outbox row {row} is over, or not started")
    return found


class Inbox:
    def __init__(self, memory: MemoryDatabase, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock

    async def accept(self, inbounds: Sequence[Inbound], cursor: Cursor | None = None) -> Sequence[Inbound | None]:
        with self._memory.transaction() as tables:
            kept = [_accept(tables, inbound, self._clock.now()) for inbound in inbounds]
            if cursor is not None:
                tables.cursors[cursor.platform, cursor.account] = cursor.value
        return kept

    async def cursor(self, platform: str, account: str) -> str | None:
        return self._memory.tables.cursors.get((platform, account))

    async def pending(self, session: SessionId, limit: int = 1000) -> Sequence[Inbound]:
        return waiting(self._memory.tables, session)[:limit]

    async def waiting(self) -> Sequence[SessionId]:
        mail = [row.inbound for row in self._memory.tables.inbox.values()]
        return list(dict.fromkeys(inbound.session for inbound in mail if inbound.state != "done"))

    async def find(self, platform: str, account: str, chat: str, message_id: str) -> Inbound | None:
        row = self._memory.tables.inbox.get((platform, account, chat, message_id))
        return row.inbound if row else None

    async def take(self, id: InboxId) -> SessionId | None:
        with self._memory.transaction() as tables:
            found = next((row for row in tables.inbox.values() if row.inbound.id == id), None)
            if found is None or found.inbound.state != "new":
                return None
            move(tables, found.inbound.session, [id], "new", "taken")
        return found.inbound.session

    async def finish(self, session: SessionId, ids: Sequence[InboxId], replies: Sequence[Outgoing] = ()) -> None:
        with self._memory.transaction() as tables:
            move(tables, session, ids, "taken", "done")
            for reply in replies:
                post(tables, session, reply, self._clock.now())

    async def prune(self, before: float) -> int:
        with self._memory.transaction() as tables:
            known = tables.inbox
            tables.inbox = {key: row for key, row in known.items() if not _is_old(row, before)}
            return len(known) - len(tables.inbox)


def waiting(tables: Tables, session: SessionId) -> list[Inbound]:
    mail = [row.inbound for row in tables.inbox.values()]
    return [inbound for inbound in mail if inbound.session == session and inbound.state != "done"]


def move(
    tables: Tables,
    session: SessionId,
    ids: Sequence[InboxId],
    leaving: InboxState,
    state: InboxState,
    turn: TurnId | None = None,
) -> None:
    for id in ids:
        place = next((key for key, row in tables.inbox.items() if _is_at(row.inbound, id, session, leaving)), None)
        if place is None:
            raise BrokenRuleError(f"inbox row {id} is not {leaving}")
        row = tables.inbox[place]
        moved = msgspec.structs.replace(row.inbound, state=state, turn=turn)
        tables.inbox[place] = replace(row, inbound=moved)


def _is_at(inbound: Inbound, id: InboxId, session: SessionId, state: InboxState) -> bool:
    """What was taken without a turn counts as new to one."""
    is_free = inbound.state == "taken" and inbound.turn is None
    is_there = inbound.state == state or (state == "new" and is_free)
    return (inbound.id, inbound.session) == (id, session) and is_there


def _is_old(row: InboxRow, before: float) -> bool:
    return row.inbound.state == "done" and row.received_at < before


def _accept(tables: Tables, inbound: Inbound, now: float) -> Inbound | None:
    place = (inbound.platform, inbound.account, inbound.chat, inbound.message_id)
    if place in tables.inbox:
        return None
    chat = tables.chats.get(inbound.key)
    if chat is None and inbound.key:
        chat = tables.chats[inbound.key] = ChatRow(inbound.key, inbound.session, "")
    session = chat.session if chat else inbound.session
    accepted = msgspec.structs.replace(inbound, session=session, id=InboxId(tables.next_id()), state="new", turn=None)
    tables.inbox[place] = InboxRow(accepted, now)
    return accepted
