"""The journal in memory."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, assert_never

import msgspec

from talaria.core.clock import Clock
from talaria.core.entries import Entry, Recorded
from talaria.core.errors import Fenced
from talaria.core.ids import CallId, Epoch, OwnerId, SessionId, TurnId
from talaria.store.base import (
    BrokenRuleError,
    CallEnded,
    CallIntended,
    CallRow,
    CallStarted,
    CallState,
    Change,
    Held,
    Left,
    Released,
    Seized,
    Spent,
    Write,
)
from talaria.store.mail import InboxDone, InboxTaken, Outgoing
from talaria.store.memory.mail import move, post, waiting
from talaria.store.memory.spending import apply as apply_spending
from talaria.store.memory.tables import MemoryDatabase, Tables
from talaria.store.sessions import Head


class Journal:
    def __init__(self, memory: MemoryDatabase, clock: Clock) -> None:
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
            append(tables, session, [(write, now) for write in writes if isinstance(write, Entry)])
            for write in writes:
                if not isinstance(write, Entry):
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

    async def latest(self, session: SessionId, limit: int) -> Sequence[Recorded]:
        row = self._memory.tables.sessions.get(session)
        return list(row.entries[-limit:]) if row else []

    async def calls(self, session: SessionId, turn: TurnId) -> Sequence[CallRow]:
        row = self._memory.tables.sessions.get(session)
        return [call for call in row.calls.values() if call.turn == turn] if row else []

    async def interrupted(self) -> Sequence[SessionId]:
        tables = self._memory.tables
        left = [
            row.session for row in tables.sessions.values() if row.session.open_turn and row.owner not in tables.owners
        ]
        newest_first = sorted(left, key=lambda session: (session.updated_at, session.id), reverse=True)
        return [session.id for session in newest_first]


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


def _apply(tables: Tables, session: SessionId, write: Change, now: float) -> None:
    match write:
        case CallIntended(turn, call):
            _intend(tables, session, CallRow(turn, call, "intent", now, None))
        case CallStarted(call_id):
            _move_call(tables, session, call_id, ("intent",), state="started")
        case CallEnded(result):
            _move_call(tables, session, result.call_id, ("intent", "started"), state="done", result=result)
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
    if call.call.id in row.calls:
        raise BrokenRuleError(f"call {call.call.id} is there already")
    tables.sessions[session] = replace(row, calls={**row.calls, call.call.id: call})


def _move_call(tables: Tables, session: SessionId, id: CallId, leaving: tuple[CallState, ...], **changes: Any) -> None:
    row = tables.row(session)
    call = row.calls.get(id)
    if call is None or call.state not in leaving:
        raise BrokenRuleError(f"call {id} is not at {' or '.join(leaving)}")
    tables.sessions[session] = replace(row, calls={**row.calls, id: msgspec.structs.replace(call, **changes)})


def append(tables: Tables, session: SessionId, entries: Sequence[tuple[Entry, float]]) -> None:
    """Entries with their times at the journal's end, and what the session's row tells of them."""
    row = tables.row(session)
    head = Head(row.session.open_turn, row.session.preview)
    for entry, _ in entries:
        head.add(entry)
    after = msgspec.structs.replace(
        row.session,
        updated_at=entries[-1][1] if entries else row.session.updated_at,
        open_turn=head.open_turn,
        message_count=row.session.message_count + head.messages,
        preview=head.preview,
        usage=row.session.usage + head.usage,
    )
    added = [Recorded(seq, at, entry) for seq, (entry, at) in enumerate(entries, len(row.entries) + 1)]
    tables.sessions[session] = replace(
        row,
        session=after,
        entries=(*row.entries, *added),
        places=(*row.places, *(tables.next_id() for _ in added)),
    )
