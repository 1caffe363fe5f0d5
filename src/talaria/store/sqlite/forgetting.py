"""What is thrown away for good: old conversations, and all that is kept about somebody."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from talaria.core.ids import OwnerId, SessionId
from talaria.store.chats import ChatRow
from talaria.store.forgetting import NOBODY, PersonalData, PersonQuery, Stale, Traces
from talaria.store.mail import Inbound
from talaria.store.sqlite.connection import SqliteConnection, Value
from talaria.store.sqlite.database import Database
from talaria.store.sqlite.presence import Presence
from talaria.store.sqlite.sessions import remove

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

    async def traces(self, whose: PersonQuery) -> Traces:
        return await self._database.read(lambda db: _PersonRows(db, whose).traces())

    async def forget(self, whose: PersonQuery) -> Traces:
        def work(db: SqliteConnection) -> Traces:
            found = _PersonRows(db, whose)
            traces = found.traces()
            found.own.check_at_rest(lambda session: self._presence.is_alive(_owner(db, session)))
            with _overwrite_deleted(db):
                found.remove()
            return traces

        return await self._database.write(work)


def _owner(db: SqliteConnection, session: SessionId) -> OwnerId | None:
    return db.execute("SELECT owner FROM sessions WHERE id = ?", (session,)).get


@contextmanager
def _overwrite_deleted(db: SqliteConnection) -> Generator[None]:
    """What is deleted inside is zeroes on the disk. Not always so: it would slow down every turn."""
    db.pragma("secure_delete", True)
    try:
        yield
    finally:
        db.pragma("secure_delete", False)


class _PersonRows:
    """The rows of one person."""

    def __init__(self, db: SqliteConnection, whose: PersonQuery) -> None:
        self._db = db
        self._whose = whose
        mail = db.execute(f"SELECT {_MAIL} FROM inbox WHERE platform = ? ORDER BY id", (whose.platform,))
        self.own = PersonalData(
            whose,
            self._column("id FROM sessions WHERE person = ? ORDER BY id", whose.person),
            (Inbound(*row) for row in mail),
            [ChatRow(*row) for row in db.execute("SELECT key, session, address FROM chats ORDER BY id")],
        )

    def traces(self) -> Traces:
        own, whose = self.own, self._whose
        there = [one.session for one in own.elsewhere if self._column("id FROM sessions WHERE id = ?", one.session)]
        return Traces(
            conversations=tuple(own.conversations),
            messages=sum(self._column("message_count FROM sessions WHERE person = ?", whose.person)),
            inbox=len(self._inbox()),
            outbox=len(self._outbox()),
            chats=len(own.keys),
            approvals=len(self._column("id FROM approvals WHERE requester = ?1 OR decided_by = ?1", whose.person)),
            grants=len(self._column("id FROM grants WHERE person = ?", whose.person)),
            pairing=len(self._names()),
            homes=len([one for one in self._column("address FROM homes") if one in own.addresses]),
            spending=sum(self._column("count(*) FROM spending WHERE person = ?", whose.person)),
            shared=tuple(dict.fromkeys(there)),
            names=tuple(dict.fromkeys(filter(None, self._names()))),
            folders=tuple(self._folders()),
        )

    def remove(self) -> None:
        db, own, whose = self._db, self.own, self._whose
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
        db.execute("DELETE FROM approvals WHERE requester = ?1 OR decided_by = ?1", (whose.person,))
        db.execute("DELETE FROM grants WHERE person = ?", (whose.person,))
        db.execute("DELETE FROM holds WHERE person = ?", (whose.person,))
        db.execute("DELETE FROM home_people WHERE platform = ? AND person = ?", (whose.platform, whose.user))
        db.execute("UPDATE spending SET person = ? WHERE person = ?", (NOBODY, whose.person))
        for table in ("members", "pairing_requests"):
            db.execute(f"DELETE FROM {table} WHERE platform = ? AND user = ?", (whose.platform, whose.user))

    def _inbox(self) -> list[int]:
        """What they said, and what others said in conversations of theirs."""
        inside = [id for one in self.own.conversations for id in self._column("id FROM inbox WHERE session = ?", one)]
        return sorted({*(one.id for one in self.own.said), *inside})

    def _outbox(self) -> list[int]:
        inside = [id for one in self.own.conversations for id in self._column("id FROM outbox WHERE session = ?", one)]
        to_them = [id for one in self.own.addresses for id in self._column("id FROM outbox WHERE target = ?", one)]
        return sorted({*inside, *to_them})

    def _names(self) -> list[str]:
        sql = "name FROM {} WHERE platform = ? AND user = ?"
        where = (self._whose.platform, self._whose.user)
        return [name for table in ("members", "pairing_requests") for name in self._column(sql.format(table), *where)]

    def _folders(self) -> list[str]:
        others = "SELECT cwd FROM sessions WHERE person <> ?1"
        own = f"DISTINCT cwd FROM sessions WHERE person = ?1 AND cwd NOT IN ({others}) ORDER BY cwd"
        return self._column(own, self._whose.person)

    def _column(self, rest: str, *values: Value) -> list[Any]:
        return [row[0] for row in self._db.execute(f"SELECT {rest}", values)]
