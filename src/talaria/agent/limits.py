"""Budgets of a turn, checked before each model call."""

import msgspec

from talaria.model.errors import LimitReached
from talaria.model.usage import NO_USAGE, Usage
from talaria.providers.base import Prices


class Limits(msgspec.Struct, frozen=True):
    max_rounds: int = 60
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    max_seconds: float | None = None


class Spent(msgspec.Struct, frozen=True):
    usage: Usage = NO_USAGE
    cost_usd: float = 0.0
    seconds: float = 0.0


def cost_usd(usage: Usage, prices: Prices | None) -> float:
    if prices is None:
        return 0.0
    read = prices.input if prices.cache_read is None else prices.cache_read
    written = prices.input if prices.cache_write is None else prices.cache_write
    return (
        usage.input * prices.input
        + usage.output * prices.output
        + usage.cache_read * read
        + usage.cache_write * written
    ) / 1_000_000


def check(limits: Limits, spent: Spent) -> None:
    """Raises `LimitReached` when another model call would start with a budget already spent."""
    if limits.max_tokens is not None and spent.usage.total >= limits.max_tokens:
        raise LimitReached(f"Stopped: this turn has used {spent.usage.total:,} of {limits.max_tokens:,} tokens.")
    if limits.max_cost_usd is not None and spent.cost_usd >= limits.max_cost_usd:
        raise LimitReached(f"Stopped: this turn has cost ${spent.cost_usd:.2f} of ${limits.max_cost_usd:.2f}.")
    if limits.max_seconds is not None and spent.seconds >= limits.max_seconds:
        raise LimitReached(f"Stopped: this turn has taken {spent.seconds:.0f} of {limits.max_seconds:.0f} seconds.")
