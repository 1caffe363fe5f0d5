"""The outbox: replies on their way out. A row is `started` before the wire is touched and `sent` after."""

from collections.abc import Sequence
from typing import cast

from talaria.model.clock import Clock
from talaria.model.ids import OutboxId, SessionId
from talaria.store.base import BrokenRuleError, OutboxRow, OutboxState
from talaria.store.sqlite.connection import Connection
from talaria.store.sqlite.database import Database

_COLUMNS = "id, session, target, body, key, expires_at, state, attempts, sent_id, error"


class Outbox:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def due(self, limit: int = 100) -> Sequence[OutboxRow]:
        def work(db: Connection) -> list[OutboxRow]:
            db.execute(
                "UPDATE outbox SET state = 'expired', error = 'not delivered in time'"
                " WHERE state IN ('pending', 'started') AND expires_at <= ?",
                (self._clock.now(),),
            )
            rows = db.execute(
                f"SELECT {_COLUMNS} FROM outbox WHERE state IN ('pending', 'started') ORDER BY id LIMIT ?",
                (limit,),
            )
            return [_row(row) for row in rows]

        return await self._database.write(work)

    async def start(self, row: OutboxId) -> OutboxRow | None:
        def work(db: Connection) -> OutboxRow | None:
            found = db.execute(
                "UPDATE outbox SET state = 'started', attempts = attempts + 1"
                f" WHERE id = ? AND state IN ('pending', 'started') RETURNING {_COLUMNS}",
                (row,),
            ).fetchone()
            return _row(found) if found else None

        return await self._database.write(work)

    async def sent(self, row: OutboxId, sent_id: str) -> None:
        await self._leave_started(row, "UPDATE outbox SET state = 'sent', sent_id = ?, error = ''", sent_id)

    async def defer(self, row: OutboxId, error: str) -> None:
        await self._leave_started(row, "UPDATE outbox SET state = 'pending', error = ?", error)

    async def fail(self, row: OutboxId, error: str) -> None:
        await self._leave_started(row, "UPDATE outbox SET state = 'failed', error = ?", error)

    async def _leave_started(self, row: OutboxId, update: str, value: str) -> None:
        def work(db: Connection) -> None:
            db.execute(f"{update} WHERE id = ? AND state = 'started'", (value, row))
            if db.changes() != 1:
                raise BrokenRuleError(f"outbox row {row} is not started")

        await self._database.write(work)

    async def rows(self, session: SessionId) -> Sequence[OutboxRow]:
        def work(db: Connection) -> list[OutboxRow]:
            rows = db.execute(f"SELECT {_COLUMNS} FROM outbox WHERE session = ? ORDER BY id", (session,))
            return [_row(row) for row in rows]

        return await self._database.read(work)


_Row = tuple[int, str, str, str, str, float, OutboxState, int, str | None, str]


def _row(row: tuple[object, ...]) -> OutboxRow:
    id, session, target, body, key, expires_at, state, attempts, sent_id, error = cast("_Row", row)
    return OutboxRow(OutboxId(id), SessionId(session), target, body, key, expires_at, state, attempts, sent_id, error)
