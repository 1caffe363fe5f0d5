"""Access in memory."""

from collections.abc import Sequence

from talaria.core.clock import Clock
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
from talaria.store.mail import Outgoing
from talaria.store.memory.outbox import post
from talaria.store.memory.tables import MemoryDatabase, Tables


class Access:
    def __init__(self, memory: MemoryDatabase, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock

    async def request(self, request: PairingRequest, max_pending: int) -> Requested:
        with self._memory.transaction() as tables:
            waiting = [one for one in _living(tables, self._clock.now()) if one.platform == request.platform]
            if any(one.user == request.user for one in waiting):
                return "known"
            if len(waiting) >= max_pending:
                return "full"
            tables.requests.pop((request.platform, request.user), None)  # one that has expired
            tables.requests[request.platform, request.user] = request
        return "added"

    async def requests(self) -> Sequence[PairingRequest]:
        return _living(self._memory.tables, self._clock.now())

    async def approve(self, platform: str, digest: str, greeting: Greeting | None = None) -> Member | Locked | None:
        with self._memory.transaction() as tables:
            now = self._clock.now()
            failures = tables.failures.get(platform, ())
            if len(failures) >= MAX_FAILURES and now < failures[-1] + LOCKED_S:
                return Locked(failures[-1] + LOCKED_S)
            for one in _living(tables, now):
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


def _living(tables: Tables, now: float) -> list[PairingRequest]:
    return [one for one in tables.requests.values() if one.expires_at > now]


def _let_in(tables: Tables, request: PairingRequest, now: float) -> Member:
    member = Member(request.platform, request.user, request.name, now)
    tables.failures.pop(request.platform, None)
    del tables.requests[request.platform, request.user]
    tables.members[request.platform, request.user] = member
    return member
