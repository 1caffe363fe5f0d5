"""What a turn may still spend: tokens, money, time, and waiting. Reserved before each call, charged after it."""

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import msgspec

from talaria.core.aio import complete
from talaria.core.clock import Clock
from talaria.core.errors import LimitName, LimitReached, ProviderFailure
from talaria.core.ids import HoldId, OwnerId, SessionId
from talaria.core.messages import NO_USAGE, Assistant, Usage
from talaria.providers.base import Endpoint, ModelRequest, Prices, prompt_tokens
from talaria.providers.message_history import size_tokens
from talaria.store.base import Amount, HoldReleased, Spending, Spent, Totals

MIN_OUTPUT = 256
"""An answer shorter than this is not worth its prompt."""
USUAL_OUTPUT = 8_192
"""For an endpoint that does not name its output limit."""


class Cap(msgspec.Struct, frozen=True):
    """None: no limit."""

    tokens: int | None = None
    cost_usd: float | None = None


NO_CAP = Cap()


def tighter(one: Cap, other: Cap) -> Cap:
    """As much as both allow."""
    tokens = [cap.tokens for cap in (one, other) if cap.tokens is not None]
    money = [cap.cost_usd for cap in (one, other) if cap.cost_usd is not None]
    return Cap(min(tokens, default=None), min(money, default=None))


class Limits(msgspec.Struct, frozen=True):
    max_rounds: int = 60
    max_seconds: float | None = None
    max_wait_s: float = 900.0
    """How long a turn may wait for failures to pass."""
    turn: Cap = NO_CAP
    session: Cap = NO_CAP
    day: Cap = NO_CAP
    person: Cap = NO_CAP
    """For one person in one day."""

    @property
    def are_set(self) -> bool:
        """There is some cap, so no answer may be longer than what was reserved for it."""
        return self.turn != NO_CAP or self.are_shared

    @property
    def are_shared(self) -> bool:
        """Other turns count, too, so the store has to be asked."""
        return self.session != NO_CAP or self.day != NO_CAP or self.person != NO_CAP


class PlannedCall(msgspec.Struct, frozen=True):
    """A planned call: its prompt, and how long its answer may be."""

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


_WHOSE: dict[LimitName, str] = {
    "turn": "this turn",
    "session": "this conversation",
    "day": "all work today",
    "person": "your work today",
}


def fit(call: PlannedCall, cap: Cap, spent: Amount, limit: LimitName) -> PlannedCall:
    """The call, its answer shortened to what is left. Raises `LimitReached` when that is too little."""
    whose = _WHOSE[limit]
    by_tokens = by_money = math.inf
    if cap.tokens is not None:
        by_tokens = cap.tokens - spent.tokens - call.prompt
    if cap.cost_usd is not None and call.prices is not None:
        left_usd = cap.cost_usd - spent.cost_usd - (cost_usd(Usage(call.prompt), call.prices) or 0.0)
        price = call.prices.output
        by_money = left_usd * 1_000_000 / price if price else math.inf if left_usd > 0 else 0.0
    output = min(call.output, by_tokens, by_money)
    if output >= min(MIN_OUTPUT, call.output):
        return msgspec.structs.replace(call, output=int(output))
    if cap.tokens is not None and by_tokens < MIN_OUTPUT:
        used = f"{spent.tokens:,} of {cap.tokens:,} tokens"
        raise LimitReached(
            f"Stopped: {whose} has used {used}, and the next call needs about {call.prompt + MIN_OUTPUT:,}.", limit
        )
    least = cost_usd(Usage(call.prompt, MIN_OUTPUT), call.prices) or 0.0
    used = f"${spent.cost_usd:.2f} of ${cap.cost_usd or 0.0:.2f}"
    raise LimitReached(f"Stopped: {whose} has cost {used}, and the next call needs up to ${least:.2f}.", limit)


