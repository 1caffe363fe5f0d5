"""Chats: which session each is about, and the address that a person has chosen per platform."""

from collections.abc import Sequence

from talaria.core.ids import SessionId
from talaria.store.chats import BusyMode, ChatRow
from talaria.store.sqlite.connection import SqliteConnection
from talaria.store.sqlite.database import Database
from talaria.store.sqlite.guarded import step

# In the order of the fields of `ChatRow`.
_COLUMNS = "key, session, address, busy_mode"


class Chats:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, key: str) -> ChatRow | None:
        return await self._database.read(lambda db: _get(db, key))

    async def bind(self, key: str, session: SessionId, address: str) -> SessionId | None:
        return await self._database.write(lambda db: bind(db, key, session, address))

    async def of(self, session: SessionId) -> Sequence[ChatRow]:
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
    """The session that the chat was about before."""
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
