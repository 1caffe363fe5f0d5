"""Chats: the session that each is about, and the home that a person chose per platform. Handoffs:
states in the session's row; every step checks the state that it leaves.
"""

from collections.abc import Mapping, Sequence
from typing import cast

from talaria.core.clock import Clock
from talaria.core.ids import SessionId, new_handoff_id, new_session_id
from talaria.store.chat_ports import MAX_REASON_CHARS, BusyMode, ChatRow, HandoffRequest, HandoffState
from talaria.store.sqlite.connection import SqliteConnection, Value, step
from talaria.store.sqlite.database import Database

# In the order of the fields of `ChatRow`.
_COLUMNS = "key, session, address, busy_mode"


class Chats:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, key: str) -> ChatRow | None:
        return await self._database.read(lambda db: _get(db, key))

    async def bind(self, key: str, session: SessionId, address: str) -> SessionId | None:
        return await self._database.write(lambda db: bind(db, key, session, address))

    async def list_for(self, session: SessionId) -> Sequence[ChatRow]:
        sql = f"SELECT {_COLUMNS} FROM chats WHERE session = ? ORDER BY id DESC"
        return [ChatRow(*row) for row in await self._database.rows(sql, (session,))]

    async def move(self, key: str, to_key: str, address: str, to: str) -> None:
        def work(db: SqliteConnection) -> None:
            db.execute(
                "UPDATE OR IGNORE chats SET key = ? || substr(key, ?) WHERE key = ? OR substr(key, 1, ?) = ?",
                (to_key, len(key) + 1, key, len(key) + 1, f"{key}:"),
            )
            db.execute("UPDATE chats SET address = ? WHERE address = ?", (to, address))
            db.execute("UPDATE homes SET address = ? WHERE address = ?", (to, address))

        await self._database.write(work)

    async def set_busy_mode(self, key: str, mode: BusyMode | None) -> None:
        sql = "UPDATE chats SET busy_mode = ? WHERE key = ?"
        await self._database.write(lambda db: step(db, f"no chat {key}", sql, (mode, key)))

    async def home(self, platform: str) -> str | None:
        rows = await self._database.rows("SELECT address FROM homes WHERE platform = ?", (platform,))
        return rows[0][0] if rows else None

    async def home_person(self, platform: str) -> str:
        rows = await self._database.rows("SELECT person FROM home_people WHERE platform = ?", (platform,))
        return rows[0][0] if rows else ""

    async def set_home(self, platform: str, address: str, person: str = "") -> None:
        def work(db: SqliteConnection) -> None:
            for table, column, value in (("homes", "address", address), ("home_people", "person", person)):
                db.execute(
                    f"INSERT INTO {table} (platform, {column}) VALUES (?, ?)"
                    f" ON CONFLICT DO UPDATE SET {column} = excluded.{column}",
                    (platform, value),
                )

        await self._database.write(work)


def bind(db: SqliteConnection, key: str, session: SessionId, address: str) -> SessionId | None:
    """Returns the session that the chat was about before."""
    before = _get(db, key)
    db.execute(  # a new row, so that its id is the highest
        f"INSERT OR REPLACE INTO chats ({_COLUMNS}) VALUES (?, ?, ?, ?)",
        (key, session, address, before.busy_mode if before else None),
    )
    db.execute("UPDATE inbox SET session = ? WHERE key = ? AND state = 'new'", (session, key))
    return before.session if before else None


def _get(db: SqliteConnection, key: str) -> ChatRow | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM chats WHERE key = ?", (key,)).fetchone()
    return ChatRow(*row) if row else None


