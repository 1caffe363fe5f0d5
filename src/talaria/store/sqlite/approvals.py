"""Approvals: questions to a person. A step is taken only while the question lives: in its time, its owner alive."""

from collections.abc import Sequence

import msgspec

from talaria.core.clock import Clock
from talaria.core.ids import ApprovalId, SessionId
from talaria.store.permissions import Approval, ApprovalState, NewApproval
from talaria.store.sqlite.connection import SqliteConnection, Value
from talaria.store.sqlite.database import Database
from talaria.store.sqlite.presence import Presence

# In the order of the fields of `NewApproval` and `Approval`.
_ASKED = "id, session, turn, call, owner, requester, tool, question, digest, expires_at"
_COLUMNS = f"{_ASKED}, state, created_at, decided_by, decided_at"


class Approvals:
    def __init__(self, database: Database, presence: Presence, clock: Clock) -> None:
        self._database = database
        self._presence = presence
        self._clock = clock

    async def request(self, new: NewApproval) -> None:
        await self._database.change(
            f"INSERT INTO approvals ({_ASKED}, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*msgspec.structs.astuple(new), self._clock.now()),
        )

    async def decide(self, id: ApprovalId, *, is_allowed: bool, by: str) -> bool:
        state: ApprovalState = "allowed" if is_allowed else "denied"
        step = "SET state = ?, decided_by = ?, decided_at = ? WHERE id = ? AND state = 'pending' AND requester = ?"
        return await self._take(id, step, (state, by, self._clock.now(), id, by))

    async def use(self, id: ApprovalId, digest: str) -> bool:
        return await self._take(
            id, "SET state = 'used' WHERE id = ? AND state = 'allowed' AND digest = ?", (id, digest)
        )

    async def _take(self, id: ApprovalId, step: str, values: tuple[Value, ...]) -> bool:
        def work(db: SqliteConnection) -> bool:
            living = "SELECT owner FROM approvals WHERE id = ? AND expires_at > ?"
            row = db.execute(living, (id, self._clock.now())).fetchone()
            if row is None or not self._presence.is_alive(row[0]):
                return False
            db.execute(f"UPDATE approvals {step}", values)
            return db.changes() == 1

        return await self._database.write(work)

    async def find(self, name: str) -> Approval | None:
        def work(db: SqliteConnection) -> Approval | None:
            exact = _get(db, name)
            if exact is not None or len(name) < 4:
                return exact
            fitting = [one for one in self._pending(db) if one.id.startswith(name.lower())]
            return fitting[0] if len(fitting) == 1 else None

        return await self._database.read(work)

    async def pending(self, session: SessionId | None = None) -> Sequence[Approval]:
        def work(db: SqliteConnection) -> list[Approval]:
            return [one for one in self._pending(db) if session is None or one.session == session]

        return await self._database.read(work)

    def _pending(self, db: SqliteConnection) -> list[Approval]:
        """In every session."""
        rows = db.execute(
            f"SELECT {_COLUMNS} FROM approvals WHERE state = 'pending' AND expires_at > ? ORDER BY rowid",
            (self._clock.now(),),
        )
        return [one for row in rows if self._presence.is_alive((one := Approval(*row)).owner)]


def _get(db: SqliteConnection, id: str) -> Approval | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM approvals WHERE id = ?", (id,)).fetchone()
    return Approval(*row) if row else None
