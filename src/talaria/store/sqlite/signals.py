"""Signals: what people ask of a turn that runs. Each leaves `new` once."""

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from talaria.core.clock import Clock
from talaria.core.ids import SessionId
from talaria.store.session_rules import unknown_session
from talaria.store.signal_port import NewSignal, Signal, SignalId
from talaria.store.sqlite.connection import SqliteConnection, step
from talaria.store.sqlite.database import Database

# In the order of the fields of `NewSignal` and `Signal`.
_SENT_COLUMNS = "key, session, turn, kind, person, surface, text, question, answer"
_COLUMNS = f"{_SENT_COLUMNS}, id, state, created_at, outcome"


class Signals:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def send(self, new: NewSignal) -> Signal:
        def work(db: SqliteConnection) -> Signal:
            if (known := _find(db, new.key)) is not None:
                return known
            row = db.execute(
                f"INSERT INTO signals ({_SENT_COLUMNS}, created_at) SELECT ?1, id, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10"
                f" FROM sessions WHERE id = ?2 RETURNING {_COLUMNS}",
                (*msgspec.structs.astuple(new), self._clock.now()),
            ).fetchone()
            if row is None:
                raise unknown_session(new.session)
            return Signal(*row)

        return await self._database.write(work)

    async def list_new(self, sessions: Collection[SessionId]) -> Sequence[Signal]:
        chosen = "state = 'new' AND session IN (SELECT value FROM json_each(?))"
        sql = f"SELECT {_COLUMNS} FROM signals WHERE {chosen} ORDER BY id"
        return [Signal(*row) for row in await self._database.rows(sql, (msgspec.json.encode([*sessions]).decode(),))]

    async def settle(self, id: SignalId, state: Literal["obeyed", "late"], outcome: str = "") -> bool:
        sql = "UPDATE signals SET state = ?, outcome = ? WHERE id = ? AND state = 'new'"
        return await self._database.change(sql, (state, outcome, id)) == 1

    async def find(self, key: str) -> Signal | None:
        return await self._database.read(lambda db: _find(db, key))

    async def prune(self, before: float) -> int:
        return await self._database.change("DELETE FROM signals WHERE state <> 'new' AND created_at < ?", (before,))


def list_sent(db: SqliteConnection, person: str) -> list[Signal]:
    return [Signal(*row) for row in db.execute(f"SELECT {_COLUMNS} FROM signals WHERE person = ?", (person,))]


def obey(db: SqliteConnection, session: SessionId, id: SignalId) -> None:
    step(
        db,
        f"signal {id} is not new",
        "UPDATE signals SET state = 'obeyed' WHERE id = ? AND session = ? AND state = 'new'",
        (id, session),
    )


def _find(db: SqliteConnection, key: str) -> Signal | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM signals WHERE key = ?", (key,)).fetchone()
    return Signal(*row) if row else None
