"""Approvals in memory. A step is taken only while the question lives: in its time, its owner alive."""

from collections.abc import Sequence

import msgspec

from talaria.core.clock import Clock
from talaria.core.ids import ApprovalId, SessionId
from talaria.store.base import BrokenRuleError
from talaria.store.memory.tables import MemoryDatabase, Tables
from talaria.store.permissions import Approval, NewApproval


class Approvals:
    def __init__(self, memory: MemoryDatabase, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock

    async def request(self, new: NewApproval) -> None:
        with self._memory.transaction() as tables:
            if new.id in tables.approvals:
                raise BrokenRuleError(f"approval {new.id} is there already")
            if new.session not in tables.sessions:
                raise BrokenRuleError(f"no session {new.session}")
            tables.approvals[new.id] = _begun(new, self._clock.now())

    async def decide(self, id: ApprovalId, *, is_allowed: bool, by: str) -> bool:
        with self._memory.transaction() as tables:
            now = self._clock.now()
            row = _living(tables, now).get(id)
            if row is None or row.state != "pending" or row.requester != by:
                return False
            state = "allowed" if is_allowed else "denied"
            tables.approvals[id] = msgspec.structs.replace(row, state=state, decided_by=by, decided_at=now)
        return True

    async def use(self, id: ApprovalId, digest: str) -> bool:
        with self._memory.transaction() as tables:
            row = _living(tables, self._clock.now()).get(id)
            if row is None or row.state != "allowed" or row.digest != digest:
                return False
            tables.approvals[id] = msgspec.structs.replace(row, state="used")
        return True

    async def find(self, name: str) -> Approval | None:
        exact = self._memory.tables.approvals.get(ApprovalId(name))
        if exact is not None or len(name) < 4:
            return exact
        fitting = [one for one in await self.pending() if one.id.startswith(name.lower())]
        return fitting[0] if len(fitting) == 1 else None

    async def pending(self, session: SessionId | None = None) -> Sequence[Approval]:
        living = _living(self._memory.tables, self._clock.now()).values()
        return [one for one in living if one.state == "pending" and session in (None, one.session)]


def _begun(new: NewApproval, now: float) -> Approval:
    return Approval(**msgspec.structs.asdict(new), state="pending", created_at=now, decided_by=None, decided_at=None)


def _living(tables: Tables, now: float) -> dict[ApprovalId, Approval]:
    rows = tables.approvals.items()
    return {id: row for id, row in rows if row.expires_at > now and row.owner in tables.owners}
