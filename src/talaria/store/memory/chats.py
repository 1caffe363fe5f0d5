"""Chats in memory.

Handoffs in memory. Every step is guarded by the state it leaves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from talaria.core.clock import Clock
from talaria.core.ids import SessionId, new_handoff_id, new_session_id
from talaria.store.base import MAX_REASON_CHARS, BrokenRuleError, HandoffRequest, HandoffStage, HandoffState
from talaria.store.chats import BusyMode, ChatRow
from talaria.store.memory.tables import HandoffChat, MemoryDatabase, Tables


class Chats:
    def __init__(self, memory: MemoryDatabase) -> None:
        self._memory = memory

    async def get(self, key: str) -> ChatRow | None:
        return self._memory.tables.chats.get(key)

    async def bind(self, key: str, session: SessionId, address: str) -> SessionId | None:
        with self._memory.transaction() as tables:
            return bind(tables, key, session, address)

    async def of(self, session: SessionId) -> Sequence[ChatRow]:
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
    """The session that the chat was about before."""
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

    async def running(self, session: SessionId) -> HandoffRequest | None:
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

    async def unsettled(self) -> Mapping[SessionId, str]:
        tables = self._memory.tables
        failed = ((one, tables.sessions[one].handoff_id) for one in _at(tables, "failed"))
        return {session: request for session, request in failed if request}

    async def settle(self, session: SessionId) -> None:
        with self._memory.transaction() as tables:
            row = tables.sessions.get(session)
            if row is not None and row.handoff.state == "failed":
                tables.sessions[session] = replace(row, handoff_id="")

    async def reclaim(self) -> Sequence[SessionId]:
        with self._memory.transaction() as tables:
            return [one for one in _at(tables, "running") if _step(tables, one, ("running",), state="pending")]

    async def state(self, session: SessionId) -> HandoffState | None:
        row = self._memory.tables.sessions.get(session)
        return row.handoff if row else None

    async def pending(self) -> Sequence[SessionId]:
        return _at(self._memory.tables, "pending")


def _step(tables: Tables, session: SessionId, leaving: Sequence[HandoffStage | None], **changes: str | None) -> bool:
    row = tables.sessions.get(session)
    if row is None or row.handoff.state not in leaving:
        return False
    tables.sessions[session] = replace(row, handoff=msgspec.structs.replace(row.handoff, **changes))
    return True


def _bind_back(tables: Tables, session: SessionId, new: SessionId) -> None:
    """A chat that is about something else by now stays so. Mail in a chat that was about nothing goes to `new`."""
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


def _at(tables: Tables, stage: HandoffStage) -> list[SessionId]:
    """Oldest session first."""
    sessions = [row.session for row in tables.sessions.values() if row.handoff.state == stage]
    return [session.id for session in sorted(sessions, key=lambda session: (session.created_at, session.id))]
