"""Access: members, who waits to become one, and the wrong codes that lock a platform.

Approvals: questions to a person. A step is taken only while the question lives: in its time, its owner alive.
Grants: what people have allowed beforehand.
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
from talaria.store.mail import Outgoing
from talaria.store.permissions import Approval, ApprovalState, Grant, NewApproval
from talaria.store.sqlite.connection import SqliteConnection, Value
from talaria.store.sqlite.database import Database
from talaria.store.sqlite.mail import post
from talaria.store.sqlite.presence import Presence

# In the order of the fields of `PairingRequest` and `Member`.
_REQUEST_COLUMNS = "platform, user, name, digest, expires_at, address"
_MEMBER_COLUMNS = "platform, user, name, since"


class Access:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def request(self, request: PairingRequest, max_pending: int) -> Requested:
        def work(db: SqliteConnection) -> Requested:
            db.execute("DELETE FROM pairing_requests WHERE expires_at <= ?", (self._clock.now(),))
            waiting = _waiting(db, request.platform)
            if any(one.user == request.user for one in waiting):
                return "known"
            if len(waiting) >= max_pending:
                return "full"
            db.execute(
                f"INSERT INTO pairing_requests ({_REQUEST_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
                msgspec.structs.astuple(request),
            )
            return "added"

        return await self._database.write(work)

    async def requests(self) -> Sequence[PairingRequest]:
        living = f"SELECT {_REQUEST_COLUMNS} FROM pairing_requests WHERE expires_at > ? ORDER BY rowid"
        return [PairingRequest(*row) for row in await self._database.rows(living, (self._clock.now(),))]

    async def approve(self, platform: str, digest: str, greeting: Greeting | None = None) -> Member | Locked | None:
        def work(db: SqliteConnection) -> Member | Locked | None:
            now = self._clock.now()
            locked = _lock(db, platform, now)
            if locked is not None:
                return locked
            db.execute("DELETE FROM pairing_requests WHERE expires_at <= ?", (now,))
            fitting = [one for one in _waiting(db, platform) if _is_same(one.digest, digest)]
            if not fitting:
                _count_failure(db, platform, now)
                return None
            if greeting is not None and (address := fitting[0].address):
                said = Outgoing(address, greeting.body, greeting_key(digest), greeting.expires_at)
                post(db, greeting.session, said, now)
            return _let_in(db, fitting[0], now)

        return await self._database.write(work)

    async def members(self) -> Sequence[Member]:
        return [
            Member(*row) for row in await self._database.rows(f"SELECT {_MEMBER_COLUMNS} FROM members ORDER BY rowid")
        ]

    async def revoke(self, platform: str, user: str) -> bool:
        gone = await self._database.change("DELETE FROM members WHERE platform = ? AND user = ?", (platform, user))
        return gone == 1


def _waiting(db: SqliteConnection, platform: str) -> list[PairingRequest]:
    rows = db.execute(f"SELECT {_REQUEST_COLUMNS} FROM pairing_requests WHERE platform = ? ORDER BY rowid", (platform,))
    return [PairingRequest(*row) for row in rows]


def _is_same(one: str, other: str) -> bool:
    from hmac import compare_digest  # noqa: PLC0415  (it takes long to load, and pairing is rare)

    return compare_digest(one.encode(), other.encode())


def _lock(db: SqliteConnection, platform: str, now: float) -> Locked | None:
    failures = db.execute("SELECT at FROM pairing_failures WHERE platform = ? ORDER BY at", (platform,)).fetchall()
    until = failures[-1][0] + LOCKED_S if len(failures) >= MAX_FAILURES else 0.0
    return Locked(until) if now < until else None


def _count_failure(db: SqliteConnection, platform: str, now: float) -> None:
    db.execute("DELETE FROM pairing_failures WHERE platform = ? AND at <= ?", (platform, now - LOCKED_S))
    db.execute("INSERT INTO pairing_failures VALUES (?, ?)", (platform, now))


def _let_in(db: SqliteConnection, request: PairingRequest, now: float) -> Member:
    member = Member(request.platform, request.user, request.name, now)
    db.execute("DELETE FROM pairing_failures WHERE platform = ?", (request.platform,))
    db.execute("DELETE FROM pairing_requests WHERE platform = ? AND user = ?", (request.platform, request.user))
    db.execute(
        f"INSERT INTO members ({_MEMBER_COLUMNS}) VALUES (?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET name = excluded.name, since = excluded.since",
        msgspec.structs.astuple(member),
    )
    return member


# In the order of the fields of `NewApproval` and `Approval`.
_QUESTION_COLUMNS = "id, session, turn, call, owner, requester, tool, question, digest, expires_at"
_APPROVAL_COLUMNS = f"{_QUESTION_COLUMNS}, state, created_at, decided_by, decided_at"


class Approvals:
    def __init__(self, database: Database, presence: Presence, clock: Clock) -> None:
        self._database = database
        self._presence = presence
        self._clock = clock

    async def request(self, new: NewApproval) -> None:
        await self._database.change(
            f"INSERT INTO approvals ({_QUESTION_COLUMNS}, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
            f"SELECT {_APPROVAL_COLUMNS} FROM approvals WHERE state = 'pending' AND expires_at > ? ORDER BY rowid",
            (self._clock.now(),),
        )
        return [one for row in rows if self._presence.is_alive((one := Approval(*row)).owner)]


def _get(db: SqliteConnection, id: str) -> Approval | None:
    row = db.execute(f"SELECT {_APPROVAL_COLUMNS} FROM approvals WHERE id = ?", (id,)).fetchone()
    return Approval(*row) if row else None


# In the order of the fields of `Grant`.
_GRANT_COLUMNS = "id, person, tool, what, cwd, session, created_at, expires_at"


class Grants:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def add(self, grant: Grant) -> None:
        await self._database.change(
            f"INSERT INTO grants ({_GRANT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", msgspec.structs.astuple(grant)
        )

    async def valid(self, person: str, session: SessionId) -> Sequence[Grant]:
        return await self._unexpired("person = ? AND (session IS NULL OR session = ?)", person, session)

    async def list(self) -> Sequence[Grant]:
        return await self._unexpired("true")

    async def _unexpired(self, chosen: str, *values: Value) -> Sequence[Grant]:
        still = "expires_at IS NULL OR expires_at > ?"
        sql = f"SELECT {_GRANT_COLUMNS} FROM grants WHERE {chosen} AND ({still}) ORDER BY rowid"
        return [Grant(*row) for row in await self._database.rows(sql, (*values, self._clock.now()))]

    async def revoke(self, id: GrantId) -> bool:
        return await self._database.change("DELETE FROM grants WHERE id = ?", (id,)) == 1