class Handoffs:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def request(self, session: SessionId, platform: str) -> bool:
        change = "handoff_state = 'pending', handoff_platform = ?, handoff_error = NULL, handoff_id = ?"
        leaving = "coalesce(handoff_state, '') NOT IN ('pending', 'running')"
        values = (platform, new_handoff_id(), session)
        return await self._database.write(lambda db: _step(db, change, leaving, values))

    async def claim(self, session: SessionId) -> bool:
        change, leaving = "handoff_state = 'running'", "handoff_state = 'pending'"
        return await self._database.write(lambda db: _step(db, change, leaving, (session,)))

    async def find_running(self, session: SessionId) -> HandoffRequest | None:
        sql = (
            "SELECT coalesce(handoff_id, id), handoff_platform,"
            " coalesce((SELECT address FROM handoff_chats WHERE session = sessions.id LIMIT 1), '')"
            " FROM sessions WHERE id = ? AND handoff_state = 'running'"
        )
        rows = await self._database.rows(sql, (session,))
        return HandoffRequest(*rows[0]) if rows else None

    async def bind(self, session: SessionId, keys: Sequence[str], address: str) -> bool:
        def work(db: SqliteConnection) -> bool:
            is_running = "SELECT 1 FROM sessions WHERE id = ? AND handoff_state = 'running'"
            if db.execute(is_running, (session,)).fetchone() is None:
                return False
            for key in keys:
                before = bind(db, key, session, address)
                db.execute(  # a second time, after a crash, knows less
                    "INSERT INTO handoff_chats VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    (session, key, address, before),
                )
            return True

        return await self._database.write(work)

    async def complete(self, session: SessionId) -> bool:
        def work(db: SqliteConnection) -> bool:
            change, leaving = "handoff_state = 'completed', handoff_error = NULL", "handoff_state = 'running'"
            is_completed = _step(db, change, leaving, (session,))
            if is_completed:
                db.execute("DELETE FROM handoff_chats WHERE session = ?", (session,))
            return is_completed

        return await self._database.write(work)

    async def fail(self, session: SessionId, reason: str) -> bool:
        def work(db: SqliteConnection) -> bool:
            change = "handoff_state = 'failed', handoff_error = ?"
            leaving = "handoff_state IN ('pending', 'running')"
            has_failed = _step(db, change, leaving, (reason[:MAX_REASON_CHARS], session))
            if has_failed:
                _bind_back(db, session, new_session_id(self._clock.now()))
            return has_failed

        return await self._database.write(work)

    async def list_unsettled(self) -> Mapping[SessionId, str]:
        sql = "SELECT id, handoff_id FROM sessions WHERE handoff_state = 'failed' AND handoff_id IS NOT NULL"
        return dict(await self._database.rows(sql))

    async def settle(self, session: SessionId) -> None:
        sql = "UPDATE sessions SET handoff_id = NULL WHERE id = ? AND handoff_state = 'failed'"
        await self._database.change(sql, (session,))

    async def reclaim(self) -> Sequence[SessionId]:
        sql = "UPDATE sessions SET handoff_state = 'pending' WHERE handoff_state = 'running' RETURNING id"
        return [id for (id,) in await self._database.write(lambda db: db.execute(sql).fetchall())]

    async def state(self, session: SessionId) -> HandoffState | None:
        sql = "SELECT handoff_state, handoff_platform, handoff_error FROM sessions WHERE id = ?"
        rows = await self._database.rows(sql, (session,))
        return HandoffState(*rows[0]) if rows else None

    async def list_pending(self) -> Sequence[SessionId]:
        sql = "SELECT id FROM sessions WHERE handoff_state = 'pending' ORDER BY created_at, id"
        return [id for (id,) in await self._database.rows(sql)]


def _step(db: SqliteConnection, change: str, leaving: str, values: tuple[Value, ...]) -> bool:
    db.execute(f"UPDATE sessions SET {change} WHERE id = ? AND {leaving}", values)
    return db.changes() == 1


def _bind_back(db: SqliteConnection, session: SessionId, new: SessionId) -> None:
    """A chat that is about another session by now stays with it. Mail of a chat that was about none goes to `new`."""
    sql = "DELETE FROM handoff_chats WHERE session = ? RETURNING key, address, before"
    bound = cast("list[tuple[str, str, SessionId | None]]", db.execute(sql, (session,)).fetchall())
    for key, address, before in bound:
        if db.execute("SELECT 1 FROM chats WHERE key = ? AND session = ?", (key, session)).fetchone() is None:
            continue
        mail = db.execute("SELECT 1 FROM inbox WHERE key = ? AND state = 'new'", (key,)).fetchone()
        if before is None and mail is None:
            db.execute("DELETE FROM chats WHERE key = ?", (key,))
        else:
            bind(db, key, before or new, address)
