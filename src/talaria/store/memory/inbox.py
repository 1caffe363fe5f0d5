"""The inbox in memory."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from talaria.core.clock import Clock
from talaria.core.ids import InboxId, SessionId, TurnId
from talaria.store.base import BrokenRuleError
from talaria.store.chats import ChatRow
from talaria.store.mail import Cursor, Inbound, InboxState, Outgoing
from talaria.store.memory.outbox import post
from talaria.store.memory.tables import InboxRow, MemoryDatabase, Tables


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
