"""Approvals: questions to a person. A step is taken only while the question lives: in its time, its owner alive."""

from collections.abc import Sequence
from typing import Any

import msgspec

from talaria.model.clock import Clock
from talaria.model.ids import ApprovalId, OwnerId, SessionId
from talaria.store.permissions import Approval, ApprovalState, NewApproval
from talaria.store.sqlite.connection import Connection
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
        await self._database.write(lambda db: _insert(db, new, self._clock.now()))

    async def decide(self, id: ApprovalId, *, is_allowed: bool, by: str) -> bool:
        state: ApprovalState = "allowed" if is_allowed else "denied"

        def work(db: Connection) -> bool:
            now = self._clock.now()
            if not self._is_living(db, id, now):
                return False
            db.execute(
                "UPDATE approvals SET state = ?, decided_by = ?, decided_at = ?"
                " WHERE id = ? AND state = 'pending' AND requester = ?",
                (state, by, now, id, by),
            )
            return db.changes() == 1

        return await self._database.write(work)

    async def use(self, id: ApprovalId, digest: str) -> bool:
        def work(db: Connection) -> bool:
            if not self._is_living(db, id, self._clock.now()):
                return False
            db.execute(
                "UPDATE approvals SET state = 'used' WHERE id = ? AND state = 'allowed' AND digest = ?", (id, digest)
            )
            return db.changes() == 1

        return await self._database.write(work)

    def _is_living(self, db: Connection, id: ApprovalId, now: float) -> bool:
        row = db.execute("SELECT owner FROM approvals WHERE id = ? AND expires_at > ?", (id, now)).fetchone()
        return row is not None and self._presence.is_alive(OwnerId(str(row[0])))

    async def find(self, name: str) -> Approval | None:
        def work(db: Connection) -> Approval | None:
            exact = _get(db, name)
            if exact is not None or len(name) < 4:
                return exact
            fitting = [one for one in self._pending(db) if one.id.startswith(name.lower())]
            return fitting[0] if len(fitting) == 1 else None

        return await self._database.read(work)

    async def pending(self, session: SessionId | None = None) -> Sequence[Approval]:
        def work(db: Connection) -> list[Approval]:
            return [one for one in self._pending(db) if session is None or one.session == session]

        return await self._database.read(work)

    def _pending(self, db: Connection) -> list[Approval]:
        """In every session."""
        rows = db.execute(
            f"SELECT {_COLUMNS} FROM approvals WHERE state = 'pending' AND expires_at > ? ORDER BY rowid",
            (self._clock.now(),),
        )
        return [one for one in map(_approval, rows.fetchall()) if self._presence.is_alive(one.owner)]


def _insert(db: Connection, new: NewApproval, now: float) -> None:
    db.execute(
        f"INSERT INTO approvals ({_ASKED}, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*msgspec.structs.astuple(new), now),
    )


def _get(db: Connection, id: str) -> Approval | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM approvals WHERE id = ?", (id,)).fetchone()
    return _approval(row) if row else None


def _approval(row: tuple[Any, ...]) -> Approval:
    return Approval(*row)
