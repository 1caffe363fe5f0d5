"""Signals in memory."""

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from talaria.core.clock import Clock
from talaria.core.ids import SessionId
from talaria.store.base import BrokenRuleError
from talaria.store.memory.memory_tables import MemoryDatabase, Tables
from talaria.store.session_rules import unknown_session
from talaria.store.signal_port import NewSignal, Signal, SignalId


class Signals:
    def __init__(self, memory: MemoryDatabase, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock

    async def send(self, new: NewSignal) -> Signal:
        with self._memory.transaction() as tables:
            if (known := _of_key(tables, new.key)) is not None:
                return known
            if new.session not in tables.sessions:
                raise unknown_session(new.session)
            id = SignalId(tables.next_id())
            tables.signals[id] = Signal(**msgspec.structs.asdict(new), id=id, created_at=self._clock.now())
            return tables.signals[id]

    async def list_new(self, sessions: Collection[SessionId]) -> Sequence[Signal]:
        return [row for row in self._memory.tables.signals.values() if row.state == "new" and row.session in sessions]

    async def settle(self, id: SignalId, state: Literal["obeyed", "late"], outcome: str = "") -> bool:
        with self._memory.transaction() as tables:
            row = tables.signals.get(id)
            if row is None or row.state != "new":
                return False
            tables.signals[id] = msgspec.structs.replace(row, state=state, outcome=outcome)
        return True

    async def find(self, key: str) -> Signal | None:
        return _of_key(self._memory.tables, key)

    async def prune(self, before: float) -> int:
        with self._memory.transaction() as tables:
            old = [row.id for row in tables.signals.values() if row.state != "new" and row.created_at < before]
            for id in old:
                del tables.signals[id]
        return len(old)


def obey(tables: Tables, session: SessionId, id: SignalId) -> None:
    row = tables.signals.get(id)
    if row is None or row.session != session or row.state != "new":
        raise BrokenRuleError(f"signal {id} is not new")
    tables.signals[id] = msgspec.structs.replace(row, state="obeyed")


def _of_key(tables: Tables, key: str) -> Signal | None:
    return next((row for row in tables.signals.values() if row.key == key), None)
