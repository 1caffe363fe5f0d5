"""Sessions: one row per conversation."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from talaria.core.clock import Clock
from talaria.core.entries import Entry, Recorded
from talaria.core.errors import SessionBusy
from talaria.core.ids import SessionId
from talaria.core.messages import Usage
from talaria.store.api_ports import HistoryPoint
from talaria.store.base import NewSession, Session
from talaria.store.session_rules import check_at_rest, check_title, free_title, pick_session, read_head, unknown_session
from talaria.store.sqlite.api_rows import add_point, copy_points
from talaria.store.sqlite.connection import SqliteConnection, Value
from talaria.store.sqlite.database import Database
from talaria.store.sqlite.journal import MAX_SEQ, append
from talaria.store.sqlite.presence import Presence

# In the order of the fields of `Session`.
_ROWS = (
    "SELECT id, source, model, cwd, system_prompt, tools, title, parent, created_at, updated_at, open_turn,"
    " message_count, usage, preview, person FROM sessions JOIN prompts ON prompts.session = sessions.id"
)
_encode = msgspec.json.Encoder().encode
_decode_usage = msgspec.json.Decoder(Usage).decode
_decode_entry = msgspec.json.Decoder(Entry).decode


class Sessions:
    def __init__(self, database: Database, presence: Presence, clock: Clock) -> None:
        self._database = database
        self._presence = presence
        self._clock = clock

    async def create(self, new: NewSession) -> Session:
        def work(db: SqliteConnection) -> Session:
            check_title(new.title, partial(_holder, db))
            _insert(db, new, self._clock.now())
            return _get_existing(db, new.id)

        return await self._database.write(work)

    async def get(self, session: SessionId) -> Session | None:
        return await self._database.read(lambda db: _get(db, session))

    async def find(self, name: str, person: str | None = None) -> Session:
        fitting = await self._select(
            "(id = ?1 OR title = ?1 OR (length(?1) >= 4 AND substr(id, 1, length(?1)) = ?1))"
            " AND (?2 IS NULL OR person = ?2) ORDER BY id = ?1 DESC, title IS ?1 DESC LIMIT 2",
            name,
            person,
        )
        return pick_session(name, fitting)

    async def list(
        self, limit: int = 50, person: str | None = None, after: SessionId | None = None
    ) -> Sequence[Session]:
        theirs, values = ("true", ()) if person is None else ("person = ?", (person,))
        newest_first = "ORDER BY updated_at DESC, id DESC LIMIT ?"
        if after is None:
            return await self._select(f"{theirs} {newest_first}", *values, limit)

        def work(db: SqliteConnection) -> list[Session]:
            last = db.execute(f"SELECT updated_at FROM sessions WHERE {theirs} AND id = ?", (*values, after)).fetchone()
            if last is None:
                raise unknown_session(after)
            chosen = f"{theirs} AND (updated_at, id) < (?, ?) {newest_first}"
            return _select(db, chosen, (*values, last[0], after, limit))

        return await self._database.read(work)

    async def latest(self, source: str) -> Session | None:
        newest = await self._select("source = ? ORDER BY updated_at DESC, id DESC LIMIT 1", source)
        return newest[0] if newest else None

    async def _select(self, chosen: str, *values: Value) -> Sequence[Session]:
        return await self._database.read(lambda db: _select(db, chosen, values))

    async def rename(self, session: SessionId, title: str) -> None:
        def work(db: SqliteConnection) -> None:
            check_title(title, partial(_holder, db), but=session)
            db.execute("UPDATE sessions SET title = ? WHERE id = ?", (title, session))
            if db.changes() != 1:
                raise unknown_session(session)

        await self._database.write(work)

    async def delete(self, session: SessionId) -> None:
        def work(db: SqliteConnection) -> None:
            row = db.execute("SELECT owner FROM sessions WHERE id = ?", (session,)).fetchone()
            if row is None:
                raise unknown_session(session)
            if self._presence.is_alive(row[0]):
                raise SessionBusy(f"Session {session} is running a turn; stop it before deleting it.")
            remove(db, session)

        await self._database.write(work)

    async def fork(
        self, session: SessionId, new: SessionId, title: str | None = None, until: int | None = None
    ) -> Session:
        def work(db: SqliteConnection) -> Session:
            _get_existing(db, session)
            check_title(title, partial(_holder, db))
            _copy(db, session, new, title, self._clock.now(), MAX_SEQ if until is None else until)
            copy = _get_existing(db, new)
            check_at_rest(copy)
            return copy

        return await self._database.write(work)

    async def adopt(
        self, new: NewSession, created_at: float, journal: Sequence[Recorded], history: HistoryPoint | None = None
    ) -> bool:
        def work(db: SqliteConnection) -> bool:
            if _get(db, new.id) is not None:
                return False
            parent = new.parent if new.parent is not None and _get(db, new.parent) is not None else None
            title = free_title(new.title, partial(_holder, db))
            _insert(db, msgspec.structs.replace(new, parent=parent, title=title), created_at)
            append(db, new.id, [(recorded.entry, recorded.at) for recorded in journal])
            if history is not None:
                add_point(db, new.id, history)
            check_at_rest(_get_existing(db, new.id))
            return True

        return await self._database.write(work)


def remove(db: SqliteConnection, session: SessionId) -> None:
    """With all that belongs to it."""
    db.execute("INSERT INTO unindexed SELECT id FROM entries WHERE session = ?", (session,))
    for table in ("chats", "inbox", "outbox", "holds"):
        db.execute(f"DELETE FROM {table} WHERE session = ?", (session,))
    db.execute("DELETE FROM sessions WHERE id = ?", (session,))


def _insert(db: SqliteConnection, new: NewSession, at: float) -> None:
    db.execute(
        "INSERT INTO sessions (id, source, model, cwd, title, parent, person, created_at, updated_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (new.id, new.source, new.model, new.cwd, new.title, new.parent, new.person, at, at),
    )
    db.execute("INSERT INTO prompts VALUES (?, ?, ?)", (new.id, new.system_prompt, new.tools))


def _copy(db: SqliteConnection, session: SessionId, new: SessionId, title: str | None, now: float, until: int) -> None:
    """The journal without the open turn, whose calls are not copied either."""
    db.execute(
        "INSERT INTO sessions (id, source, model, cwd, title, parent, person, created_at, updated_at)"
        " SELECT ?, source, model, cwd, ?, id, person, ?, ? FROM sessions WHERE id = ?",
        (new, title, now, now, session),
    )
    db.execute("INSERT INTO prompts SELECT ?, system_prompt, tools FROM prompts WHERE session = ?", (new, session))
    db.execute(
        "INSERT INTO entries (session, seq, at, body) SELECT ?1, seq, at, body FROM entries WHERE session = ?2"
        " AND seq <= ?3 AND seq < coalesce((SELECT max(seq) FROM entries WHERE session = ?2"
        " AND body ->> 'type' = 'turn_started' AND body ->> 'turn' = (SELECT open_turn FROM sessions WHERE id = ?2)),"
        " 9e18) ORDER BY seq",
        (new, session, until),
    )
    bodies = db.execute("SELECT body FROM entries WHERE session = ? ORDER BY seq", (new,))
    head = read_head(_decode_entry(row[0]) for row in bodies)
    db.execute(
        "UPDATE sessions SET preview = ?2, message_count = ?3, open_turn = ?4, usage = ?5,"
        " last_seq = coalesce((SELECT max(seq) FROM entries WHERE session = ?1), 0) WHERE id = ?1",
        (new, head.preview, head.messages, head.open_turn, _encode(head.usage).decode()),
    )
    copy_points(db, session, new)


def _holder(db: SqliteConnection, title: str) -> SessionId | None:
    row = db.execute("SELECT id FROM sessions WHERE title = ?", (title,)).fetchone()
    return row[0] if row else None


def _get(db: SqliteConnection, session: SessionId) -> Session | None:
    row = db.execute(f"{_ROWS} WHERE id = ?", (session,)).fetchone()
    return _session(row) if row else None


def _get_existing(db: SqliteConnection, session: SessionId) -> Session:
    there = _get(db, session)
    if there is None:
        raise unknown_session(session)
    return there


def _select(db: SqliteConnection, chosen: str, values: tuple[Value, ...]) -> list[Session]:
    return [_session(row) for row in db.execute(f"{_ROWS} WHERE {chosen}", values)]


def _session(row: tuple[Any, ...]) -> Session:
    *others, usage, preview, person = row
    return Session(*others, usage=_decode_usage(usage), preview=preview, person=person)
