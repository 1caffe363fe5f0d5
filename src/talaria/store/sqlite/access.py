"""What people may do: members and pairing, approvals, grants. And forgetting: old conversations,
and everything that is stored about a person.

A step of an approval is taken only while the question lives: before it expires, and while its owner
is alive.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from talaria.core.clock import Clock
from talaria.core.ids import ApprovalId, GrantId, SessionId
from talaria.store.api_ports import API
from talaria.store.chat_ports import ChatRow, Inbound, Outgoing
from talaria.store.forgetting import NOBODY, PersonalData, PersonQuery, Stale, Traces
from talaria.store.permission_ports import (
    LOCKED_S,
    MAX_FAILURES,
    Approval,
    ApprovalState,
    Grant,
    Greeting,
    Locked,
    Member,
    NewApproval,
    PairingRequest,
    Requested,
    greeting_key,
)
from talaria.store.sqlite.connection import SqliteConnection, Value
from talaria.store.sqlite.database import Database
from talaria.store.sqlite.mail import post
from talaria.store.sqlite.presence import Presence
from talaria.store.sqlite.sessions import remove
from talaria.store.sqlite.signals import list_sent

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
            waiting = _list_requests(db, request.platform)
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
            failures = db.execute(
                "SELECT at FROM pairing_failures WHERE platform = ? ORDER BY at", (platform,)
            ).fetchall()
            until = failures[-1][0] + LOCKED_S if len(failures) >= MAX_FAILURES else 0.0
            if now < until:
                return Locked(until)
            db.execute("DELETE FROM pairing_requests WHERE expires_at <= ?", (now,))
            fitting = [one for one in _list_requests(db, platform) if _is_same(one.digest, digest)]
            if not fitting:
                db.execute("DELETE FROM pairing_failures WHERE platform = ? AND at <= ?", (platform, now - LOCKED_S))
                db.execute("INSERT INTO pairing_failures VALUES (?, ?)", (platform, now))
                return None
            if greeting is not None and (address := fitting[0].address):
                said = Outgoing(address, greeting.body, greeting_key(digest), greeting.expires_at)
                post(db, greeting.session, said, now)
            return _admit(db, fitting[0], now)

        return await self._database.write(work)

    async def members(self) -> Sequence[Member]:
        return [
            Member(*row) for row in await self._database.rows(f"SELECT {_MEMBER_COLUMNS} FROM members ORDER BY rowid")
        ]

    async def revoke(self, platform: str, user: str) -> bool:
        gone = await self._database.change("DELETE FROM members WHERE platform = ? AND user = ?", (platform, user))
        return gone == 1


def _list_requests(db: SqliteConnection, platform: str) -> list[PairingRequest]:
    rows = db.execute(f"SELECT {_REQUEST_COLUMNS} FROM pairing_requests WHERE platform = ? ORDER BY rowid", (platform,))
    return [PairingRequest(*row) for row in rows]


def _is_same(one: str, other: str) -> bool:
    from hmac import compare_digest  # noqa: PLC0415  (it takes long to load, and pairing is rare)

    return compare_digest(one.encode(), other.encode())


def _admit(db: SqliteConnection, request: PairingRequest, now: float) -> Member:
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
        return await self._step(id, step, (state, by, self._clock.now(), id, by))

    async def use(self, id: ApprovalId, digest: str) -> bool:
        return await self._step(
            id, "SET state = 'used' WHERE id = ? AND state = 'allowed' AND digest = ?", (id, digest)
        )

    async def _step(self, id: ApprovalId, step: str, values: tuple[Value, ...]) -> bool:
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
            row = db.execute(f"SELECT {_APPROVAL_COLUMNS} FROM approvals WHERE id = ?", (name,)).fetchone()
            exact = Approval(*row) if row else None
            if exact is not None or len(name) < 4:
                return exact
            fitting = [one for one in self._select_pending(db) if one.id.startswith(name.lower())]
            return fitting[0] if len(fitting) == 1 else None

        return await self._database.read(work)

    async def list_pending(self, session: SessionId | None = None) -> Sequence[Approval]:
        def work(db: SqliteConnection) -> list[Approval]:
            return [one for one in self._select_pending(db) if session is None or one.session == session]

        return await self._database.read(work)

    def _select_pending(self, db: SqliteConnection) -> list[Approval]:
        """In every session."""
        rows = db.execute(
            f"SELECT {_APPROVAL_COLUMNS} FROM approvals WHERE state = 'pending' AND expires_at > ? ORDER BY rowid",
            (self._clock.now(),),
        )
        return [one for row in rows if self._presence.is_alive((one := Approval(*row)).owner)]


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

    async def list_valid(self, person: str, session: SessionId) -> Sequence[Grant]:
        return await self._select_unexpired("person = ? AND (session IS NULL OR session = ?)", person, session)

    async def list(self) -> Sequence[Grant]:
        return await self._select_unexpired("true")

    async def _select_unexpired(self, chosen: str, *values: Value) -> Sequence[Grant]:
        still = "expires_at IS NULL OR expires_at > ?"
        sql = f"SELECT {_GRANT_COLUMNS} FROM grants WHERE {chosen} AND ({still}) ORDER BY rowid"
        return [Grant(*row) for row in await self._database.rows(sql, (*values, self._clock.now()))]

    async def revoke(self, id: GrantId) -> bool:
        return await self._database.change("DELETE FROM grants WHERE id = ?", (id,)) == 1


# In the order of the fields of `Inbound`.
_MAIL = "platform, account, chat, message_id, session, body, key, id, state, turn"
_AT_REST = (
    "handoff_state IS NOT 'pending' AND handoff_state IS NOT 'running'"
    " AND NOT EXISTS (SELECT 1 FROM inbox WHERE session = sessions.id AND state <> 'done')"
    " AND NOT EXISTS (SELECT 1 FROM outbox WHERE session = sessions.id AND state IN ('pending', 'started'))"
)
_STALE = (
    "SELECT id, coalesce(title, preview), updated_at, message_count,"
    " (SELECT coalesce(sum(octet_length(body)), 0) FROM entries WHERE session = sessions.id), owner FROM sessions"
    " WHERE id NOT IN (SELECT id FROM sessions ORDER BY updated_at DESC, id DESC LIMIT ?1)"
    f" AND (?2 IS NULL OR updated_at < ?2) AND (NOT ?3 OR message_count = 0) AND {_AT_REST}"
    " ORDER BY updated_at, id"
)


class Forgetting:
    def __init__(self, database: Database, presence: Presence) -> None:
        self._database = database
        self._presence = presence

    async def stale(self, before: float | None = None, keep: int = 0, *, is_empty: bool = False) -> Sequence[Stale]:
        def work(db: SqliteConnection) -> list[Stale]:
            rows = db.execute(_STALE, (keep, before, is_empty)).fetchall()
            return [Stale(*row) for *row, owner in rows if not self._presence.is_alive(owner)]

        return await self._database.read(work)

    async def discard(self, session: SessionId) -> bool:
        def work(db: SqliteConnection) -> bool:
            row = db.execute(f"SELECT owner FROM sessions WHERE id = ? AND {_AT_REST}", (session,)).fetchone()
            if row is None or self._presence.is_alive(row[0]):
                return False
            with _overwrite_deleted(db):
                remove(db, session)
            return True

        return await self._database.write(work)

    async def traces(self, who: PersonQuery) -> Traces:
        return await self._database.read(lambda db: _PersonRows(db, who).traces())

    async def forget(self, who: PersonQuery) -> Traces:
        def work(db: SqliteConnection) -> Traces:
            found = _PersonRows(db, who)
            traces = found.traces()
            found.own.check_at_rest(
                lambda session: self._presence.is_alive(
                    db.execute("SELECT owner FROM sessions WHERE id = ?", (session,)).get
                )
            )
            with _overwrite_deleted(db):
                found.remove()
            return traces

        return await self._database.write(work)


@contextmanager
def _overwrite_deleted(db: SqliteConnection) -> Generator[None]:
    """What is deleted inside is overwritten with zeroes. Only here, because it would slow down every turn."""
    db.pragma("secure_delete", True)
    try:
        yield
    finally:
        db.pragma("secure_delete", False)


class _PersonRows:
    """The rows of one person."""

    def __init__(self, db: SqliteConnection, who: PersonQuery) -> None:
        self._db = db
        self._who = who
        mail = db.execute(f"SELECT {_MAIL} FROM inbox WHERE platform = ? ORDER BY id", (who.platform,))
        self.own = PersonalData(
            who,
            self._column("id FROM sessions WHERE person = ? ORDER BY id", who.person),
            (Inbound(*row) for row in mail),
            [ChatRow(*row) for row in db.execute("SELECT key, session, address FROM chats ORDER BY id")],
            list_sent(db, who.person),
        )

    def traces(self) -> Traces:
        own, who = self.own, self._who
        there = [one.session for one in own.elsewhere if self._column("id FROM sessions WHERE id = ?", one.session)]
        return Traces(
            conversations=tuple(own.conversations),
            messages=sum(self._column("message_count FROM sessions WHERE person = ?", who.person)),
            inbox=len(self._inbox()),
            outbox=len(self._outbox()),
            chats=len(own.keys),
            approvals=len(self._column("id FROM approvals WHERE requester = ?1 OR decided_by = ?1", who.person)),
            grants=len(self._column("id FROM grants WHERE person = ?", who.person)),
            signals=len(own.signals),
            tokens=len(self._token()),
            pairing=len(self._names()),
            homes=len([one for one in self._column("address FROM homes") if one in own.addresses]),
            spending=sum(self._column("count(*) FROM spending WHERE person = ?", who.person)),
            shared=tuple(dict.fromkeys(there)),
            names=tuple(dict.fromkeys(filter(None, self._names()))),
            folders=tuple(
                self._column(
                    "DISTINCT cwd FROM sessions WHERE person = ?1"
                    " AND cwd NOT IN (SELECT cwd FROM sessions WHERE person <> ?1) ORDER BY cwd",
                    who.person,
                )
            ),
        )

    def remove(self) -> None:
        db, own, who = self._db, self.own, self._who
        many = {
            "DELETE FROM inbox WHERE id = ?": self._inbox(),
            "DELETE FROM outbox WHERE id = ?": self._outbox(),
            "DELETE FROM chats WHERE key = ?": own.keys,
            "DELETE FROM handoff_chats WHERE key = ?": own.keys,
            "DELETE FROM homes WHERE address = ?": own.addresses,
        }
        for sql, values in many.items():
            db.executemany(sql, [(value,) for value in values])
        for session in own.conversations:
            remove(db, session)
        db.execute("DELETE FROM approvals WHERE requester = ?1 OR decided_by = ?1", (who.person,))
        db.execute("DELETE FROM grants WHERE person = ?", (who.person,))
        db.execute("DELETE FROM signals WHERE person = ?", (who.person,))
        db.executemany("DELETE FROM api_tokens WHERE name = ?", [(name,) for name in self._token()])
        db.execute("DELETE FROM histories WHERE person = ?", (who.person,))
        db.execute("DELETE FROM holds WHERE person = ?", (who.person,))
        db.execute("DELETE FROM home_people WHERE platform = ? AND person = ?", (who.platform, who.user))
        db.execute("UPDATE spending SET person = ? WHERE person = ?", (NOBODY, who.person))
        for table in ("members", "pairing_requests"):
            db.execute(f"DELETE FROM {table} WHERE platform = ? AND user = ?", (who.platform, who.user))

    def _inbox(self) -> list[int]:
        """What they wrote, and what others wrote in their conversations."""
        inside = [id for one in self.own.conversations for id in self._column("id FROM inbox WHERE session = ?", one)]
        return sorted({*(one.id for one in self.own.said), *inside})

    def _outbox(self) -> list[int]:
        inside = [id for one in self.own.conversations for id in self._column("id FROM outbox WHERE session = ?", one)]
        to_them = [id for one in self.own.addresses for id in self._column("id FROM outbox WHERE target = ?", one)]
        return sorted({*inside, *to_them})

    def _token(self) -> list[str]:
        """Its name, if there is one."""
        return self._column("name FROM api_tokens WHERE ? = ? AND name = ?", self._who.platform, API, self._who.user)

    def _names(self) -> list[str]:
        sql = "name FROM {} WHERE platform = ? AND user = ?"
        where = (self._who.platform, self._who.user)
        return [name for table in ("members", "pairing_requests") for name in self._column(sql.format(table), *where)]

    def _column(self, rest: str, *values: Value) -> list[Any]:
        return [row[0] for row in self._db.execute(f"SELECT {rest}", values)]
