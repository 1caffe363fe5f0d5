"""The outbox in memory."""

from collections.abc import Sequence

import msgspec

from talaria.model.clock import Clock
from talaria.model.ids import OutboxId, SessionId
from talaria.store.base import BrokenRuleError, OutboxRow
from talaria.store.memory.tables import Memory, Tables


class Outbox:
    def __init__(self, memory: Memory, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock

    async def due(self, limit: int = 100) -> Sequence[OutboxRow]:
        with self._memory.transaction() as tables:
            now = self._clock.now()
            for row in _open(tables):
                if row.expires_at <= now:
                    late = msgspec.structs.replace(row, state="expired", error="not delivered in time")
                    tables.outbox[row.id] = late
        return _open(tables)[:limit]

    async def start(self, row: OutboxId) -> OutboxRow | None:
        with self._memory.transaction() as tables:
            found = next((known for known in _open(tables) if known.id == row), None)
            if found is None:
                return None
            started = msgspec.structs.replace(found, state="started", attempts=found.attempts + 1)
            tables.outbox[row] = started
        return started

    async def sent(self, row: OutboxId, sent_id: str) -> None:
        self._replace(msgspec.structs.replace(self._started(row), state="sent", sent_id=sent_id, error=""))

    async def defer(self, row: OutboxId, error: str) -> None:
        self._replace(msgspec.structs.replace(self._started(row), state="pending", error=error))

    async def fail(self, row: OutboxId, error: str) -> None:
        self._replace(msgspec.structs.replace(self._started(row), state="failed", error=error))

    async def rows(self, session: SessionId) -> Sequence[OutboxRow]:
        return [row for row in self._memory.tables.outbox.values() if row.session == session]

    def _started(self, row: OutboxId) -> OutboxRow:
        found = self._memory.tables.outbox.get(row)
        if found is None or found.state != "started":
            raise BrokenRuleError(f"outbox row {row} is not started")
        return found

    def _replace(self, row: OutboxRow) -> None:
        with self._memory.transaction() as tables:
            tables.outbox[row.id] = row


def _open(tables: Tables) -> list[OutboxRow]:
    return [row for row in tables.outbox.values() if row.state in ("pending", "started")]
