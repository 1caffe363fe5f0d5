"""Grants: what people have allowed beforehand."""

from collections.abc import Sequence

import msgspec

from talaria.core.clock import Clock
from talaria.core.ids import GrantId, SessionId
from talaria.store.permissions import Grant
from talaria.store.sqlite.connection import Value
from talaria.store.sqlite.database import Database

# In the order of the fields of `Grant`.
_COLUMNS = "id, person, tool, what, cwd, session, created_at, expires_at"


class Grants:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def add(self, grant: Grant) -> None:
        await self._database.change(
            f"INSERT INTO grants ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", msgspec.structs.astuple(grant)
        )

    async def valid(self, person: str, session: SessionId) -> Sequence[Grant]:
        return await self._unexpired("person = ? AND (session IS NULL OR session = ?)", person, session)

    async def list(self) -> Sequence[Grant]:
        return await self._unexpired("true")

    async def _unexpired(self, chosen: str, *values: Value) -> Sequence[Grant]:
        sql = f"SELECT {_COLUMNS} FROM grants WHERE {chosen} AND (expires_at IS NULL OR expires_at > ?) ORDER BY rowid"
        return [Grant(*row) for row in await self._database.rows(sql, (*values, self._clock.now()))]

    async def revoke(self, id: GrantId) -> bool:
        return await self._database.change("DELETE FROM grants WHERE id = ?", (id,)) == 1
