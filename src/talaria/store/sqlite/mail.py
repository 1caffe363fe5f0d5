"""The outbox: replies on their way out. A row is `started` before the wire is touched and `sent`
after.

The inbox: what platforms brought. A message gets the session of its chat in the transaction that
accepts it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from talaria.core.clock import Clock
from talaria.core.ids import InboxId, OutboxId, SessionId, TurnId
from talaria.store.base import BrokenRuleError
from talaria.store.chat_ports import Cursor, Inbound, OutboxRow, OutboxState, Outgoing
from talaria.store.sqlite.connection import SqliteConnection, Value, step
from talaria.store.sqlite.database import Database

# In the order of the fields of `OutboxRow`.
_OUTBOX_COLUMNS = "id, session, target, body, key, created_at, expires_at, state, attempts, started_at, sent_id, error"
_DUE = "state IN ('pending', 'started')"
_DUE_TO = f"target = ? AND {_DUE} ORDER BY id LIMIT ?"
_START = (
    "UPDATE outbox SET state = 'started', attempts = attempts + 1, started_at = coalesce(started_at, ?),"
    f" is_reworded = 0 WHERE id = ? AND {_DUE}"
)


class Outbox:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def list_targets(self) -> Sequence[str]:
        def work(db: SqliteConnection) -> list[str]:
            rows = db.execute(f"SELECT target FROM outbox WHERE {_DUE} GROUP BY target ORDER BY min(id)")
            return [str(row[0]) for row in rows]

        return await self._database.read(work)

    async def list_due(self, target: str, limit: int = 20) -> Sequence[OutboxRow]:
        return await self._select(_DUE_TO, target, limit)

    async def add(self, session: SessionId, outgoing: Sequence[Outgoing]) -> None:
        def work(db: SqliteConnection) -> None:
            now = self._clock.now()
            for part in outgoing:
                post(db, session, part, now)

        await self._database.write(work)

    async def begin(self, session: SessionId, draft: Outgoing) -> OutboxRow | None:
        now = self._clock.now()
        return await self._change(
            "INSERT INTO outbox (session, target, body, key, created_at, expires_at, state, attempts, started_at)"
            " VALUES (?, ?, ?, ?, ?, ?, 'started', 1, ?) ON CONFLICT DO NOTHING",
            (session, draft.target, draft.body, draft.key, now, draft.expires_at, now),
        )

    async def start(self, row: OutboxId) -> OutboxRow | None:
        return await self._change(_START, (self._clock.now(), row))

    async def start_due(
        self, target: str, limit: int, is_wanted: Callable[[OutboxRow], bool]
    ) -> tuple[OutboxRow | None, Sequence[OutboxRow]]:
        now = self._clock.now()

        def work(db: SqliteConnection) -> tuple[OutboxRow | None, Sequence[OutboxRow]]:
            rows = _select(db, _DUE_TO, (target, limit))
            if not rows or rows[0].state != "pending" or not is_wanted(rows[0]):
                return None, rows
            return _change(db, _START, (now, rows[0].id)), rows[1:]

        return await self._database.write(work)

    async def _change(self, sql: str, bindings: tuple[Value, ...]) -> OutboxRow | None:
        return await self._database.write(lambda db: _change(db, sql, bindings))

    async def mark_sent(self, row: OutboxId, sent_id: str) -> None:
        await self._leave(
            "state = 'started'",
            row,
            "state = iif(is_reworded, 'pending', 'sent'), attempts = iif(is_reworded, 0, attempts), is_reworded = 0,"
            " sent_id = ?, error = ''",
            sent_id,
        )

    async def defer(self, row: OutboxId, error: str) -> None:
        await self._leave("state = 'started'", row, "state = 'pending', error = ?", error)

    async def fail(self, row: OutboxId, error: str) -> None:
        await self._leave(_DUE, row, "state = 'failed', error = ?", error)

    async def expire(self, row: OutboxId) -> None:
        await self._leave(_DUE, row, "state = 'expired', error = ?", "not delivered in time")

    async def _leave(self, leaving: str, row: OutboxId, change: str, value: str) -> None:
        refusal = f"outbox row {row} is over, or not started"
        sql = f"UPDATE outbox SET {change} WHERE id = ? AND {leaving}"
        await self._database.write(lambda db: step(db, refusal, sql, (value, row)))

    async def retry(self, row: OutboxId, expires_at: float) -> bool:
        found = await self._change(
            "UPDATE outbox SET state = 'pending', attempts = 0, error = '', expires_at = ?"
            " WHERE id = ? AND state IN ('failed', 'expired')",
            (expires_at, row),
        )
        return found is not None

    async def move(self, target: str, to: str) -> None:
        sql = f"UPDATE outbox SET target = ? WHERE target = ? AND {_DUE}"
        await self._database.write(lambda db: db.execute(sql, (to, target)) and None)

    async def rows(self, session: SessionId) -> Sequence[OutboxRow]:
        return await self._select("session = ? ORDER BY id", session)

    async def find(self, key: str) -> OutboxRow | None:
        found = await self._select("key = ?", key)
        return found[0] if found else None

    async def count(self) -> Mapping[OutboxState, int]:
        def work(db: SqliteConnection) -> dict[OutboxState, int]:
            return dict(db.execute("SELECT state, count(*) FROM outbox GROUP BY state").fetchall())

        return await self._database.read(work)

    async def list(self, states: Sequence[OutboxState], limit: int = 100) -> Sequence[OutboxRow]:
        marks = ", ".join("?" for _ in states)
        return await self._select(f"state IN ({marks}) ORDER BY id DESC LIMIT ?", *states, limit)

    async def _select(self, chosen: str, *values: Value) -> Sequence[OutboxRow]:
        return await self._database.read(lambda db: _select(db, chosen, values))

    async def prune(self, before: float) -> int:
        def work(db: SqliteConnection) -> int:
            db.execute("DELETE FROM outbox WHERE state = 'sent' AND created_at < ?", (before,))
            return db.changes()

        return await self._database.write(work)


def post(db: SqliteConnection, session: SessionId, part: Outgoing, now: float) -> None:
    """A new row, or a new text for the row with this key, which is then sent as an edit unless it is the same."""
    db.execute(
        "INSERT INTO outbox (session, target, body, key, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (key) DO UPDATE SET body = excluded.body, expires_at = excluded.expires_at,"
        " is_reworded = state = 'started' AND (is_reworded OR body <> excluded.body),"
        f" attempts = iif({_DUE}, attempts, 0), error = iif({_DUE}, error, ''),"
        " state = iif(state = 'started', 'started', 'pending')"
        " WHERE session = excluded.session AND (state <> 'sent' OR body <> excluded.body)",
        (session, part.target, part.body, part.key, now, part.expires_at),
    )
    if db.changes() == 0:
        row = db.execute("SELECT session FROM outbox WHERE key = ?", (part.key,)).fetchone()
        if row is not None and row[0] != session:
            raise BrokenRuleError(f"outbox key {part.key} belongs to another session")


def _select(db: SqliteConnection, chosen: str, values: tuple[Value, ...]) -> Sequence[OutboxRow]:
    return [_row(row) for row in db.execute(f"SELECT {_OUTBOX_COLUMNS} FROM outbox WHERE {chosen}", values)]


def _change(db: SqliteConnection, sql: str, bindings: tuple[Value, ...]) -> OutboxRow | None:
    """The row as it is now; None if there was nothing to change."""
    found = db.execute(f"{sql} RETURNING {_OUTBOX_COLUMNS}", bindings).fetchone()
    return _row(found) if found else None


def _row(row: tuple[Any, ...]) -> OutboxRow:
    return OutboxRow(*row)


# In the order of the fields of `Inbound`.
_INBOX_COLUMNS = "platform, account, chat, message_id, session, body, key, id, state, turn"


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

    async def list_pending(self, session: SessionId, limit: int = 1000) -> Sequence[Inbound]:
        def work(db: SqliteConnection) -> list[Inbound]:
            rows = db.execute(
                f"SELECT {_INBOX_COLUMNS} FROM inbox WHERE session = ? AND state <> 'done' ORDER BY id LIMIT ?",
                (session, limit),
            )
            return [_inbound(row) for row in rows]

        return await self._database.read(work)

    async def list_sessions(self) -> Sequence[SessionId]:
        def work(db: SqliteConnection) -> list[SessionId]:
            rows = db.execute("SELECT session FROM inbox WHERE state <> 'done' GROUP BY session ORDER BY min(id)")
            return [SessionId(str(row[0])) for row in rows]

        return await self._database.read(work)

    async def find(self, platform: str, account: str, chat: str, message_id: str) -> Inbound | None:
        def work(db: SqliteConnection) -> Inbound | None:
            row = db.execute(
                f"SELECT {_INBOX_COLUMNS} FROM inbox"
                " WHERE platform = ? AND account = ? AND chat = ? AND message_id = ?",
                (platform, account, chat, message_id),
            ).fetchone()
            return _inbound(row) if row else None

        return await self._database.read(work)

    async def list_from(self, platform: str, account: str, chat: str, limit: int = 50) -> Sequence[Inbound]:
        def work(db: SqliteConnection) -> list[Inbound]:
            rows = db.execute(
                f"SELECT {_INBOX_COLUMNS} FROM inbox WHERE id IN ("
                "SELECT id FROM inbox WHERE platform = ? AND account = ? AND chat = ? ORDER BY id DESC LIMIT ?"
                ") ORDER BY id DESC",
                (platform, account, chat, limit),
            )
            return [_inbound(row) for row in rows]

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
    """Includes messages that were taken without a turn."""
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
