"""Handoff states on the session row. Every step is guarded by the state it leaves."""

from collections.abc import Sequence
from typing import cast

from talaria.model.ids import SessionId
from talaria.store.base import MAX_REASON_CHARS, HandoffStage, HandoffState
from talaria.store.sqlite.connection import Connection
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
        def work(db: Connection) -> bool:
            db.execute(f"UPDATE sessions SET {change} WHERE id = ? AND {leaving}", (*values, session))
            return db.changes() == 1

        return await self._database.write(work)

    async def reclaim(self) -> Sequence[SessionId]:
        def work(db: Connection) -> list[SessionId]:
            rows = db.execute(
                "UPDATE sessions SET handoff_state = 'pending' WHERE handoff_state = 'running' RETURNING id"
            )
            return [SessionId(str(row[0])) for row in rows.fetchall()]

        return await self._database.write(work)

    async def state(self, session: SessionId) -> HandoffState | None:
        def work(db: Connection) -> HandoffState | None:
            row = db.execute(
                "SELECT handoff_state, handoff_platform, handoff_error FROM sessions WHERE id = ?", (session,)
            ).fetchone()
            return HandoffState(*cast("tuple[HandoffStage | None, str | None, str | None]", row)) if row else None

        return await self._database.read(work)

    async def pending(self) -> Sequence[SessionId]:
        def work(db: Connection) -> list[SessionId]:
            rows = db.execute("SELECT id FROM sessions WHERE handoff_state = 'pending' ORDER BY created_at, id")
            return [SessionId(str(row[0])) for row in rows]

        return await self._database.read(work)
