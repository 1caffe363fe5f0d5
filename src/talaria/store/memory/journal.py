"""The journal in memory."""

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

import msgspec

from talaria.model.clock import Clock
from talaria.model.compaction import Compacted
from talaria.model.entries import Entry, MessageAdded, Noted, Recorded, RouteChanged, TurnEnded, TurnStarted, Undone
from talaria.model.errors import Fenced
from talaria.model.ids import CallId, Epoch, OwnerId, SessionId, TurnId
from talaria.model.messages import ToolResult
from talaria.store.base import (
    BrokenRuleError,
    CallEnded,
    CallIntended,
    CallRow,
    CallStarted,
    CallState,
    Held,
    Left,
    Released,
    Seized,
    Session,
    Spent,
    Write,
)
from talaria.store.excerpts import preview
from talaria.store.mail import InboxDone, InboxTaken, Outgoing
from talaria.store.memory.inbox import move, waiting
from talaria.store.memory.outbox import post
from talaria.store.memory.spending import apply as apply_spending
from talaria.store.memory.tables import Memory, SessionRow, Tables


class Journal:
    def __init__(self, memory: Memory, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock

    async def seize(self, session: SessionId, owner: OwnerId) -> Epoch | Held:
        with self._memory.transaction() as tables:
            row = tables.row(session)
            if row.owner is not None and row.owner in tables.owners:
                return Held(row.owner)
            epoch = Epoch(row.epoch + 1)
            tables.sessions[session] = replace(row, owner=owner, epoch=epoch)
        return epoch

    async def record(self, session: SessionId, epoch: Epoch, writes: Sequence[Write]) -> bool:
        with self._memory.transaction() as tables:
            match writes:
                case [Seized(owner), *_]:
                    _seize_next(tables, session, epoch, owner)
                case _:
                    _check_epoch(tables, session, epoch)
            now = self._clock.now()
            for write in writes:
                _apply(tables, session, write, now)
            match writes:
                case [*_, Left(leaves_mail)]:
                    return _release(tables, session, leaves_mail=leaves_mail)
                case _:
                    return False

    async def release(self, session: SessionId, epoch: Epoch, *, leaves_mail: bool = False) -> bool:
        with self._memory.transaction() as tables:
            _check_epoch(tables, session, epoch)
            return _release(tables, session, leaves_mail=leaves_mail)

    async def entries(self, session: SessionId, after: int = 0) -> Sequence[Recorded]:
        row = self._memory.tables.sessions.get(session)
        return [recorded for recorded in row.entries if recorded.seq > after] if row else []

    async def calls(self, session: SessionId, turn: TurnId) -> Sequence[CallRow]:
        row = self._memory.tables.sessions.get(session)
        return [call for call in row.calls if call.turn == turn] if row else []

    async def interrupted(self) -> Sequence[SessionId]:
        tables = self._memory.tables
        left = [
            row.session for row in tables.sessions.values() if row.session.open_turn and row.owner not in tables.owners
        ]
        return [session.id for session in sorted(left, key=_activity, reverse=True)]


def _activity(session: Session) -> tuple[float, SessionId]:
    return session.updated_at, session.id


def _seize_next(tables: Tables, session: SessionId, epoch: Epoch, owner: OwnerId) -> None:
    row = tables.sessions.get(session)
    if row is None or row.owner is not None or row.epoch != epoch - 1:
        raise Fenced(f"Session {session} was run by another process meanwhile.")
    tables.sessions[session] = replace(row, owner=owner, epoch=epoch)


def _release(tables: Tables, session: SessionId, *, leaves_mail: bool) -> bool:
    if not leaves_mail and waiting(tables, session):
        return False
    tables.sessions[session] = replace(tables.row(session), owner=None)
    return True


def _check_epoch(tables: Tables, session: SessionId, epoch: Epoch) -> None:
    row = tables.sessions.get(session)
    if row is None or row.owner is None or row.epoch != epoch:
        raise Fenced(f"Session {session} is run by another process now.")


def _apply(tables: Tables, session: SessionId, write: Write, now: float) -> None:
    match write:
        case MessageAdded() | TurnStarted() | TurnEnded() | RouteChanged() | Compacted() | Undone() | Noted():
            append(tables, session, write, now)
        case CallIntended(turn, call):
            _intend(tables, session, CallRow(turn, call, "intent", now, None))
        case CallStarted(call_id):
            _move_call(tables, session, call_id, ("intent",), "started", None)
        case CallEnded(result):
            _move_call(tables, session, result.call_id, ("intent", "started"), "done", result)
        case InboxTaken(turn, ids):
            move(tables, session, ids, "new", "taken", turn)
        case InboxDone(ids):
            move(tables, session, ids, "taken", "done")
        case Outgoing():
            post(tables, session, write, now)
        case Spent() | Released():
            apply_spending(tables, session, write, now)
        case Seized() | Left():
            pass  # before and after all others
        case _:
            assert_never(write)


def _intend(tables: Tables, session: SessionId, call: CallRow) -> None:
    row = tables.row(session)
    if any(known.call.id == call.call.id for known in row.calls):
        raise BrokenRuleError(f"call {call.call.id} is there already")
    tables.sessions[session] = replace(row, calls=(*row.calls, call))


def _move_call(
    tables: Tables,
    session: SessionId,
    id: CallId,
    leaving: tuple[CallState, ...],
    state: CallState,
    result: ToolResult | None,
) -> None:
    row = tables.row(session)
    place = next((n for n, known in enumerate(row.calls) if known.call.id == id and known.state in leaving), None)
    if place is None:
        raise BrokenRuleError(f"call {id} is not at {' or '.join(leaving)}")
    moved = msgspec.structs.replace(row.calls[place], state=state, result=result)
    tables.sessions[session] = replace(row, calls=(*row.calls[:place], moved, *row.calls[place + 1 :]))


def append(tables: Tables, session: SessionId, entry: Entry, now: float) -> None:
    """One entry at the journal's end, and what the session's row tells of it."""
    row = tables.row(session)
    seq = row.entries[-1].seq + 1 if row.entries else 1
    tables.sessions[session] = SessionRow(
        _after(row.session, entry, now),
        row.owner,
        row.epoch,
        (*row.entries, Recorded(seq, now, entry)),
        (*row.places, tables.next_id()),
        row.calls,
        row.handoff,
    )


def _after(session: Session, entry: Entry, now: float) -> Session:
    """The session as it stands once `entry` is in its journal."""
    session = msgspec.structs.replace(session, updated_at=now)
    match entry:
        case TurnStarted(turn):
            if session.open_turn is not None:
                raise BrokenRuleError(f"turn {session.open_turn} has not ended")
            return msgspec.structs.replace(session, open_turn=turn)
        case TurnEnded(turn):
            if session.open_turn != turn:
                raise BrokenRuleError(f"turn {turn} is not the open one")
            return msgspec.structs.replace(session, open_turn=None, usage=session.usage + entry.usage)
        case MessageAdded():
            return msgspec.structs.replace(
                session, message_count=session.message_count + 1, preview=session.preview or preview(entry)
            )
        case RouteChanged() | Compacted() | Undone() | Noted():
            return session
        case _:
            assert_never(entry)
