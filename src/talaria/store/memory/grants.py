"""Grants in memory."""

from collections.abc import Sequence

from talaria.core.clock import Clock
from talaria.core.ids import GrantId, SessionId
from talaria.store.base import BrokenRuleError
from talaria.store.memory.tables import MemoryDatabase
from talaria.store.permissions import Grant


class Grants:
    def __init__(self, memory: MemoryDatabase, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock

    async def add(self, grant: Grant) -> None:
        with self._memory.transaction() as tables:
            if grant.id in tables.grants:
                raise BrokenRuleError(f"grant {grant.id} is there already")
            if grant.session is not None and grant.session not in tables.sessions:
                raise BrokenRuleError(f"no session {grant.session}")
            tables.grants[grant.id] = grant

    async def valid(self, person: str, session: SessionId) -> Sequence[Grant]:
        return [one for one in await self.list() if one.person == person and one.session in (None, session)]

    async def list(self) -> Sequence[Grant]:
        now = self._clock.now()
        return [one for one in self._memory.tables.grants.values() if one.expires_at is None or one.expires_at > now]

    async def revoke(self, id: GrantId) -> bool:
        with self._memory.transaction() as tables:
            return tables.grants.pop(id, None) is not None
