"""Owners in memory: alive while they are listed."""

from talaria.core.ids import OwnerId, new_owner_id
from talaria.store.memory.tables import MemoryDatabase


class Owners:
    def __init__(self, memory: MemoryDatabase) -> None:
        self._memory = memory

    async def join(self, kind: str) -> OwnerId:  # noqa: ARG002  (nobody else could ask who is here)
        owner = new_owner_id()
        with self._memory.transaction() as tables:
            tables.owners |= {owner}
        return owner

    async def leave(self, owner: OwnerId) -> None:
        with self._memory.transaction() as tables:
            tables.owners -= {owner}
