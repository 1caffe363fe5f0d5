"""Spending in memory."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

from talaria.core.clock import Clock
from talaria.core.ids import HoldId, OwnerId, SessionId
from talaria.core.usage import NO_USAGE
from talaria.store.base import Amount, Released, Spent, Totals, UsageKey, UsageRow
from talaria.store.memory.tables import HoldRow, MemoryDatabase, SpendingRow, Tables
from talaria.store.sessions import local_day


class Spending:
    def __init__(self, memory: MemoryDatabase, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock

    async def hold(self, session: SessionId, person: str, owner: OwnerId, decide: Callable[[Totals], Amount]) -> HoldId:
        with self._memory.transaction() as tables:
            tables.holds = {id: row for id, row in tables.holds.items() if row.owner in tables.owners}
            today = local_day(self._clock.now())
            amount = decide(_totals(tables, session, person, today))
            hold = HoldId(tables.next_id())
            tables.holds[hold] = HoldRow(session, person, owner, amount)
        return hold

    async def add(self, session: SessionId, writes: Sequence[Spent | Released]) -> None:
        with self._memory.transaction() as tables:
            now = self._clock.now()
            for write in writes:
                apply(tables, session, write, now)

    async def usage(self, by: UsageKey, since: float = 0.0) -> Sequence[UsageRow]:
        oldest_first = sorted(self._memory.tables.spending, key=lambda row: row.at)
        groups: dict[str, list[SpendingRow]] = {}
        for row in reversed(oldest_first):
            if row.at >= since:
                groups.setdefault(_key(row, by), []).append(row)
        return _ordered([_sum(key, rows) for key, rows in groups.items()], by)


def apply(tables: Tables, session: SessionId, write: Spent | Released, now: float) -> None:
    match write:
        case Spent():
            tables.spending = (*tables.spending, SpendingRow(session, now, local_day(now), write))
        case Released(hold):
            tables.holds.pop(hold, None)
        case _:
            assert_never(write)


def _totals(tables: Tables, session: SessionId, person: str, today: str) -> Totals:
    """What is held counts for today, whenever it was set aside: it will be spent today."""
    all_time = (*tables.spending, *tables.holds.values())
    of_today = (*(row for row in tables.spending if row.day == today), *tables.holds.values())
    return Totals(
        session=_amount(row.amount for row in all_time if row.session == session),
        day=_amount(row.amount for row in of_today),
        person=_amount(row.amount for row in of_today if row.person == person),
    )


def _amount(parts: Iterable[Amount]) -> Amount:
    known = tuple(parts)
    return Amount(sum(part.tokens for part in known), math.fsum(part.cost_usd for part in known))


def _key(row: SpendingRow, by: UsageKey) -> str:
    return {"day": row.day, "model": row.spent.model, "session": row.session}[by]


def _sum(key: str, rows: Sequence[SpendingRow]) -> UsageRow:
    prices = [row.spent.cost_usd for row in rows]
    usage = sum((row.spent.usage for row in rows), start=NO_USAGE)
    return UsageRow(key, len(rows), usage, math.fsum(filter(None, prices)), prices.count(None))


def _ordered(newest_first: list[UsageRow], by: UsageKey) -> list[UsageRow]:
    match by:
        case "day":
            return sorted(newest_first, key=lambda row: row.key, reverse=True)
        case "model":
            return sorted(newest_first, key=lambda row: (-row.cost_usd, -row.usage.total, row.key))
        case "session":
            return newest_first
