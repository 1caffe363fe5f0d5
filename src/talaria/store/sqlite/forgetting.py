"""What is thrown away for good: old conversations, and all that is kept about somebody."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import cast

from talaria.model.errors import SessionBusy
from talaria.model.ids import OwnerId, SessionId
from talaria.store.forgetting import Stale, Traces, Whose
from talaria.store.sqlite.connection import Connection, Value
from talaria.store.sqlite.database import Database
from talaria.store.sqlite.presence import Presence
from talaria.store.sqlite.sessions import remove

NOBODY = "forgotten"

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
        def work(db: Connection) -> list[Stale]:
            rows = db.execute(_STALE, (keep, before, is_empty)).fetchall()
            return [Stale(*row) for *row, owner in rows if not self._is_running(owner)]

        return await self._database.read(work)

    async def discard(self, session: SessionId) -> bool:
        def work(db: Connection) -> bool:
            row = db.execute(f"SELECT owner FROM sessions WHERE id = ? AND {_AT_REST}", (session,)).fetchone()
            if row is None or self._is_running(row[0]):
                return False
            with _overwriting(db):
                remove(db, session)
            return True

        return await self._database.write(work)

    async def traces(self, whose: Whose) -> Traces:
        return await self._database.read(lambda db: _Found(db, whose).traces())

    async def forget(self, whose: Whose) -> Traces:
        def work(db: Connection) -> Traces:
            found = _Found(db, whose)
            traces = found.traces()
            self._check_at_rest(db, found)
            with _overwriting(db):
                found.remove()
            return traces

        return await self._database.write(work)

    def _check_at_rest(self, db: Connection, found: "_Found") -> None:
        for session in found.conversations:
            owner = db.execute("SELECT owner FROM sessions WHERE id = ?", (session,)).get
            if self._is_running(owner):
                raise SessionBusy(f"Session {session} is running a turn of theirs; stop it before forgetting them.")
        if found.answered is not None:
            raise SessionBusy(f"Session {found.answered} is answering a message of theirs; wait until that is done.")

    def _is_running(self, owner: str | None) -> bool:
        return owner is not None and self._presence.is_alive(OwnerId(owner))


@contextmanager
def _overwriting(db: Connection) -> Generator[None]:
    """What is deleted inside is zeroes on the disk. Not always so: it would slow down every turn."""
    db.pragma("secure_delete", True)
    try:
        yield
    finally:
        db.pragma("secure_delete", False)


class _Found:
    """The rows of one person."""

    def __init__(self, db: Connection, whose: Whose) -> None:
        self._db = db
        self._whose = whose
        self.conversations = [
            SessionId(id) for id in self._column("id FROM sessions WHERE person = ? ORDER BY id", whose.person)
        ]
        rows = db.execute("SELECT id, session, key, state, body FROM inbox WHERE platform = ?", (whose.platform,))
        said = [row[:4] for row in rows if whose.has_said(row[4])]
        own = frozenset(self.conversations)
        elsewhere = [row for row in said if row[1] not in own]
        self.answered = next((session for _, session, _, state in elsewhere if state == "taken"), None)
        self._shared = tuple(
            dict.fromkeys(SessionId(session) for _, session, _, _ in elsewhere if self._is_there(session))
        )
        self._said = [cast("int", row[0]) for row in said]
        self._keys = self._own_keys({key for _, _, key, _ in said})
        self._addresses = self._private_addresses()

    def traces(self) -> Traces:
        whose = self._whose
        return Traces(
            conversations=tuple(self.conversations),
            messages=sum(self._counts("message_count FROM sessions WHERE person = ?", whose.person)),
            inbox=len(self._inbox()),
            outbox=len(self._outbox()),
            chats=len(self._keys),
            approvals=len(self._column("id FROM approvals WHERE requester = ?1 OR decided_by = ?1", whose.person)),
            grants=len(self._column("id FROM grants WHERE person = ?", whose.person)),
            pairing=len(self._names()),
            homes=len([one for one in self._column("address FROM homes") if one in self._addresses]),
            spending=sum(self._counts("count(*) FROM spending WHERE person = ?", whose.person)),
            shared=self._shared,
            names=tuple(dict.fromkeys(filter(None, self._names()))),
            folders=tuple(self._folders()),
        )

    def remove(self) -> None:
        db, whose = self._db, self._whose
        many = {
            "DELETE FROM inbox WHERE id = ?": self._inbox(),
            "DELETE FROM outbox WHERE id = ?": self._outbox(),
            "DELETE FROM chats WHERE key = ?": self._keys,
            "DELETE FROM homes WHERE address = ?": self._addresses,
        }
        for sql, values in many.items():
            db.executemany(sql, [(value,) for value in values])
        for session in self.conversations:
            remove(db, session)
        db.execute("DELETE FROM approvals WHERE requester = ?1 OR decided_by = ?1", (whose.person,))
        db.execute("DELETE FROM grants WHERE person = ?", (whose.person,))
        db.execute("DELETE FROM holds WHERE person = ?", (whose.person,))
        db.execute("UPDATE spending SET person = ? WHERE person = ?", (NOBODY, whose.person))
        for table in ("members", "pairing_requests"):
            db.execute(f"DELETE FROM {table} WHERE platform = ? AND user = ?", (whose.platform, whose.user))

    def _inbox(self) -> list[int]:
        """What they said, and what others said in conversations of theirs."""
        inside = [id for one in self.conversations for id in self._counts("id FROM inbox WHERE session = ?", one)]
        return sorted({*self._said, *inside})

    def _outbox(self) -> list[int]:
        inside = [id for one in self.conversations for id in self._counts("id FROM outbox WHERE session = ?", one)]
        to_them = [id for one in self._addresses for id in self._counts("id FROM outbox WHERE target = ?", one)]
        return sorted({*inside, *to_them})

    def _own_keys(self, said_in: set[str]) -> list[str]:
        whose, own = self._whose, frozenset(self.conversations)
        rows = self._db.execute("SELECT key, session FROM chats").fetchall()
        return [
            key
            for key, session in rows
            if session in own or whose.has_chat(key) or (key in said_in and whose.is_private(key))
        ]

    def _private_addresses(self) -> list[str]:
        found = [
            self._column("address FROM chats WHERE key = ?", key) for key in self._keys if self._whose.is_private(key)
        ]
        return sorted({address for some in found for address in some if address})

    def _names(self) -> list[str]:
        sql = "name FROM {} WHERE platform = ? AND user = ?"
        where = (self._whose.platform, self._whose.user)
        return [name for table in ("members", "pairing_requests") for name in self._column(sql.format(table), *where)]

    def _folders(self) -> list[str]:
        others = "SELECT cwd FROM sessions WHERE person <> ?1"
        own = f"DISTINCT cwd FROM sessions WHERE person = ?1 AND cwd NOT IN ({others}) ORDER BY cwd"
        return self._column(own, self._whose.person)

    def _is_there(self, session: str) -> bool:
        return bool(self._column("id FROM sessions WHERE id = ?", session))

    def _column(self, rest: str, *values: Value) -> list[str]:
        return [str(row[0]) for row in self._db.execute(f"SELECT {rest}", values)]

    def _counts(self, rest: str, *values: Value) -> list[int]:
        return [cast("int", row[0]) for row in self._db.execute(f"SELECT {rest}", values)]
