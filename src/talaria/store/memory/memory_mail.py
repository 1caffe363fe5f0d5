"""Inbox, outbox, chats and handoffs in memory."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from talaria.core.clock import Clock
from talaria.core.ids import InboxId, OutboxId, SessionId, TurnId, new_handoff_id, new_session_id
from talaria.store.base import BrokenRuleError
from talaria.store.chat_ports import (
    MAX_REASON_CHARS,
    BusyMode,
    ChatRow,
    Cursor,
    HandoffRequest,
    HandoffStage,
    HandoffState,
    Inbound,
    InboxState,
    OutboxRow,
    OutboxState,
    Outgoing,
)
from talaria.store.memory.memory_tables import HandoffChat, InboxRow, MemoryDatabase, Tables

_DUE: tuple[OutboxState, ...] = ("pending", "started")


class Outbox:
    def __init__(self, memory: MemoryDatabase, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock

    async def list_targets(self) -> Sequence[str]:
        return list(dict.fromkeys(row.target for row in _due(self._memory.tables)))

    async def list_due(self, target: str, limit: int = 20) -> Sequence[OutboxRow]:
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
        rows = await self.list_due(target, limit)
        if not rows or rows[0].state != "pending" or not is_wanted(rows[0]):
            return None, rows
        with self._memory.transaction() as tables:
            return _start(tables, rows[0], self._clock.now()), rows[1:]

    async def mark_sent(self, row: OutboxId, sent_id: str) -> None:
        with self._memory.transaction() as tables:
            found = msgspec.structs.replace(_get_at(tables, row, ("started",)), sent_id=sent_id, error="")
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
            _put(tables, msgspec.structs.replace(_get_at(tables, row, leaving), state=state, error=error))

    async def retry(self, row: OutboxId, expires_at: float) -> bool:
        with self._memory.transaction() as tables:
            found = tables.outbox.get(row)
            if found is None or found.state not in ("failed", "expired"):
                return False
            _put(tables, msgspec.structs.replace(_reset(found), expires_at=expires_at))
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
    """A new row, or a new text for the row with this key, which is then sent as an edit unless it is the same."""
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
    due = row if row.state in _DUE else _reset(row)
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


def _reset(row: OutboxRow) -> OutboxRow:
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


def _get_at(tables: Tables, row: OutboxId, states: tuple[OutboxState, ...]) -> OutboxRow:
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

    async def list_pending(self, session: SessionId, limit: int = 1000) -> Sequence[Inbound]:
        return list_pending(self._memory.tables, session)[:limit]

    async def list_sessions(self) -> Sequence[SessionId]:
        mail = [row.inbound for row in self._memory.tables.inbox.values()]
        return list(dict.fromkeys(inbound.session for inbound in mail if inbound.state != "done"))

    async def find(self, platform: str, account: str, chat: str, message_id: str) -> Inbound | None:
        row = self._memory.tables.inbox.get((platform, account, chat, message_id))
        return row.inbound if row else None

    async def list_from(self, platform: str, account: str, chat: str, limit: int = 50) -> Sequence[Inbound]:
        place = (platform, account, chat)
        return [row.inbound for key, row in reversed(self._memory.tables.inbox.items()) if key[:3] == place][:limit]

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
            tables.inbox = {
                key: row for key, row in known.items() if not (row.inbound.state == "done" and row.received_at < before)
            }
            return len(known) - len(tables.inbox)


def list_pending(tables: Tables, session: SessionId) -> list[Inbound]:
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
    """A message that was taken without a turn counts as new for one."""
    is_free = inbound.state == "taken" and inbound.turn is None
    is_there = inbound.state == state or (state == "new" and is_free)
    return (inbound.id, inbound.session) == (id, session) and is_there


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


class Chats:
    def __init__(self, memory: MemoryDatabase) -> None:
        self._memory = memory

    async def get(self, key: str) -> ChatRow | None:
        return self._memory.tables.chats.get(key)

    async def bind(self, key: str, session: SessionId, address: str) -> SessionId | None:
        with self._memory.transaction() as tables:
            return bind(tables, key, session, address)

    async def list_for(self, session: SessionId) -> Sequence[ChatRow]:
        return [chat for chat in reversed(self._memory.tables.chats.values()) if chat.session == session]

    async def move(self, key: str, to_key: str, address: str, to: str) -> None:
        with self._memory.transaction() as tables:
            for old in [one for one in tables.chats if one == key or one.startswith(f"{key}:")]:
                new = f"{to_key}{old.removeprefix(key)}"
                if new not in tables.chats:
                    tables.chats = {
                        (new if one == old else one): (msgspec.structs.replace(chat, key=new) if one == old else chat)
                        for one, chat in tables.chats.items()
                    }
            tables.chats = {
                one: msgspec.structs.replace(chat, address=to) if chat.address == address else chat
                for one, chat in tables.chats.items()
            }
            tables.homes = {name: to if home == address else home for name, home in tables.homes.items()}

    async def set_busy_mode(self, key: str, mode: BusyMode | None) -> None:
        with self._memory.transaction() as tables:
            if key not in tables.chats:
                raise BrokenRuleError(f"no chat {key}")
            tables.chats[key] = msgspec.structs.replace(tables.chats[key], busy_mode=mode)

    async def home(self, platform: str) -> str | None:
        return self._memory.tables.homes.get(platform)

    async def home_person(self, platform: str) -> str:
        return self._memory.tables.home_people.get(platform, "")

    async def set_home(self, platform: str, address: str, person: str = "") -> None:
        with self._memory.transaction() as tables:
            tables.homes[platform] = address
            tables.home_people[platform] = person


def bind(tables: Tables, key: str, session: SessionId, address: str) -> SessionId | None:
    """Returns the session that the chat was about before."""
    before = tables.chats.pop(key, None)  # and in again, after all others
    tables.chats[key] = ChatRow(key, session, address, before.busy_mode if before else None)
    for place, row in tables.inbox.items():
        if row.inbound.key == key and row.inbound.state == "new":
            tables.inbox[place] = replace(row, inbound=msgspec.structs.replace(row.inbound, session=session))
    return before.session if before else None


class Handoffs:
    def __init__(self, memory: MemoryDatabase, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock

    async def request(self, session: SessionId, platform: str) -> bool:
        with self._memory.transaction() as tables:
            leaving = (None, "completed", "failed")
            is_requested = _step(tables, session, leaving, state="pending", platform=platform, error=None)
            if is_requested:
                tables.sessions[session] = replace(tables.sessions[session], handoff_id=new_handoff_id())
        return is_requested

    async def claim(self, session: SessionId) -> bool:
        with self._memory.transaction() as tables:
            return _step(tables, session, ("pending",), state="running")

    async def find_running(self, session: SessionId) -> HandoffRequest | None:
        row = self._memory.tables.sessions.get(session)
        if row is None or row.handoff.state != "running":
            return None
        address = next((chat.address for chat in row.handoff_chats), "")
        return HandoffRequest(row.handoff_id or session, row.handoff.platform or "", address)

    async def bind(self, session: SessionId, keys: Sequence[str], address: str) -> bool:
        with self._memory.transaction() as tables:
            row = tables.sessions.get(session)
            if row is None or row.handoff.state != "running":
                return False
            chats = {chat.key: chat for chat in row.handoff_chats}
            for key in keys:
                before = bind(tables, key, session, address)
                chats.setdefault(key, HandoffChat(key, address, before))  # a second time, after a crash, knows less
            tables.sessions[session] = replace(row, handoff_chats=tuple(chats.values()))
        return True

    async def complete(self, session: SessionId) -> bool:
        with self._memory.transaction() as tables:
            is_completed = _step(tables, session, ("running",), state="completed", error=None)
            if is_completed:
                tables.sessions[session] = replace(tables.sessions[session], handoff_chats=())
        return is_completed

    async def fail(self, session: SessionId, reason: str) -> bool:
        with self._memory.transaction() as tables:
            leaving = ("pending", "running")
            has_failed = _step(tables, session, leaving, state="failed", error=reason[:MAX_REASON_CHARS])
            if has_failed:
                _bind_back(tables, session, new_session_id(self._clock.now()))
        return has_failed

    async def list_unsettled(self) -> Mapping[SessionId, str]:
        tables = self._memory.tables
        failed = ((one, tables.sessions[one].handoff_id) for one in _list_at(tables, "failed"))
        return {session: request for session, request in failed if request}

    async def settle(self, session: SessionId) -> None:
        with self._memory.transaction() as tables:
            row = tables.sessions.get(session)
            if row is not None and row.handoff.state == "failed":
                tables.sessions[session] = replace(row, handoff_id="")

    async def reclaim(self) -> Sequence[SessionId]:
        with self._memory.transaction() as tables:
            return [one for one in _list_at(tables, "running") if _step(tables, one, ("running",), state="pending")]

    async def state(self, session: SessionId) -> HandoffState | None:
        row = self._memory.tables.sessions.get(session)
        return row.handoff if row else None

    async def list_pending(self) -> Sequence[SessionId]:
        return _list_at(self._memory.tables, "pending")


def _step(tables: Tables, session: SessionId, leaving: Sequence[HandoffStage | None], **changes: str | None) -> bool:
    row = tables.sessions.get(session)
    if row is None or row.handoff.state not in leaving:
        return False
    tables.sessions[session] = replace(row, handoff=msgspec.structs.replace(row.handoff, **changes))
    return True


def _bind_back(tables: Tables, session: SessionId, new: SessionId) -> None:
    """A chat that is about another session by now stays with it. Mail of a chat that was about none goes to `new`."""
    row = tables.sessions[session]
    for one in row.handoff_chats:
        chat = tables.chats.get(one.key)
        if chat is None or chat.session != session:
            continue
        has_mail = any(mail.inbound.key == one.key and mail.inbound.state == "new" for mail in tables.inbox.values())
        before = one.before or (new if has_mail else None)
        if before is None:
            del tables.chats[one.key]
        else:
            bind(tables, one.key, before, one.address)
    tables.sessions[session] = replace(row, handoff_chats=())


def _list_at(tables: Tables, stage: HandoffStage) -> list[SessionId]:
    sessions = [row.session for row in tables.sessions.values() if row.handoff.state == stage]
    return [session.id for session in sorted(sessions, key=lambda session: (session.created_at, session.id))]
