"""Access: members, who waits to become one, and the wrong codes that lock a platform."""

from collections.abc import Sequence

import msgspec

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
from talaria.store.sqlite.connection import SqliteConnection
from talaria.store.sqlite.database import Database
from talaria.store.sqlite.outbox import post

# In the order of the fields of `PairingRequest` and `Member`.
_ASKED = "platform, user, name, digest, expires_at, address"
_COLUMNS = "platform, user, name, since"


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
                f"INSERT INTO pairing_requests ({_ASKED}) VALUES (?, ?, ?, ?, ?, ?)", msgspec.structs.astuple(request)
            )
            return "added"

        return await self._database.write(work)

    async def requests(self) -> Sequence[PairingRequest]:
        living = f"SELECT {_ASKED} FROM pairing_requests WHERE expires_at > ? ORDER BY rowid"
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
        return [Member(*row) for row in await self._database.rows(f"SELECT {_COLUMNS} FROM members ORDER BY rowid")]

    async def revoke(self, platform: str, user: str) -> bool:
        gone = await self._database.change("DELETE FROM members WHERE platform = ? AND user = ?", (platform, user))
        return gone == 1


def _waiting(db: SqliteConnection, platform: str) -> list[PairingRequest]:
    rows = db.execute(f"SELECT {_ASKED} FROM pairing_requests WHERE platform = ? ORDER BY rowid", (platform,))
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
        f"INSERT INTO members ({_COLUMNS}) VALUES (?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET name = excluded.name, since = excluded.since",
        msgspec.structs.astuple(member),
    )
    return member
