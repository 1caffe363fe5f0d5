"""Handoffs in memory. Every step is guarded by the state it leaves."""

from collections.abc import Sequence
from dataclasses import replace

from talaria.model.ids import SessionId
from talaria.store.base import MAX_REASON_CHARS, HandoffStage, HandoffState
from talaria.store.memory.tables import NO_HANDOFF, Memory


class Handoffs:
    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def request(self, session: SessionId, platform: str) -> bool:
        return self._step(session, (None, "completed", "failed"), HandoffState("pending", platform, None))

    async def claim(self, session: SessionId) -> bool:
        now = self._now(session)
        return self._step(session, ("pending",), HandoffState("running", now.platform, now.error))

    async def complete(self, session: SessionId) -> bool:
        return self._step(session, ("running",), HandoffState("completed", self._now(session).platform, None))

    async def fail(self, session: SessionId, reason: str) -> bool:
        failed = HandoffState("failed", self._now(session).platform, reason[:MAX_REASON_CHARS])
        return self._step(session, ("pending", "running"), failed)

    async def reclaim(self) -> Sequence[SessionId]:
        running = self._at("running")
        for session in running:
            now = self._now(session)
            self._step(session, ("running",), HandoffState("pending", now.platform, now.error))
        return running

    async def state(self, session: SessionId) -> HandoffState | None:
        return self._now(session) if session in self._memory.tables.sessions else None

    async def pending(self) -> Sequence[SessionId]:
        return self._at("pending")

    def _now(self, session: SessionId) -> HandoffState:
        row = self._memory.tables.sessions.get(session)
        return row.handoff if row else NO_HANDOFF

    def _step(self, session: SessionId, leaving: tuple[HandoffStage | None, ...], to: HandoffState) -> bool:
        with self._memory.transaction() as tables:
            row = tables.sessions.get(session)
            if row is None or row.handoff.state not in leaving:
                return False
            tables.sessions[session] = replace(row, handoff=to)
        return True

    def _at(self, stage: HandoffStage) -> list[SessionId]:
        """Oldest session first."""
        sessions = [row.session for row in self._memory.tables.sessions.values() if row.handoff.state == stage]
        return [session.id for session in sorted(sessions, key=lambda session: (session.created_at, session.id))]
