"""Access in memory.

Approvals in memory. A step is taken only while the question lives: in its time, its owner alive.
Grants in memory.
"""

from collections.abc import Sequence

import msgspec

from talaria.core.clock import Clock
from talaria.core.ids import ApprovalId, GrantId, SessionId
from talaria.store.access import (
    LOCKED_S,
    MAX_FAILURES,
    Greeting,
    Locked,
    Member,
    PairingRequest,
    Requested,
    greeting_key,
)
from talaria.store.base import BrokenRuleError
from talaria.store.mail import Outgoing
from talaria.store.memory.mail import post
from talaria.store.memory.tables import MemoryDatabase, Tables
from talaria.store.permissions import Approval, Grant, NewApproval


class Access:
    def __init__(self, memory: MemoryDatabase, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock

    async def request(self, request: PairingRequest, max_pending: int) -> Requested:
        with self._memory.transaction() as tables:
            waiting = [one for one in _living_requests(tables, self._clock.now()) if one.platform == request.platform]
            if any(one.user == request.user for one in waiting):
                return "known"
            if len(waiting) >= max_pending:
                return "full"
            tables.requests.pop((request.platform, request.user), None)  # one that has expired
            tables.requests[request.platform, request.user] = request
        return "added"

    async def requests(self) -> Sequence[PairingRequest]:
        return _living_requests(self._memory.tables, self._clock.now())

    async def approve(self, platform: str, digest: str, greeting: Greeting | None = None) -> Member | Locked | None:
        with self._memory.transaction() as tables:
            now = self._clock.now()
            failures = tables.failures.get(platform, ())
            if len(failures) >= MAX_FAILURES and now < failures[-1] + LOCKED_S:
                return Locked(failures[-1] + LOCKED_S)
            for one in _living_requests(tables, now):
                if (one.platform, one.digest) == (platform, digest):
                    if greeting is not None and one.address:
                        said = Outgoing(one.address, greeting.body, greeting_key(digest), greeting.expires_at)
                        post(tables, greeting.session, said, now)
                    return _let_in(tables, one, now)
            tables.failures[platform] = (*(at for at in failures if at > now - LOCKED_S), now)
        return None

    async def members(self) -> Sequence[Member]:
        return list(self._memory.tables.members.values())

    async def revoke(self, platform: str, user: str) -> bool:
        with self._memory.transaction() as tables:
            return tables.members.pop((platform, user), None) is not None


def _living_requests(tables: Tables, now: float) -> list[PairingRequest]:
    return [one for one in tables.requests.values() if one.expires_at > now]


def _let_in(tables: Tables, request: PairingRequest, now: float) -> Member:
    member = Member(request.platform, request.user, request.name, now)
    tables.failures.pop(request.platform, None)
    del tables.requests[request.platform, request.user]
    tables.members[request.platform, request.user] = member
    return member


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
            row = _living_approvals(tables, now).get(id)
            if row is None or row.state != "pending" or row.requester != by:
                return False
            state = "allowed" if is_allowed else "denied"
            tables.approvals[id] = msgspec.structs.replace(row, state=state, decided_by=by, decided_at=now)
        return True

    async def use(self, id: ApprovalId, digest: str) -> bool:
        with self._memory.transaction() as tables:
            row = _living_approvals(tables, self._clock.now()).get(id)
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
        living = _living_approvals(self._memory.tables, self._clock.now()).values()
        return [one for one in living if one.state == "pending" and session in (None, one.session)]


def _begun(new: NewApproval, now: float) -> Approval:
    return Approval(**msgspec.structs.asdict(new), state="pending", created_at=now, decided_by=None, decided_at=None)


def _living_approvals(tables: Tables, now: float) -> dict[ApprovalId, Approval]:
    rows = tables.approvals.items()
    return {id: row for id, row in rows if row.expires_at > now and row.owner in tables.owners}


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
