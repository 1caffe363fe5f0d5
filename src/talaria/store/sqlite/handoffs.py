"""Handoff states on the session row. Every step is guarded by the state it leaves."""

from collections.abc import Sequence

from talaria.model.ids import SessionId
from talaria.store.base import MAX_REASON_CHARS, HandoffState
from talaria.store.sqlite.database import Database


class Handoffs:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def request(self, session: SessionId, platform: str) -> bool:
        return await self._step(
            "handoff_state = 'pending', handoff_platform = ?, handoff_error = NULL",
            "coalesce(handoff_state, '') NOT IN ('pending', 'running')",
            session,
            platform,
        )

    async def claim(self, session: SessionId) -> bool:
        return await self._step("handoff_state = 'running'", "handoff_state = 'pending'", session)

    async def complete(self, session: SessionId) -> bool:
        return await self._step(
            "handoff_state = 'completed', handoff_error = NULL", "handoff_state = 'running'", session
        )

    async def fail(self, session: SessionId, reason: str) -> bool:
        return await self._step(
            "handoff_state = 'failed', handoff_error = ?",
            "handoff_state IN ('pending', 'running')",
            session,
            reason[:MAX_REASON_CHARS],
        )

    async def _step(self, change: str, leaving: str, session: SessionId, *values: str) -> bool:
        sql = f"UPDATE sessions SET {change} WHERE id = ? AND {leaving}"
        return await self._database.change(sql, (*values, session)) == 1

    async def reclaim(self) -> Sequence[SessionId]:
        sql = "UPDATE sessions SET handoff_state = 'pending' WHERE handoff_state = 'running' RETURNING id"
        return [id for (id,) in await self._database.write(lambda db: db.execute(sql).fetchall())]

    async def state(self, session: SessionId) -> HandoffState | None:
        sql = "SELECT handoff_state, handoff_platform, handoff_error FROM sessions WHERE id = ?"
        rows = await self._database.rows(sql, (session,))
        return HandoffState(*rows[0]) if rows else None

    async def pending(self) -> Sequence[SessionId]:
        sql = "SELECT id FROM sessions WHERE handoff_state = 'pending' ORDER BY created_at, id"
        return [id for (id,) in await self._database.rows(sql)]
