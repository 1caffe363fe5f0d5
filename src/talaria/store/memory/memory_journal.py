"""Journal, sessions and search in memory. A search reads every message, with the words of the
SQLite index."""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, assert_never

import msgspec

from talaria.core.clock import Clock
from talaria.core.entries import Entry, Recorded, TurnStarted
from talaria.core.errors import Fenced, SessionBusy
from talaria.core.ids import CallId, Epoch, OwnerId, SessionId, TurnId
from talaria.store import session_rules
from talaria.store.api_ports import HistoryPoint
from talaria.store.base import (
    BrokenRuleError,
    CallEnded,
    CallIntended,
    CallRow,
    CallStarted,
    CallState,
    Change,
    Held,
    HoldReleased,
    NewSession,
    SearchHit,
    Session,
    SessionReleased,
    SessionSeized,
    Spent,
    Write,
)
from talaria.store.chat_ports import InboxDone, InboxTaken, Outgoing
from talaria.store.memory.memory_api import add_point
from talaria.store.memory.memory_mail import list_pending, move, post
from talaria.store.memory.memory_signals import obey
from talaria.store.memory.memory_tables import MemoryDatabase, SessionRow, Tables
from talaria.store.memory.memory_tables import record_spending as apply_spending
from talaria.store.session_rules import (
    SessionHead,
    check_at_rest,
    check_title,
    free_title,
    pick_session,
    read_head,
    unknown_session,
)
from talaria.store.signal_port import SignalObeyed


