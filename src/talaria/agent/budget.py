"""What a turn may still spend: tokens, money, time, and waiting. Reserved before each call, charged after it."""

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import msgspec

from talaria.core.aio import complete
from talaria.core.clock import Clock
from talaria.core.errors import LimitReached, ProviderFailure
from talaria.core.ids import HoldId, OwnerId, SessionId
from talaria.core.messages import NO_USAGE, Assistant, Usage
from talaria.providers.base import Endpoint, ModelRequest, Prices, prompt_tokens
from talaria.providers.message_history import size_tokens
from talaria.store.base import Amount, HoldReleased, Spending, Spent, Totals

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
    """None: unknown."""
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


def fit(call: PlannedCall, cap: Cap, spent: Amount, whose: str) -> PlannedCall:
    """The call, its answer shortened to what is left. Raises `LimitReached` when that is too little."""
    output = min(call.output, _affordable_output(call, cap, spent))
    if output < min(MIN_OUTPUT, call.output):
        raise LimitReached(_explain_limit(call, cap, spent, whose))
    return msgspec.structs.replace(call, output=int(output))


def _affordable_output(call: PlannedCall, cap: Cap, spent: Amount) -> float:
    by_tokens = math.inf if cap.tokens is None else cap.tokens - spent.tokens - call.prompt
    if cap.cost_usd is None or call.prices is None:
        return by_tokens
    left_usd = cap.cost_usd - spent.cost_usd - (cost_usd(Usage(call.prompt), call.prices) or 0.0)
    by_money = left_usd * 1_000_000 / call.prices.output if call.prices.output else math.inf if left_usd > 0 else 0.0
    return min(by_tokens, by_money)


def _explain_limit(call: PlannedCall, cap: Cap, spent: Amount, whose: str) -> str:
    if cap.tokens is not None and cap.tokens - spent.tokens - call.prompt < MIN_OUTPUT:
        used = f"{spent.tokens:,} of {cap.tokens:,} tokens"
        return f"Stopped: {whose} has used {used}, and the next call needs about {call.prompt + MIN_OUTPUT:,}."
    least = cost_usd(Usage(call.prompt, MIN_OUTPUT), call.prices) or 0.0
    used = f"${spent.cost_usd:.2f} of ${cap.cost_usd or 0.0:.2f}"
    return f"Stopped: {whose} has cost {used}, and the next call needs up to ${least:.2f}."


class Account(msgspec.Struct, frozen=True):
    """Who pays, and where it is written down."""

    spending: Spending
    session: SessionId
    owner: OwnerId
    person: str
    purpose: str = "turn"