class Account(msgspec.Struct, frozen=True):
    """Who pays, and where that is recorded."""

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
        """The request, its answer limited to what may still be spent. Raises `LimitReached` if that is too little."""
        self.check()
        limits = self._limits
        outputs = [output for output in (endpoint.max_output, request.max_output) if output is not None]
        wanted = PlannedCall(prompt_tokens(request), min(outputs, default=USUAL_OUTPUT), endpoint.prices)
        call = fit(wanted, limits.turn, Amount(self.usage.total, self._cost_usd), "turn")
        if limits.are_shared:
            # What all caps have room for is reserved in one transaction, so nobody else can take it.
            account = self._account
            await self.release()
            held: list[PlannedCall] = []

            def decide(totals: Totals) -> Amount:
                fits = fit(call, limits.session, totals.session, "session")
                fits = fit(fits, limits.day, totals.day, "day")
                fits = fit(fits, limits.person, totals.person, "person")
                held.append(fits)
                return fits.amount

            self._holds.append(await account.spending.hold(account.session, account.person, account.owner, decide))
            call = held[-1]
        max_output = call.output if limits.are_set else request.max_output
        return msgspec.structs.replace(request, max_output=max_output, seconds=self._seconds_left)

    async def release(self) -> None:
        """After a failed call: free what was reserved for it, and record what it used."""
        if self._limits.are_shared:
            await self.book()

    async def book(self) -> None:
        """Record now what will not be part of any other record."""
        if self.writes:
            await complete(self._book())

    async def _book(self) -> None:
        writes = self.writes
        await self._account.spending.add(self._account.session, writes)
        self.mark_recorded(writes)

    def add_usage(self, usage: Usage, endpoint: Endpoint) -> None:
        """Also counts what the turn used before a crash. The time that passed since does not count."""
        cost = cost_usd(usage, endpoint.prices)
        self.usage += usage
        self._cost_usd += cost or 0.0
        self._is_priced = self._is_priced and cost is not None

    def charge(self, answer: Assistant, endpoint: Endpoint, request: ModelRequest) -> None:
        """If the endpoint does not report usage, it is estimated from the request and the answer."""
        usage = answer.usage or Usage(prompt_tokens(request), size_tokens(answer))
        self.add_usage(usage, endpoint)
        cost = cost_usd(usage, endpoint.prices)
        self._unrecorded.append(Spent(endpoint.label, self._account.person, self._account.purpose, usage, cost))

    @property
    def cost_usd(self) -> float | None:
        """None: the price of some call is unknown."""
        return self._cost_usd if self._is_priced else None

    @property
    def writes(self) -> Sequence[Spent | HoldReleased]:
        """What was spent since the last record, to be part of the next; call `mark_recorded` afterwards."""
        return (*self._unrecorded, *(HoldReleased(hold) for hold in self._holds))

    def mark_recorded(self, writes: Sequence[object]) -> None:
        """These writes are durable now."""
        self._unrecorded = [spent for spent in self._unrecorded if spent not in writes]
        self._holds = [hold for hold in self._holds if HoldReleased(hold) not in writes]

    def check(self) -> None:
        """Raises `LimitReached` when the turn's time is over."""
        left_s = self._seconds_left
        if left_s is not None and left_s <= 0:
            limit_s = self._limits.max_seconds or 0.0
            raise LimitReached(f"Stopped: this turn has taken {limit_s - left_s:.0f} of {limit_s:.0f} seconds.", "turn")

    @contextmanager
    def count_as_wait(self) -> Generator[None]:
        """The time spent inside counts as waiting."""
        began = self._clock.monotonic()
        try:
            yield
        finally:
            self._waited_s += self._clock.monotonic() - began

    @contextmanager
    def count_failures_as_wait(self) -> Generator[None]:
        """The time before a failure counts as waiting: an endpoint may hang for minutes first."""
        began = self._clock.monotonic()
        try:
            yield
        except ProviderFailure:
            self._waited_s += self._clock.monotonic() - began
            raise

    async def wait(self, seconds: float) -> None:
        """Wait for a failure to pass."""
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
