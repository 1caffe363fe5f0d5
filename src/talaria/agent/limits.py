"""What may be spent, and what a call may still cost. Pure."""

import math

import msgspec

from talaria.core.errors import LimitReached
from talaria.core.messages import Usage
from talaria.providers.base import Prices
from talaria.store.base import Amount

MIN_OUTPUT = 256
"""An answer shorter than this is not worth its prompt."""
USUAL_OUTPUT = 8_192
"""What an endpoint may write that does not say how much."""


class Cap(msgspec.Struct, frozen=True):
    """None: no end."""

    tokens: int | None = None
    cost_usd: float | None = None

    def __bool__(self) -> bool:
        return self.tokens is not None or self.cost_usd is not None


class Limits(msgspec.Struct, frozen=True):
    max_rounds: int = 60
    max_seconds: float | None = None
    max_wait_s: float = 900.0
    """For failures to pass, in one turn."""
    turn: Cap = Cap()
    session: Cap = Cap()
    day: Cap = Cap()
    person: Cap = Cap()
    """Of one person in one day."""

    @property
    def are_set(self) -> bool:
        """Some cap holds: no answer may be longer than what was set aside for it."""
        return bool(self.turn) or self.are_shared

    @property
    def are_shared(self) -> bool:
        """Other turns count, too: the store has to be asked."""
        return bool(self.session or self.day or self.person)


class PlannedCall(msgspec.Struct, frozen=True):
    """A call to be made: its prompt, and how long its answer may become."""

    prompt: int
    output: int
    prices: Prices | None

    @property
    def amount(self) -> Amount:
        """At worst."""
        return Amount(self.prompt + self.output, cost_usd(Usage(self.prompt, self.output), self.prices) or 0.0)


def cost_usd(usage: Usage, prices: Prices | None) -> float | None:
    """None: nobody knows."""
    if prices is None:
        return None
    read = prices.input if prices.cache_read is None else prices.cache_read
    written = prices.input if prices.cache_write is None else prices.cache_write
    return (
        usage.input * prices.input
        + usage.output * prices.output
        + usage.cache_read * read
        + usage.cache_write * written
    ) / 1_000_000


def fitted(call: PlannedCall, cap: Cap, spent: Amount, whose: str) -> PlannedCall:
    """The call, its answer shortened to what is left. Raises `LimitReached` when that is too little."""
    output = min(call.output, _affordable_output(call, cap, spent))
    if output < min(MIN_OUTPUT, call.output):
        raise LimitReached(_sentence(call, cap, spent, whose))
    return msgspec.structs.replace(call, output=int(output))


def _affordable_output(call: PlannedCall, cap: Cap, spent: Amount) -> float:
    by_tokens = math.inf if cap.tokens is None else cap.tokens - spent.tokens - call.prompt
    if cap.cost_usd is None or call.prices is None:
        return by_tokens
    left_usd = cap.cost_usd - spent.cost_usd - (cost_usd(Usage(call.prompt), call.prices) or 0.0)
    by_money = left_usd * 1_000_000 / call.prices.output if call.prices.output else math.inf if left_usd > 0 else 0.0
    return min(by_tokens, by_money)


def _sentence(call: PlannedCall, cap: Cap, spent: Amount, whose: str) -> str:
    if cap.tokens is not None and cap.tokens - spent.tokens - call.prompt < MIN_OUTPUT:
        used = f"{spent.tokens:,} of {cap.tokens:,} tokens"
        return f"Stopped: {whose} has used {used}, and the next call needs about {call.prompt + MIN_OUTPUT:,}."
    least = cost_usd(Usage(call.prompt, MIN_OUTPUT), call.prices) or 0.0
    used = f"${spent.cost_usd:.2f} of ${cap.cost_usd or 0.0:.2f}"
    return f"Stopped: {whose} has cost {used}, and the next call needs up to ${least:.2f}."
