"""The journal: what happened, in order, under the epoch of the session's owner."""

from collections.abc import Callable, Sequence
from typing import assert_never, cast

import msgspec

from talaria.model.clock import Clock
from talaria.model.compaction import Compacted
from talaria.model.entries import Entry, MessageAdded, Noted, Recorded, RouteChanged, TurnEnded, TurnStarted, Undone
from talaria.model.errors import Fenced, UnknownSession
from talaria.model.ids import CallId, Epoch, InboxId, OwnerId, SessionId, TurnId
from talaria.model.messages import ToolCall, ToolResult
from talaria.model.usage import Usage
from talaria.store.base import (
    BrokenRuleError,
    CallEnded,
    CallIntended,
    CallRow,
    CallStarted,
    CallState,
    Cursor,
    Held,
    Inbound,
    InboxDone,
    InboxTaken,
    Outgoing,
    Released,
    Spent,
    Write,
)
from talaria.store.excerpts import preview
from talaria.store.sqlite import spending
from talaria.store.sqlite.connection import Connection
from talaria.store.sqlite.database import Database
from talaria.store.sqlite.presence import Presence

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

    async def accept(self, inbounds: Sequence[Inbound], cursor: Cursor | None = None) -> Sequence[bool]:
        def work(db: Connection) -> list[bool]:
            fresh = [self._insert_inbound(db, inbound) for inbound in inbounds]
            if cursor is not None:
                db.execute(
                    "INSERT INTO cursors VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
                    (cursor.platform, cursor.account, cursor.value),
                )
            return fresh

        return await self._database.write(work)

    def _insert_inbound(self, db: Connection, inbound: Inbound) -> bool:
        db.execute(
            "INSERT INTO inbox (platform, account, chat, message_id, session, body, received_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (
                inbound.platform,
                inbound.account,
                inbound.chat,
                inbound.message_id,
                inbound.session,
                inbound.body,
                self._clock.now(),
            ),
        )
        return db.changes() == 1

    async def cursor(self, platform: str, account: str) -> str | None:
        def work(db: Connection) -> str | None:
            row = db.execute(
                "SELECT value FROM cursors WHERE platform = ? AND account = ?", (platform, account)
            ).fetchone()
            return str(row[0]) if row else None

        return await self._database.read(work)

    async def pending(self, session: SessionId) -> Sequence[Inbound]:
        def work(db: Connection) -> list[Inbound]:
            rows = db.execute(
                "SELECT platform, account, chat, message_id, session, body, id FROM inbox"
                " WHERE session = ? AND state <> 'done' ORDER BY id",
                (session,),
            )
            return [_inbound(row) for row in rows]

        return await self._database.read(work)

    async def seize(self, session: SessionId, owner: OwnerId) -> Epoch | Held:
        def work(db: Connection) -> Epoch | Held:
            row = db.execute("SELECT owner, epoch FROM sessions WHERE id = ?", (session,)).fetchone()
            if row is None:
                raise UnknownSession(f"There is no session {session}.")
            holder = cast("OwnerId | None", row[0])
            if holder is not None and self._presence.is_alive(holder):
                return Held(holder)
            epoch = Epoch(cast("int", row[1]) + 1)
            db.execute("UPDATE sessions SET owner = ?, epoch = ? WHERE id = ?", (owner, epoch, session))
            return epoch

        return await self._database.write(work)

    async def record(self, session: SessionId, epoch: Epoch, writes: Sequence[Write]) -> None:
        def work(db: Connection) -> None:
            _check_epoch(db, session, epoch)
            now = self._clock.now()
            for write in writes:
                _apply(db, session, write, now)

        await self._database.write(work)
        self._on_commit()

    async def release(self, session: SessionId, epoch: Epoch) -> bool:
        def work(db: Connection) -> bool:
            _check_epoch(db, session, epoch)
            mail = db.execute("SELECT 1 FROM inbox WHERE session = ? AND state <> 'done' LIMIT 1", (session,))
            if mail.fetchone() is not None:
                return False
            db.execute("UPDATE sessions SET owner = NULL WHERE id = ?", (session,))
            return True

        return await self._database.write(work)

    async def entries(self, session: SessionId, after: int = 0) -> Sequence[Recorded]:
        def work(db: Connection) -> list[Recorded]:
            rows = db.execute(
                "SELECT seq, at, body FROM entries WHERE session = ? AND seq > ? ORDER BY seq", (session, after)
            )
            return [Recorded(seq, at, _decode_entry(body)) for seq, at, body in cast("_EntryRows", rows)]

        return await self._database.read(work)

    async def calls(self, session: SessionId, turn: TurnId) -> Sequence[CallRow]:
        def work(db: Connection) -> list[CallRow]:
            rows = db.execute(
                "SELECT turn, id, name, arguments, state, created_at, result FROM calls"
                " WHERE session = ? AND turn = ? ORDER BY rowid",
                (session, turn),
            )
            return [_call_row(*row) for row in cast("_CallRows", rows)]

        return await self._database.read(work)

    async def interrupted(self) -> Sequence[SessionId]:
        def work(db: Connection) -> list[SessionId]:
            rows = db.execute(
                "SELECT id, owner FROM sessions WHERE open_turn IS NOT NULL ORDER BY updated_at DESC, id DESC"
            )
            found = cast("list[tuple[SessionId, OwnerId | None]]", rows.fetchall())
            return [id for id, owner in found if owner is None or not self._presence.is_alive(owner)]

        return await self._database.read(work)