class Journal:
    def __init__(self, memory: MemoryDatabase, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock

    async def seize(self, session: SessionId, owner: OwnerId) -> Epoch | Held:
        with self._memory.transaction() as tables:
            row = tables.row(session)
            if row.owner is not None and row.owner in tables.owners:
                return Held(row.owner)
            epoch = Epoch(row.epoch + 1)
            tables.sessions[session] = replace(row, owner=owner, epoch=epoch)
        return epoch

    async def record(self, session: SessionId, epoch: Epoch, writes: Sequence[Write]) -> bool:
        with self._memory.transaction() as tables:
            match writes:
                case [SessionSeized(owner), *_]:
                    row = tables.sessions.get(session)
                    if row is None or row.owner is not None or row.epoch != epoch - 1:
                        raise Fenced(f"Session {session} was run by another process meanwhile.")
                    tables.sessions[session] = replace(row, owner=owner, epoch=epoch)
                case _:
                    _check_epoch(tables, session, epoch)
            now = self._clock.now()
            append(tables, session, [(write, now) for write in writes if isinstance(write, Entry)])
            for write in writes:
                if not isinstance(write, Entry):
                    _apply(tables, session, write, now)
            match writes:
                case [*_, SessionReleased(leaves_mail)]:
                    return _release(tables, session, leaves_mail=leaves_mail)
                case _:
                    return False

    async def release(self, session: SessionId, epoch: Epoch, *, leaves_mail: bool = False) -> bool:
        with self._memory.transaction() as tables:
            _check_epoch(tables, session, epoch)
            return _release(tables, session, leaves_mail=leaves_mail)

    async def entries(self, session: SessionId, after: int = 0) -> Sequence[Recorded]:
        row = self._memory.tables.sessions.get(session)
        return [recorded for recorded in row.entries if recorded.seq > after] if row else []

    async def latest(self, session: SessionId, limit: int, before: int | None = None) -> Sequence[Recorded]:
        row = self._memory.tables.sessions.get(session)
        return [one for one in row.entries if before is None or one.seq < before][-limit:] if row else []

    async def calls(self, session: SessionId, turn: TurnId) -> Sequence[CallRow]:
        row = self._memory.tables.sessions.get(session)
        return [call for call in row.calls.values() if call.turn == turn] if row else []

    async def holder(self, session: SessionId) -> OwnerId | None:
        tables = self._memory.tables
        row = tables.sessions.get(session)
        return row.owner if row and row.owner in tables.owners else None

    async def list_interrupted(self) -> Sequence[SessionId]:
        tables = self._memory.tables
        left = [
            row.session for row in tables.sessions.values() if row.session.open_turn and row.owner not in tables.owners
        ]
        newest_first = sorted(left, key=lambda session: (session.updated_at, session.id), reverse=True)
        return [session.id for session in newest_first]


def _release(tables: Tables, session: SessionId, *, leaves_mail: bool) -> bool:
    if not leaves_mail and list_pending(tables, session):
        return False
    tables.sessions[session] = replace(tables.row(session), owner=None)
    return True


def _check_epoch(tables: Tables, session: SessionId, epoch: Epoch) -> None:
    row = tables.sessions.get(session)
    if row is None or row.owner is None or row.epoch != epoch:
        raise Fenced(f"Session {session} is now run by another process.")


def _apply(tables: Tables, session: SessionId, write: Change, now: float) -> None:
    match write:
        case CallIntended(turn, call):
            row = tables.row(session)
            if call.id in row.calls:
                raise BrokenRuleError(f"call {call.id} is there already")
            new = CallRow(turn, call, "intent", now, None)
            tables.sessions[session] = replace(row, calls={**row.calls, call.id: new})
        case CallStarted(call_id):
            _move_call(tables, session, call_id, ("intent",), state="started")
        case CallEnded(result):
            _move_call(tables, session, result.call_id, ("intent", "started"), state="done", result=result)
        case InboxTaken(turn, ids):
            move(tables, session, ids, "new", "taken", turn)
        case InboxDone(ids):
            move(tables, session, ids, "taken", "done")
        case Outgoing():
            post(tables, session, write, now)
        case Spent() | HoldReleased():
            apply_spending(tables, session, write, now)
        case SignalObeyed(id):
            obey(tables, session, id)
        case HistoryPoint():
            add_point(tables, session, write)
        case SessionSeized() | SessionReleased():
            pass  # before and after all others
        case _:
            assert_never(write)


def _move_call(tables: Tables, session: SessionId, id: CallId, leaving: tuple[CallState, ...], **changes: Any) -> None:
    row = tables.row(session)
    call = row.calls.get(id)
    if call is None or call.state not in leaving:
        raise BrokenRuleError(f"call {id} is not at {' or '.join(leaving)}")
    tables.sessions[session] = replace(row, calls={**row.calls, id: msgspec.structs.replace(call, **changes)})


def append(tables: Tables, session: SessionId, entries: Sequence[tuple[Entry, float]]) -> None:
    """Appends entries with their times, and updates the session's row."""
    row = tables.row(session)
    head = SessionHead(row.session.open_turn, row.session.preview)
    for entry, _ in entries:
        head.add(entry)
    after = msgspec.structs.replace(
        row.session,
        updated_at=entries[-1][1] if entries else row.session.updated_at,
        open_turn=head.open_turn,
        message_count=row.session.message_count + head.messages,
        preview=head.preview,
        usage=row.session.usage + head.usage,
    )
    added = [Recorded(seq, at, entry) for seq, (entry, at) in enumerate(entries, len(row.entries) + 1)]
    tables.sessions[session] = replace(
        row,
        session=after,
        entries=(*row.entries, *added),
        places=(*row.places, *(tables.next_id() for _ in added)),
    )


class Search:
    def __init__(self, memory: MemoryDatabase) -> None:
        self._memory = memory

    async def search(self, query: str, limit: int = 20, person: str | None = None) -> Sequence[SearchHit]:
        phrases = [phrase for word in session_rules.search_words(query) if (phrase := _words(word))]
        if not phrases:
            return []
        found: list[tuple[int, SearchHit]] = []
        for row in self._memory.tables.sessions.values():
            if person not in (None, row.session.person):
                continue
            for place, recorded in zip(row.places, row.entries, strict=True):
                text = session_rules.text(recorded.entry)
                if all(_holds(_words(text), phrase) for phrase in phrases):
                    role, piece = session_rules.role(recorded.entry), session_rules.snippet(text, query)
                    found.append((place, SearchHit(row.session.id, row.session.title, recorded.at, role, piece)))
        return [hit for _, hit in sorted(found, key=lambda pair: pair[0], reverse=True)[:limit]]

    async def rebuild(self, progress: Callable[[int, int], None] | None = None) -> int:  # noqa: ARG002  (it is quick)
        rows = self._memory.tables.sessions.values()
        return sum(session_rules.text(recorded.entry) != "" for row in rows for recorded in row.entries)


def _words(text: str) -> list[str]:
    """Runs of letters and digits, without case and diacritics."""
    plain = unicodedata.normalize("NFD", session_rules.separate_words(text).casefold())
    kept = (char if char.isalnum() else " " for char in plain if not unicodedata.combining(char))
    return "".join(kept).split()


def _holds(words: Sequence[str], phrase: Sequence[str]) -> bool:
    return any(words[at : at + len(phrase)] == phrase for at in range(len(words) - len(phrase) + 1))


class Sessions:
    def __init__(self, memory: MemoryDatabase, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock

    async def create(self, new: NewSession) -> Session:
        with self._memory.transaction() as tables:
            session = _make_session(new, self._clock.now())
            _insert(tables, SessionRow(session))
        return session

    async def get(self, session: SessionId) -> Session | None:
        row = self._memory.tables.sessions.get(session)
        return row.session if row else None

    async def find(self, name: str, person: str | None = None) -> Session:
        fitting = [
            session
            for session in self._of(person)
            if name in (session.id, session.title) or (len(name) >= 4 and session.id.startswith(name))
        ]
        return pick_session(name, sorted(fitting, key=lambda session: (session.id != name, session.title != name)))

    async def list(
        self, limit: int = 50, person: str | None = None, after: SessionId | None = None
    ) -> Sequence[Session]:
        newest_first = sorted(self._of(person), key=lambda session: (session.updated_at, session.id), reverse=True)
        if after is None:
            return newest_first[:limit]
        ids = [session.id for session in newest_first]
        if after not in ids:
            raise unknown_session(after)
        return newest_first[ids.index(after) + 1 :][:limit]

    def _of(self, person: str | None) -> Sequence[Session]:
        sessions = [row.session for row in self._memory.tables.sessions.values()]
        return [session for session in sessions if person in (None, session.person)]

    async def latest(self, source: str) -> Session | None:
        found = await self.list(limit=len(self._memory.tables.sessions))
        return next((session for session in found if session.source == source), None)

    async def rename(self, session: SessionId, title: str) -> None:
        with self._memory.transaction() as tables:
            check_title(title, tables.holder, but=session)
            row = tables.row(session)
            tables.sessions[session] = replace(row, session=msgspec.structs.replace(row.session, title=title))

    async def delete(self, session: SessionId) -> None:
        with self._memory.transaction() as tables:
            if tables.row(session).owner in tables.owners:
                raise SessionBusy(f"Session {session} is running a turn; stop it before deleting it.")
            remove(tables, session)

    async def fork(
        self, session: SessionId, new: SessionId, title: str | None = None, until: int | None = None
    ) -> Session:
        with self._memory.transaction() as tables:
            row = tables.row(session)
            check_title(title, tables.holder)
            copy = _copy(tables, row, new, title, self._clock.now(), until)
            _insert(tables, copy)
        return copy.session

    async def adopt(
        self, new: NewSession, created_at: float, journal: Sequence[Recorded], history: HistoryPoint | None = None
    ) -> bool:
        with self._memory.transaction() as tables:
            if new.id in tables.sessions:
                return False
            _insert(tables, SessionRow(_make_session(_as_it_fits(tables, new), created_at)))
            append(tables, new.id, [(recorded.entry, recorded.at) for recorded in journal])
            if history is not None:
                add_point(tables, new.id, history)
            check_at_rest(tables.row(new.id).session)
        return True


def remove(tables: Tables, session: SessionId) -> None:
    """With all that belongs to it."""
    del tables.sessions[session]
    tables.chats = {key: row for key, row in tables.chats.items() if row.session != session}
    tables.inbox = {key: row for key, row in tables.inbox.items() if row.inbound.session != session}
    tables.outbox = {id: row for id, row in tables.outbox.items() if row.session != session}
    tables.holds = {id: row for id, row in tables.holds.items() if row.session != session}
    tables.approvals = {id: row for id, row in tables.approvals.items() if row.session != session}
    tables.grants = {id: row for id, row in tables.grants.items() if row.session != session}
    tables.signals = {id: row for id, row in tables.signals.items() if row.session != session}
    for id, row in tables.sessions.items():
        if row.session.parent == session:
            tables.sessions[id] = replace(row, session=msgspec.structs.replace(row.session, parent=None))


def _make_session(new: NewSession, at: float) -> Session:
    return Session(**msgspec.structs.asdict(new), created_at=at, updated_at=at, open_turn=None, message_count=0)


def _as_it_fits(tables: Tables, new: NewSession) -> NewSession:
    parent = new.parent if new.parent in tables.sessions else None
    return msgspec.structs.replace(new, parent=parent, title=free_title(new.title, tables.holder))


def _insert(tables: Tables, row: SessionRow) -> None:
    check_title(row.session.title, tables.holder)
    if row.session.id in tables.sessions:
        raise BrokenRuleError(f"session {row.session.id} is there already")
    if row.session.parent is not None and row.session.parent not in tables.sessions:
        raise BrokenRuleError(f"no session {row.session.parent}")
    tables.sessions[row.session.id] = row


def _copy(
    tables: Tables, row: SessionRow, new: SessionId, title: str | None, now: float, until: int | None
) -> SessionRow:
    """The journal without the open turn, whose calls are not copied either."""
    opened = row.session.open_turn
    starts = [
        place
        for place, one in enumerate(row.entries)
        if isinstance(one.entry, TurnStarted) and one.entry.turn == opened
    ]
    entries = row.entries[: starts[-1] if starts else None]
    if until is not None:
        entries = tuple(one for one in entries if one.seq <= until)
    head = read_head(one.entry for one in entries)
    session = msgspec.structs.replace(
        row.session,
        id=new,
        title=title,
        parent=row.session.id,
        created_at=now,
        updated_at=now,
        open_turn=head.open_turn,
        message_count=head.messages,
        preview=head.preview,
        usage=head.usage,
    )
    check_at_rest(session)
    return SessionRow(
        session,
        entries=entries,
        places=tuple(tables.next_id() for _ in entries),
        histories=frozenset((seq, point) for seq, point in row.histories if seq <= len(entries)),
    )
