"""The HTTP API's tokens and histories in memory."""

from collections.abc import Sequence
from dataclasses import replace

from talaria.core.ids import SessionId
from talaria.store.api_ports import ApiToken, HistoryMatch, HistoryPoint
from talaria.store.memory.memory_tables import MemoryDatabase, Tables


class ApiTokens:
    def __init__(self, memory: MemoryDatabase) -> None:
        self._memory = memory

    async def add(self, token: ApiToken) -> bool:
        with self._memory.transaction() as tables:
            if token.name in tables.tokens or await self.find(token.digest) is not None:
                return False
            tables.tokens[token.name] = token
        return True

    async def find(self, digest: str) -> ApiToken | None:
        return next((one for one in self._memory.tables.tokens.values() if one.digest == digest), None)

    async def list(self) -> Sequence[ApiToken]:
        return sorted(self._memory.tables.tokens.values(), key=lambda one: (one.created_at, one.name))

    async def revoke(self, name: str) -> bool:
        with self._memory.transaction() as tables:
            return tables.tokens.pop(name, None) is not None


class Histories:
    def __init__(self, memory: MemoryDatabase) -> None:
        self._memory = memory

    async def find(self, point: HistoryPoint, limit: int = 10) -> Sequence[HistoryMatch]:
        found = [
            (seq == len(row.entries), row.session.updated_at, row.session.id, seq)
            for row in self._memory.tables.sessions.values()
            for seq, known in row.histories
            if known == point
        ]
        return [HistoryMatch(id, seq, is_end) for is_end, _, id, seq in sorted(found, reverse=True)[:limit]]


def add_point(tables: Tables, session: SessionId, point: HistoryPoint) -> None:
    """At the session's last entry."""
    row = tables.row(session)
    tables.sessions[session] = replace(row, histories=row.histories | {(len(row.entries), point)})