_EntryRows = Sequence[tuple[int, float, str]]
_CallRows = Sequence[tuple[TurnId, CallId, str, str, CallState, float, str | None]]


def _inbound(row: tuple[object, ...]) -> Inbound:
    platform, account, chat, message_id, session, body, id = cast("tuple[str, str, str, str, str, str, int]", row)
    return Inbound(platform, account, chat, message_id, SessionId(session), body, InboxId(id))


def _call_row(
    turn: TurnId, id: CallId, name: str, arguments: str, state: CallState, created_at: float, result: str | None
) -> CallRow:
    return CallRow(turn, ToolCall(id, name, arguments), state, created_at, _decode_result(result) if result else None)


def _check_epoch(db: Connection, session: SessionId, epoch: Epoch) -> None:
    row = db.execute("SELECT epoch FROM sessions WHERE id = ? AND owner IS NOT NULL", (session,)).fetchone()
    if row is None or row[0] != epoch:
        raise Fenced(f"Session {session} is run by another process now.")


def _apply(db: Connection, session: SessionId, write: Write, now: float) -> None:
    match write:
        case MessageAdded() | TurnStarted() | TurnEnded() | RouteChanged() | Compacted() | Undone() | Noted():
            append(db, session, write, now)
        case CallIntended(turn, call):
            db.execute(
                "INSERT INTO calls (session, id, turn, name, arguments, state, created_at)"
                " VALUES (?, ?, ?, ?, ?, 'intent', ?)",
                (session, call.id, turn, call.name, call.arguments, now),
            )
        case CallStarted(call_id):
            _move(
                db,
                f"call {call_id} is not at intent",
                "UPDATE calls SET state = 'started', started_at = ? WHERE session = ? AND id = ? AND state = 'intent'",
                (now, session, call_id),
            )
        case CallEnded(result):
            _move(
                db,
                f"call {result.call_id} has ended or never was",
                "UPDATE calls SET state = 'done', ended_at = ?, result = ?"
                " WHERE session = ? AND id = ? AND state <> 'done'",
                (now, _encode(result).decode(), session, result.call_id),
            )
        case InboxTaken(turn, ids):
            _take_mail(db, session, turn, ids)
        case InboxDone(ids):
            _finish_mail(db, session, ids)
        case Outgoing(target, body, key, expires_at):
            db.execute(
                "INSERT INTO outbox (session, target, body, key, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?)",
                (session, target, body, key, now, expires_at),
            )
        case Spent() | Released():
            spending.apply(db, session, write, now)
        case _:
            assert_never(write)


def _take_mail(db: Connection, session: SessionId, turn: TurnId, ids: Sequence[InboxId]) -> None:
    for id in ids:
        _move(
            db,
            f"inbox row {id} is not new",
            "UPDATE inbox SET state = 'taken', turn = ? WHERE id = ? AND session = ? AND state = 'new'",
            (turn, id, session),
        )


def _finish_mail(db: Connection, session: SessionId, ids: Sequence[InboxId]) -> None:
    for id in ids:
        _move(
            db,
            f"inbox row {id} is not taken",
            "UPDATE inbox SET state = 'done' WHERE id = ? AND session = ? AND state = 'taken'",
            (id, session),
        )


def _move(db: Connection, refusal: str, sql: str, bindings: tuple[str | int | float, ...]) -> None:
    db.execute(sql, bindings)
    if db.changes() != 1:
        raise BrokenRuleError(refusal)


def append(db: Connection, session: SessionId, entry: Entry, now: float) -> None:
    """One entry at the journal's end, and what the session's row tells of it."""
    row = db.execute(
        "UPDATE sessions SET last_seq = last_seq + 1, updated_at = ?, message_count = message_count + ?"
        " WHERE id = ? RETURNING last_seq, open_turn, preview <> ''",
        (now, isinstance(entry, MessageAdded), session),
    ).fetchone()
    if row is None:
        raise BrokenRuleError(f"no session {session}")
    seq, open_turn, has_preview = cast("tuple[int, str | None, int]", row)
    db.execute(
        "INSERT INTO entries (session, seq, at, body) VALUES (?, ?, ?, ?)",
        (session, seq, now, _encode(entry).decode()),
    )
    match entry:
        case TurnStarted(turn):
            if open_turn is not None:
                raise BrokenRuleError(f"turn {open_turn} has not ended")
            db.execute("UPDATE sessions SET open_turn = ? WHERE id = ?", (turn, session))
        case TurnEnded(turn):
            if open_turn != turn:
                raise BrokenRuleError(f"turn {turn} is not the open one")
            _close_turn(db, session, entry)
        case MessageAdded() if not has_preview and (opening := preview(entry)):
            db.execute("UPDATE sessions SET preview = ? WHERE id = ?", (opening, session))
        case _:
            pass


def _close_turn(db: Connection, session: SessionId, ended: TurnEnded) -> None:
    row = db.execute("SELECT usage FROM sessions WHERE id = ?", (session,)).fetchone()
    spent = _decode_usage(cast("tuple[str]", row)[0]) + ended.usage
    db.execute("UPDATE sessions SET open_turn = NULL, usage = ? WHERE id = ?", (_encode(spent).decode(), session))
