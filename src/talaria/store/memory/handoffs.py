"""Handoffs in memory. Every step is guarded by the state it leaves."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from talaria.model.ids import SessionId
from talaria.store.base import MAX_REASON_CHARS, HandoffStage, HandoffState
from talaria.store.memory.tables import Memory


class Handoffs:
    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def request(self, session: SessionId, platform: str) -> bool:
        leaving = (None, "completed", "failed")
        return self._step(session, leaving, state="pending", platform=platform, error=None)

    async def claim(self, session: SessionId) -> bool:
        return self._step(session, ("pending",), state="running")

    async def complete(self, session: SessionId) -> bool:
        return self._step(session, ("running",), state="completed", error=None)

    async def fail(self, session: SessionId, reason: str) -> bool:
        return self._step(session, ("pending", "running"), state="failed", error=reason[:MAX_REASON_CHARS])

    async def reclaim(self) -> Sequence[SessionId]:
        return [session for session in self._at("running") if self._step(session, ("running",), state="pending")]

    async def state(self, session: SessionId) -> HandoffState | None:
        row = self._memory.tables.sessions.get(session)
        return row.handoff if row else None

    async def pending(self) -> Sequence[SessionId]:
        return self._at("pending")

    def _step(self, session: SessionId, leaving: Sequence[HandoffStage | None], **changes: str | None) -> bool:
        with self._memory.transaction() as tables:
            row = tables.sessions.get(session)
            if row is None or row.handoff.state not in leaving:
                return False
            tables.sessions[session] = replace(row, handoff=msgspec.structs.replace(row.handoff, **changes))
        return True

    def _at(self, stage: HandoffStage) -> list[SessionId]:
        """Oldest session first."""
        sessions = [row.session for row in self._memory.tables.sessions.values() if row.handoff.state == stage]
        return [session.id for session in sorted(sessions, key=lambda session: (session.created_at, session.id))]
