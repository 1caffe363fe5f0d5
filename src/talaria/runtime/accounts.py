"""What model calls used and cost, in words."""

import math
import time
from collections.abc import Sequence

from talaria.core.ids import SessionId
from talaria.core.messages import NO_USAGE, Usage
from talaria.store.base import Spending, UsageRow

TRIALS = SessionId("model-try")
"""Trials of models are counted under this id, which no conversation has."""


async def summary(spending: Spending, session: SessionId, now: float) -> str:
    """One conversation and today, a line each."""
    ours = [row for row in await spending.usage("session") if row.key == session]
    today = await spending.usage("day", midnight(now))
    return f"This conversation: {phrase(total(ours))}\nToday: {phrase(total(today))}"


def dollars(cost_usd: float) -> str:
    """A small cost never looks like none."""
    if 0 < cost_usd < 0.0001:
        return "<$0.0001"
    return f"${cost_usd:.4f}" if 0 < cost_usd < 1 else f"${cost_usd:,.2f}"


def midnight(now: float, days_before: int = 0) -> float:
    """When the day began, in local time."""
    day = time.localtime(now)
    return time.mktime((day.tm_year, day.tm_mon, day.tm_mday - days_before, 0, 0, 0, 0, 0, -1))


def total(rows: Sequence[UsageRow]) -> UsageRow:
    return UsageRow(
        "total",
        sum(row.calls for row in rows),
        sum((row.usage for row in rows), NO_USAGE),
        math.fsum(row.cost_usd for row in rows),
        sum(row.unpriced_calls for row in rows),
    )


def cache_share(usage: Usage) -> float | None:
    return usage.cache_read / usage.prompt if usage.prompt else None


def phrase(row: UsageRow) -> str:
    if not row.calls:
        return "no model calls yet."
    usage, share = row.usage, cache_share(row.usage)
    cached = f" ({share:.0%} from a cache)" if share else ""
    tokens = f"{usage.prompt:,} tokens in{cached}, {usage.output:,} out"
    return f"{calls(row.calls)} · {tokens} · {cost_phrase(row)}"


def cost_phrase(row: UsageRow) -> str:
    if row.unpriced_calls == row.calls:
        return "cost unknown"
    unpriced = f" + {calls(row.unpriced_calls)} without a known price" if row.unpriced_calls else ""
    return dollars(row.cost_usd) + unpriced


def calls(count: int) -> str:
    return f"{count:,} call{'' if count == 1 else 's'}"
