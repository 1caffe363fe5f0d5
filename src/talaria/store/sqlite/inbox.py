"""The inbox: what platforms have brought. A message gets the session of its chat in the transaction that accepts it."""

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from talaria.core.clock import Clock
from talaria.core.ids import InboxId, SessionId, TurnId
from talaria.store.mail import Cursor, Inbound, Outgoing
from talaria.store.sqlite.connection import SqliteConnection
from talaria.store.sqlite.database import Database
from talaria.store.sqlite.guarded import step
from talaria.store.sqlite.outbox import post

# In the order of the fields of `Inbound`.
_COLUMNS = "platform, account, chat, message_id, session, body, key, id, state, turn"


class Inbox:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def accept(self, inbounds: Sequence[Inbound], cursor: Cursor | None = None) -> Sequence[Inbound | None]:
        def work(db: SqliteConnection) -> list[Inbound | None]:
            now = self._clock.now()
            kept = [_accept(db, inbound, now) for inbound in inbounds]
            if cursor is not None:
                db.execute(
                    "INSERT INTO cursors VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
                    (cursor.platform, cursor.account, cursor.value),
                )
            return kept

        return await self._database.write(work)

    async def cursor(self, platform: str, account: str) -> str | None:
        def work(db: SqliteConnection) -> str | None:
            row = db.execute(
                "SELECT value FROM cursors WHERE platform = ? AND account = ?", (platform, account)
            ).fetchone()
            return str(row[0]) if row else None

        return await self._database.read(work)

    async def pending(self, session: SessionId, limit: int = 1000) -> Sequence[Inbound]:
        def work(db: SqliteConnection) -> list[Inbound]:
            rows = db.execute(
                f"SELECT {_COLUMNS} FROM inbox WHERE session = ? AND state <> 'done' ORDER BY id LIMIT ?",
                (session, limit),
            )
            return [_inbound(row) for row in rows]

        return await self._database.read(work)

    async def waiting(self) -> Sequence[SessionId]:
        def work(db: SqliteConnection) -> list[SessionId]:
            rows = db.execute("SELECT session FROM inbox WHERE state <> 'done' GROUP BY session ORDER BY min(id)")
            return [SessionId(str(row[0])) for row in rows]

        return await self._database.read(work)

    async def find(self, platform: str, account: str, chat: str, message_id: str) -> Inbound | None:
        def work(db: SqliteConnection) -> Inbound | None:
            row = db.execute(
                f"SELECT {_COLUMNS} FROM inbox WHERE platform = ? AND account = ? AND chat = ? AND message_id = ?",
                (platform, account, chat, message_id),
            ).fetchone()
            return _inbound(row) if row else None

        return await self._database.read(work)

    async def take(self, id: InboxId) -> SessionId | None:
        def work(db: SqliteConnection) -> SessionId | None:
            row = db.execute(
                "UPDATE inbox SET state = 'taken' WHERE id = ? AND state = 'new' RETURNING session", (id,)
            ).fetchone()
            return SessionId(str(row[0])) if row else None

        return await self._database.write(work)

    async def finish(self, session: SessionId, ids: Sequence[InboxId], replies: Sequence[Outgoing] = ()) -> None:
        def work(db: SqliteConnection) -> None:
            finish(db, session, ids)
            now = self._clock.now()
            for reply in replies:
                post(db, session, reply, now)

        await self._database.write(work)

    async def prune(self, before: float) -> int:
        def work(db: SqliteConnection) -> int:
            db.execute("DELETE FROM inbox WHERE state = 'done' AND received_at < ?", (before,))
            return db.changes()

        return await self._database.write(work)


def take(db: SqliteConnection, session: SessionId, turn: TurnId, ids: Sequence[InboxId]) -> None:
    """Also what was taken without a turn."""
    for id in ids:
        step(
            db,
            f"inbox row {id} is not new",
            "UPDATE inbox SET state = 'taken', turn = ?"
            " WHERE id = ? AND session = ? AND state <> 'done' AND turn IS NULL",
            (turn, id, session),
        )


def finish(db: SqliteConnection, session: SessionId, ids: Sequence[InboxId]) -> None:
    for id in ids:
        step(
            db,
            f"inbox row {id} is not taken",
            "UPDATE inbox SET state = 'done' WHERE id = ? AND session = ? AND state = 'taken'",
            (id, session),
        )


def _accept(db: SqliteConnection, inbound: Inbound, now: float) -> Inbound | None:
    row = db.execute(
        "INSERT INTO inbox (platform, account, chat, message_id, session, body, key, received_at)"
        " VALUES (?1, ?2, ?3, ?4, coalesce((SELECT session FROM chats WHERE key = ?7), ?5), ?6, ?7, ?8)"
        " ON CONFLICT DO NOTHING RETURNING id, session",
        (
            inbound.platform,
            inbound.account,
            inbound.chat,
            inbound.message_id,
            inbound.session,
            inbound.body,
            inbound.key,
            now,
        ),
    ).fetchone()
    if row is None:
        return None
    id, session = cast("tuple[InboxId, SessionId]", row)
    if inbound.key and session == inbound.session:  # perhaps it was not bound
        db.execute(
            "INSERT INTO chats (key, session, address) VALUES (?, ?, '') ON CONFLICT DO NOTHING",
            (inbound.key, session),
        )
    return msgspec.structs.replace(inbound, session=session, id=id)


def _inbound(row: tuple[Any, ...]) -> Inbound:
    return Inbound(*row)