class Budget:
    def __init__(self, limits: Limits, account: Account, clock: Clock) -> None:
        self.usage: Usage = NO_USAGE
        self._limits = limits
        self._account = account
        self._clock = clock
        self._cost_usd = 0.0
        self._is_priced = True
        self._began = clock.monotonic()
        self._waited_s = 0.0
        self._unrecorded: list[Spent] = []
        self._holds: list[HoldId] = []

    async def reserve(self, endpoint: Endpoint, request: ModelRequest) -> ModelRequest:
        """The request as far as it may be paid for. Raises `LimitReached` when that is not far enough."""
        self.check()
        limits = [limit for limit in (endpoint.max_output, request.max_output) if limit is not None]
        wanted = PlannedCall(prompt_tokens(request), min(limits, default=USUAL_OUTPUT), endpoint.prices)
        call = fit(wanted, self._limits.turn, Amount(self.usage.total, self._cost_usd), "this turn")
        if self._limits.are_shared:
            # The part of it that all caps have room for, set aside in one transaction: nobody else can take it.
            account = self._account
            await self.release()
            held: list[PlannedCall] = []

            def decide(totals: Totals) -> Amount:
                fits = call
                for cap, spent, whose in self._list_shared_caps(totals):
                    fits = fit(fits, cap, spent, whose)
                held.append(fits)
                return fits.amount

            self._holds.append(await account.spending.hold(account.session, account.person, account.owner, decide))
            call = held[-1]
        told = call.output if self._limits.are_set else request.max_output
        return msgspec.structs.replace(request, max_output=told, seconds=self._seconds_left)

    async def release(self) -> None:
        """What was set aside for a call that failed is free again, and what it used is written down."""
        if self._limits.are_shared:
            await self.book()

    async def book(self) -> None:
        """Write down at once what no record of a turn will."""
        if self.writes:
            await complete(self._book())

    async def _book(self) -> None:
        writes = self.writes
        await self._account.spending.add(self._account.session, writes)
        self.mark_recorded(writes)

    def _list_shared_caps(self, totals: Totals) -> Sequence[tuple[Cap, Amount, str]]:
        limits = self._limits
        return (
            (limits.session, totals.session, "this conversation"),
            (limits.day, totals.day, "this day"),
            (limits.person, totals.person, "your part of this day"),
        )

    def add_usage(self, usage: Usage, endpoint: Endpoint) -> None:
        """What the turn had used before a crash counts against its limits. The time that passed does not."""
        cost = cost_usd(usage, endpoint.prices)
        self.usage += usage
        self._cost_usd += cost or 0.0
        self._is_priced = self._is_priced and cost is not None

    def charge(self, answer: Assistant, endpoint: Endpoint, request: ModelRequest) -> None:
        """An endpoint that does not count is believed to have read and written what we see."""
        usage = answer.usage or Usage(prompt_tokens(request), size_tokens(answer))
        self.add_usage(usage, endpoint)
        cost = cost_usd(usage, endpoint.prices)
        self._unrecorded.append(Spent(endpoint.label, self._account.person, self._account.purpose, usage, cost))

    @property
    def cost_usd(self) -> float | None:
        """None: a call was made whose price is not known."""
        return self._cost_usd if self._is_priced else None

    @property
    def writes(self) -> Sequence[Spent | HoldReleased]:
        """What was spent since the last record, for the next one; `mark_recorded` is called afterwards."""
        return (*self._unrecorded, *(HoldReleased(hold) for hold in self._holds))

    def mark_recorded(self, writes: Sequence[object]) -> None:
        """These are durable now."""
        self._unrecorded = [spent for spent in self._unrecorded if spent not in writes]
        self._holds = [hold for hold in self._holds if HoldReleased(hold) not in writes]

    def check(self) -> None:
        """Raises `LimitReached` when the turn's time is over."""
        left_s = self._seconds_left
        if left_s is not None and left_s <= 0:
            limit_s = self._limits.max_seconds or 0.0
            raise LimitReached(f"Stopped: this turn has taken {limit_s - left_s:.0f} of {limit_s:.0f} seconds.")

    @contextmanager
    def count_as_wait(self) -> Generator[None]:
        """What is done inside takes from the turn's patience, too."""
        began = self._clock.monotonic()
        try:
            yield
        finally:
            self._waited_s += self._clock.monotonic() - began

    @contextmanager
    def count_failures_as_wait(self) -> Generator[None]:
        """An endpoint that hangs for minutes before it fails has been waited for."""
        began = self._clock.monotonic()
        try:
            yield
        except ProviderFailure:
            self._waited_s += self._clock.monotonic() - began
            raise

    async def wait(self, seconds: float) -> None:
        """For a failure to pass."""
        self._waited_s += seconds
        await self._clock.sleep(seconds)

    @property
    def seconds_for_waiting(self) -> float:
        patience_s = self._limits.max_wait_s - self._waited_s
        return patience_s if self._seconds_left is None else min(patience_s, self._seconds_left)

    @property
    def _seconds_left(self) -> float | None:
        if self._limits.max_seconds is None:
            return None
        return self._limits.max_seconds - (self._clock.monotonic() - self._began)
