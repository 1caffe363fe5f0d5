"""The journal: what happened, in order, under the epoch of the session's owner."""

from collections.abc import Callable, Sequence
from typing import assert_never, cast

import msgspec

from talaria.core.clock import Clock
from talaria.core.entries import Entry, Recorded
from talaria.core.errors import Fenced
from talaria.core.ids import Epoch, OwnerId, SessionId, TurnId
from talaria.core.messages import NO_USAGE, ToolCall, ToolResult, Usage
from talaria.store.api_ports import HistoryPoint
from talaria.store.base import (
    CallEnded,
    CallIntended,
    CallRow,
    CallStarted,
    Change,
    Held,
    HoldReleased,
    SessionReleased,
    SessionSeized,
    Spent,
    Write,
)
from talaria.store.chat_ports import InboxDone, InboxTaken, Outgoing
from talaria.store.session_rules import SessionHead, unknown_session
from talaria.store.signal_port import SignalObeyed
from talaria.store.sqlite import mail, signals, spending
from talaria.store.sqlite.api_rows import add_point
from talaria.store.sqlite.connection import SqliteConnection, step
from talaria.store.sqlite.database import Database
from talaria.store.sqlite.mail import post
from talaria.store.sqlite.presence import Presence

MAX_SEQ = (1 << 63) - 1

_encode = msgspec.json.Encoder().encode
_decode_entry = msgspec.json.Decoder(Entry).decode
_decode_result = msgspec.json.Decoder(ToolResult).decode
_decode_usage = msgspec.json.Decoder(Usage).decode


class Journal:
    def __init__(
        self, database: Database, presence: Presence, clock: Clock, on_commit: Callable[[], None] = lambda: None
    ) -> None:
        self._database = database
        self._presence = presence
        self._clock = clock
        self._on_commit = on_commit

    async def seize(self, session: SessionId, owner: OwnerId) -> Epoch | Held:
        def work(db: SqliteConnection) -> Epoch | Held:
            free = db.execute(
                "UPDATE sessions SET owner = ?, epoch = epoch + 1 WHERE id = ? AND owner IS NULL RETURNING epoch",
                (owner, session),
            ).fetchone()
            if free is not None:
                return Epoch(free[0])
            row = db.execute("SELECT owner, epoch FROM sessions WHERE id = ?", (session,)).fetchone()
            if row is None:
                raise unknown_session(session)
            holder, epoch = cast("tuple[OwnerId, int]", row)
            if self._presence.is_alive(holder):
                return Held(holder)
            db.execute("UPDATE sessions SET owner = ?, epoch = ? WHERE id = ?", (owner, epoch + 1, session))
            return Epoch(epoch + 1)

        return await self._database.write(work)

    async def record(self, session: SessionId, epoch: Epoch, writes: Sequence[Write]) -> bool:
        def work(db: SqliteConnection) -> bool:
            now = self._clock.now()
            match writes:
                case [SessionSeized(owner), *_]:
                    db.execute(
                        "UPDATE sessions SET owner = ?, epoch = epoch + 1 WHERE id = ? AND owner IS NULL AND epoch = ?",
                        (owner, session, epoch - 1),
                    )
                    if db.changes() != 1:
                        raise Fenced(f"Session {session} was run by another process meanwhile.")
                case _:
                    pass
            append(db, session, [(write, now) for write in writes if isinstance(write, Entry)], epoch)
            for write in writes:
                if not isinstance(write, Entry):
                    _apply(db, session, write, now)
            match writes:
                case [*_, SessionReleased(leaves_mail)]:
                    return _release(db, session, epoch, leaves_mail=leaves_mail)
                case _:
                    return False

        is_released = await self._database.write(work)
        self._on_commit()
        return is_released

    async def release(self, session: SessionId, epoch: Epoch, *, leaves_mail: bool = False) -> bool:
        return await self._database.write(lambda db: _release(db, session, epoch, leaves_mail=leaves_mail))

    async def entries(self, session: SessionId, after: int = 0) -> Sequence[Recorded]:
        def work(db: SqliteConnection) -> list[Recorded]:
            rows = db.execute(
                "SELECT seq, at, body FROM entries WHERE session = ? AND seq > ? ORDER BY seq", (session, after)
            )
            return [Recorded(seq, at, _decode_entry(body)) for seq, at, body in rows]

        return await self._database.read(work)

    async def latest(self, session: SessionId, limit: int, before: int | None = None) -> Sequence[Recorded]:
        def work(db: SqliteConnection) -> list[Recorded]:
            rows = db.execute(
                "SELECT seq, at, body FROM entries WHERE session = ? AND seq < ? ORDER BY seq DESC LIMIT ?",
                (session, MAX_SEQ if before is None else before, limit),
            )
            return [Recorded(seq, at, _decode_entry(body)) for seq, at, body in rows][::-1]

        return await self._database.read(work)

    async def calls(self, session: SessionId, turn: TurnId) -> Sequence[CallRow]:
        def work(db: SqliteConnection) -> list[CallRow]:
            rows = db.execute(
                "SELECT turn, id, name, arguments, state, created_at, result FROM calls"
                " WHERE session = ? AND turn = ? ORDER BY rowid",
                (session, turn),
            )
            return [
                CallRow(turn, ToolCall(id, name, arguments), state, at, _decode_result(result) if result else None)
                for turn, id, name, arguments, state, at, result in rows
            ]

        return await self._database.read(work)

    async def holder(self, session: SessionId) -> OwnerId | None:
        def work(db: SqliteConnection) -> OwnerId | None:
            row = db.execute("SELECT owner FROM sessions WHERE id = ?", (session,)).fetchone()
            owner = cast("OwnerId | None", row[0]) if row else None
            return owner if self._presence.is_alive(owner) else None

        return await self._database.read(work)

    async def list_interrupted(self) -> Sequence[SessionId]:
        def work(db: SqliteConnection) -> list[SessionId]:
            sql = "SELECT id, owner FROM sessions WHERE open_turn IS NOT NULL ORDER BY updated_at DESC, id DESC"
            return [id for id, owner in db.execute(sql).fetchall() if not self._presence.is_alive(owner)]

        return await self._database.read(work)


