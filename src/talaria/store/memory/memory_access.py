"""Access, approvals, grants and forgetting in memory."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from talaria.core.clock import Clock
from talaria.core.ids import ApprovalId, GrantId, SessionId
from talaria.store.base import BrokenRuleError
from talaria.store.chat_ports import Inbound, Outgoing
from talaria.store.forgetting import NOBODY, PersonalData, PersonQuery, Stale, Traces
from talaria.store.memory.memory_journal import remove
from talaria.store.memory.memory_mail import list_pending, post
from talaria.store.memory.memory_tables import MemoryDatabase, SessionRow, Tables
from talaria.store.permission_ports import (
    LOCKED_S,
    MAX_FAILURES,
    Approval,
    Grant,
    Greeting,
    Locked,
    Member,
    NewApproval,
    PairingRequest,
    Requested,
    greeting_key,
)


class Access:
    def __init__(self, memory: MemoryDatabase, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock

    async def request(self, request: PairingRequest, max_pending: int) -> Requested:
        with self._memory.transaction() as tables:
            waiting = [one for one in _list_requests(tables, self._clock.now()) if one.platform == request.platform]
            if any(one.user == request.user for one in waiting):
                return "known"
            if len(waiting) >= max_pending:
                return "full"
            tables.requests.pop((request.platform, request.user), None)  # one that has expired
            tables.requests[request.platform, request.user] = request
        return "added"

    async def requests(self) -> Sequence[PairingRequest]:
        return _list_requests(self._memory.tables, self._clock.now())

    async def approve(self, platform: str, digest: str, greeting: Greeting | None = None) -> Member | Locked | None:
        with self._memory.transaction() as tables:
            now = self._clock.now()
            failures = tables.failures.get(platform, ())
            if len(failures) >= MAX_FAILURES and now < failures[-1] + LOCKED_S:
                return Locked(failures[-1] + LOCKED_S)
            for one in _list_requests(tables, now):
                if (one.platform, one.digest) == (platform, digest):
                    if greeting is not None and one.address:
                        said = Outgoing(one.address, greeting.body, greeting_key(digest), greeting.expires_at)
                        post(tables, greeting.session, said, now)
                    return _admit(tables, one, now)
            tables.failures[platform] = (*(at for at in failures if at > now - LOCKED_S), now)
        return None

    async def members(self) -> Sequence[Member]:
        return list(self._memory.tables.members.values())

    async def revoke(self, platform: str, user: str) -> bool:
        with self._memory.transaction() as tables:
            return tables.members.pop((platform, user), None) is not None


def _list_requests(tables: Tables, now: float) -> list[PairingRequest]:
    return [one for one in tables.requests.values() if one.expires_at > now]


def _admit(tables: Tables, request: PairingRequest, now: float) -> Member:
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
            tables.approvals[new.id] = Approval(
                **msgspec.structs.asdict(new),
                state="pending",
                created_at=self._clock.now(),
                decided_by=None,
                decided_at=None,
            )

    async def decide(self, id: ApprovalId, *, is_allowed: bool, by: str) -> bool:
        with self._memory.transaction() as tables:
            now = self._clock.now()
            row = _live_approvals(tables, now).get(id)
            if row is None or row.state != "pending" or row.requester != by:
                return False
            state = "allowed" if is_allowed else "denied"
            tables.approvals[id] = msgspec.structs.replace(row, state=state, decided_by=by, decided_at=now)
        return True

    async def use(self, id: ApprovalId, digest: str) -> bool:
        with self._memory.transaction() as tables:
            row = _live_approvals(tables, self._clock.now()).get(id)
            if row is None or row.state != "allowed" or row.digest != digest:
                return False
            tables.approvals[id] = msgspec.structs.replace(row, state="used")
        return True

    async def find(self, name: str) -> Approval | None:
        exact = self._memory.tables.approvals.get(ApprovalId(name))
        if exact is not None or len(name) < 4:
            return exact
        fitting = [one for one in await self.list_pending() if one.id.startswith(name.lower())]
        return fitting[0] if len(fitting) == 1 else None

    async def list_pending(self, session: SessionId | None = None) -> Sequence[Approval]:
        living = _live_approvals(self._memory.tables, self._clock.now()).values()
        return [one for one in living if one.state == "pending" and session in (None, one.session)]


def _live_approvals(tables: Tables, now: float) -> dict[ApprovalId, Approval]:
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

    async def list_valid(self, person: str, session: SessionId) -> Sequence[Grant]:
        return [one for one in await self.list() if one.person == person and one.session in (None, session)]

    async def list(self) -> Sequence[Grant]:
        now = self._clock.now()
        return [one for one in self._memory.tables.grants.values() if one.expires_at is None or one.expires_at > now]

    async def revoke(self, id: GrantId) -> bool:
        with self._memory.transaction() as tables:
            return tables.grants.pop(id, None) is not None


class Forgetting:
    def __init__(self, memory: MemoryDatabase) -> None:
        self._memory = memory

    async def stale(self, before: float | None = None, keep: int = 0, *, is_empty: bool = False) -> Sequence[Stale]:
        tables = self._memory.tables
        rows = sorted(tables.sessions.values(), key=lambda row: (row.session.updated_at, row.session.id))
        return [
            _stale(row)
            for row in rows[: max(0, len(rows) - keep)]
            if (before is None or row.session.updated_at < before)
            and not (is_empty and row.session.message_count)
            and _is_at_rest(tables, row)
        ]

    async def discard(self, session: SessionId) -> bool:
        with self._memory.transaction() as tables:
            row = tables.sessions.get(session)
            if row is None or not _is_at_rest(tables, row):
                return False
            remove(tables, session)
        return True

    async def traces(self, who: PersonQuery) -> Traces:
        return _PersonRows(self._memory.tables, who).traces()

    async def forget(self, who: PersonQuery) -> Traces:
        with self._memory.transaction() as tables:
            found = _PersonRows(tables, who)
            traces = found.traces()
            found.own.check_at_rest(lambda session: tables.sessions[session].owner in tables.owners)
            found.remove()
        return traces


def _stale(row: SessionRow) -> Stale:
    session = row.session
    size = sum(len(msgspec.json.encode(recorded.entry)) for recorded in row.entries)
    name = session.preview if session.title is None else session.title
    return Stale(session.id, name, session.updated_at, session.message_count, size)


def _is_at_rest(tables: Tables, row: SessionRow) -> bool:
    id = row.session.id
    is_due = any(one.session == id and one.state in ("pending", "started") for one in tables.outbox.values())
    is_moving = row.handoff.state in ("pending", "running")
    return row.owner not in tables.owners and not list_pending(tables, id) and not is_due and not is_moving


class _PersonRows:
    """The rows of one person."""

    def __init__(self, tables: Tables, who: PersonQuery) -> None:
        self._tables = tables
        self._who = who
        self._rows = [row for row in tables.sessions.values() if row.session.person == who.person]
        ids = sorted(row.session.id for row in self._rows)
        mail = [row.inbound for row in tables.inbox.values()]
        self.own = PersonalData(who, ids, mail, tables.chats.values(), tables.signals.values())

    def traces(self) -> Traces:
        tables, own, who = self._tables, self.own, self._who
        there = [one.session for one in own.elsewhere if one.session in tables.sessions]
        others = {row.session.cwd for row in tables.sessions.values() if row not in self._rows}
        return Traces(
            conversations=tuple(own.conversations),
            messages=sum(row.session.message_count for row in self._rows),
            inbox=sum(self._is_theirs(row.inbound) for row in tables.inbox.values()),
            outbox=sum(self._is_to_them(row.session, row.target) for row in tables.outbox.values()),
            chats=len(own.keys),
            approvals=sum(who.person in (row.requester, row.decided_by) for row in tables.approvals.values()),
            grants=sum(row.person == who.person for row in tables.grants.values()),
            signals=len(own.signals),
            tokens=sum(token.person == who.person for token in tables.tokens.values()),
            pairing=len(self._names()),
            homes=sum(address in own.addresses for address in tables.homes.values()),
            spending=sum(row.person == who.person for row in tables.spending),
            shared=tuple(dict.fromkeys(there)),
            names=tuple(dict.fromkeys(filter(None, self._names()))),
            folders=tuple(sorted({row.session.cwd for row in self._rows} - others)),
        )

    def remove(self) -> None:
        tables, own, person = self._tables, self.own, self._who.person
        tables.inbox = {key: row for key, row in tables.inbox.items() if not self._is_theirs(row.inbound)}
        tables.outbox = {id: row for id, row in tables.outbox.items() if not self._is_to_them(row.session, row.target)}
        tables.chats = {key: row for key, row in tables.chats.items() if key not in own.keys}
        tables.homes = {name: home for name, home in tables.homes.items() if home not in own.addresses}
        if tables.home_people.get(self._who.platform) == self._who.user:
            del tables.home_people[self._who.platform]
        for id in own.conversations:
            remove(tables, id)
        tables.approvals = {
            id: row for id, row in tables.approvals.items() if person not in (row.requester, row.decided_by)
        }
        tables.grants = {id: row for id, row in tables.grants.items() if row.person != person}
        tables.signals = {id: row for id, row in tables.signals.items() if row.by != person}
        tables.tokens = {name: token for name, token in tables.tokens.items() if token.person != person}
        for id, row in tables.sessions.items():
            theirs = {one for one in row.histories if one[1].person == person}
            tables.sessions[id] = replace(row, histories=row.histories - theirs)
        tables.holds = {id: row for id, row in tables.holds.items() if row.person != person}
        tables.spending = tuple(
            replace(row, spent=msgspec.structs.replace(row.spent, person=NOBODY)) if row.person == person else row
            for row in tables.spending
        )
        tables.members.pop((self._who.platform, self._who.user), None)
        tables.requests.pop((self._who.platform, self._who.user), None)

    def _is_theirs(self, inbound: Inbound) -> bool:
        return inbound.session in self.own.conversations or inbound in self.own.said

    def _is_to_them(self, session: SessionId, target: str) -> bool:
        return session in self.own.conversations or target in self.own.addresses

    def _names(self) -> list[str]:
        who = (self._who.platform, self._who.user)
        found = (self._tables.members.get(who), self._tables.requests.get(who))
        return [one.name for one in found if one is not None]
