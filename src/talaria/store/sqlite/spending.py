"""Spending: what model calls have used, and what is reserved for those in progress."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import assert_never

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import StoreUnavailable
from talaria.core.ids import HoldId, OwnerId, SessionId
from talaria.core.messages import Usage
from talaria.store.base import Amount, HoldReleased, Spent, Totals, UsageKey, UsageRow
from talaria.store.session_rules import local_day
from talaria.store.sqlite.connection import SqliteConnection, Value
from talaria.store.sqlite.database import Database
from talaria.store.sqlite.presence import Presence

_TOKENS = "input + output + cache_read + cache_write"
_ORDER: dict[UsageKey, str] = {
    "day": "day DESC",
    "model": f"total(cost_usd) DESC, sum({_TOKENS}) DESC, model",
    "session": "max(at) DESC, max(id) DESC",
}


class Spending:
    def __init__(self, database: Database, presence: Presence, clock: Clock) -> None:
        self._database = database
        self._presence = presence
        self._clock = clock

    async def hold(self, session: SessionId, person: str, owner: OwnerId, decide: Callable[[Totals], Amount]) -> HoldId:
        made: list[HoldId] = []

        def work(db: SqliteConnection) -> HoldId:
            holders = db.execute("SELECT DISTINCT owner FROM holds").fetchall()
            dead = [(owner,) for (owner,) in holders if not self._presence.is_alive(owner)]
            db.executemany("DELETE FROM holds WHERE owner = ?", dead)
            today = local_day(self._clock.now())
            totals = Totals(  # what is held counts for today, whenever it was set aside: it will be spent today
                session=_amount(db, "session = ?1", "session = ?1", session),
                day=_amount(db, "day = ?1", "true", today),
                person=_amount(db, "day = ?1 AND person = ?2", "person = ?2", today, person),
            )
            amount = decide(totals)
            row = db.execute(
                "INSERT INTO holds (session, person, owner, tokens, cost_usd) VALUES (?, ?, ?, ?, ?) RETURNING id",
                (session, person, owner, amount.tokens, amount.cost_usd),
            )
            made.append(HoldId(row.get))
            return made[-1]

        try:
            return await self._database.write(work)
        except asyncio.CancelledError:  # durable, but its number reaches nobody who could release it
            with suppress(StoreUnavailable):
                await self._database.write(lambda db: _release(db, made[-1]))
            raise

    async def add(self, session: SessionId, writes: Sequence[Spent | HoldReleased]) -> None:
        def work(db: SqliteConnection) -> None:
            now = self._clock.now()
            for write in writes:
                record_spending(db, session, write, now)

        await self._database.write(work)

    async def usage(self, by: UsageKey, since: float = 0.0) -> Sequence[UsageRow]:
        rows = await self._database.rows(
            f"SELECT {by}, count(*), sum(input), sum(output), sum(cache_read), sum(cache_write), sum(reasoning),"
            " total(cost_usd), count(*) - count(cost_usd)"
            f" FROM spending WHERE at >= ? GROUP BY {by} ORDER BY {_ORDER[by]}",
            (since,),
        )
        return [UsageRow(key, calls, Usage(*usage), cost, unpriced) for key, calls, *usage, cost, unpriced in rows]


def record_spending(db: SqliteConnection, session: SessionId, write: Spent | HoldReleased, now: float) -> None:
    match write:
        case Spent():
            usage = msgspec.structs.astuple(write.usage)
            db.execute(
                "INSERT INTO spending (session, at, day, person, model, purpose, input, output, cache_read,"
                " cache_write, reasoning, cost_usd) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (session, now, local_day(now), write.person, write.model, write.purpose, *usage, write.cost_usd),
            )
        case HoldReleased(hold):
            _release(db, hold)
        case _:
            assert_never(write)


def _release(db: SqliteConnection, hold: HoldId) -> None:
    """A hold that is gone was deleted with its owner or its session."""
    db.execute("DELETE FROM holds WHERE id = ?", (hold,))


def _amount(db: SqliteConnection, spent: str, held: str, *values: Value) -> Amount:
    """The sum over the rows of both tables that meet the conditions."""
    [row] = db.execute(
        "SELECT coalesce(sum(tokens), 0), total(cost_usd) FROM ("
        f"SELECT {_TOKENS} AS tokens, cost_usd FROM spending WHERE {spent}"
        f" UNION ALL SELECT tokens, cost_usd FROM holds WHERE {held})",
        values,
    )
    return Amount(*row)