def _release(db: SqliteConnection, session: SessionId, epoch: Epoch, *, leaves_mail: bool) -> bool:
    db.execute(
        "UPDATE sessions SET owner = NULL WHERE id = ?1 AND epoch = ?2 AND owner IS NOT NULL"
        " AND (?3 OR NOT EXISTS (SELECT 1 FROM inbox WHERE session = ?1 AND state <> 'done'))",
        (session, epoch, leaves_mail),
    )
    if db.changes() == 1:
        return True
    row = db.execute("SELECT epoch FROM sessions WHERE id = ? AND owner IS NOT NULL", (session,)).fetchone()
    if row is None or row[0] != epoch:
        raise Fenced(f"Session {session} is now run by another process.")
    return False


def _apply(db: SqliteConnection, session: SessionId, write: Change, now: float) -> None:
    match write:
        case CallIntended(turn, call):
            db.execute(
                "INSERT INTO calls (session, id, turn, name, arguments, state, created_at)"
                " VALUES (?, ?, ?, ?, ?, 'intent', ?)",
                (session, call.id, turn, call.name, call.arguments, now),
            )
        case CallStarted(call_id):
            step(
                db,
                f"call {call_id} is not at intent",
                "UPDATE calls SET state = 'started', started_at = ? WHERE session = ? AND id = ? AND state = 'intent'",
                (now, session, call_id),
            )
        case CallEnded(result):
            step(
                db,
                f"call {result.call_id} has ended or never was",
                "UPDATE calls SET state = 'done', ended_at = ?, result = ?"
                " WHERE session = ? AND id = ? AND state <> 'done'",
                (now, _encode(result).decode(), session, result.call_id),
            )
        case InboxTaken(turn, ids):
            mail.take(db, session, turn, ids)
        case InboxDone(ids):
            mail.finish(db, session, ids)
        case Outgoing():
            post(db, session, write, now)
        case Spent() | HoldReleased():
            spending.record_spending(db, session, write, now)
        case SignalObeyed(id):
            signals.obey(db, session, id)
        case HistoryPoint():
            add_point(db, session, write)
        case SessionSeized() | SessionReleased():
            pass  # before and after all others
        case _:
            assert_never(write)


def append(
    db: SqliteConnection, session: SessionId, entries: Sequence[tuple[Entry, float]], epoch: Epoch | None = None
) -> None:
    """Appends entries with their times, and updates the session's row. Raises `Fenced`."""
    row = db.execute(
        "SELECT last_seq, open_turn, preview, usage FROM sessions"
        " WHERE id = ?1 AND (?2 IS NULL OR (epoch = ?2 AND owner IS NOT NULL))",
        (session, epoch),
    ).fetchone()
    if row is None:
        raise Fenced(f"Session {session} is now run by another process.")
    if not entries:
        return
    last_seq, open_turn, preview, usage = row
    head = SessionHead(open_turn, preview)
    for entry, _ in entries:
        head.add(entry)
    if head.usage is not NO_USAGE:
        usage = _encode(_decode_usage(usage) + head.usage).decode()
    rows = [(session, seq, at, _encode(entry).decode()) for seq, (entry, at) in enumerate(entries, last_seq + 1)]
    db.executemany("INSERT INTO entries (session, seq, at, body) VALUES (?, ?, ?, ?)", rows)
    db.execute(
        "UPDATE sessions SET last_seq = ?, updated_at = ?, message_count = message_count + ?, open_turn = ?,"
        " preview = ?, usage = ? WHERE id = ?",
        (rows[-1][1], rows[-1][2], head.messages, head.open_turn, head.preview, usage, session),
    )
