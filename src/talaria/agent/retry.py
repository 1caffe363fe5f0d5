"""What to do about a failed model call. Pure.

In this order: mend the request, shorten it, use another key, wait and ask again, reconnect, try another endpoint, give
up.
"""

from typing import Literal

import msgspec

from talaria.core.errors import ProviderFailure, Repair
from talaria.providers.provider_failures import TREATMENTS, Treatment

FIRST_BACKOFF_S = 2.0
MAX_BACKOFF_S = 60.0
MAX_RETRY_AFTER_S = 600.0
SHORT_WAIT_S = 10.0
"""How long to wait for a key that is told to slow down, even if there is another one."""


class Retry(msgspec.Struct, frozen=True):
    delay_s: float


class Mend(msgspec.Struct, frozen=True):
    repair: Repair


class Reconnect(msgspec.Struct, frozen=True):
    delay_s: float


Decision = Retry | Mend | Reconnect | Literal["compact", "refresh_key", "rotate_key", "fall_back", "give_up"]


class AttemptState(msgspec.Struct, frozen=True):
    """Where a turn is on its route when a call fails."""

    failures: int = 1
    """At this endpoint, since the turn came to it or reconnected, including this one."""
    max_attempts: int = 3
    failures_of_key: int = 1
    has_other_key: bool = False
    can_refresh: bool = False
    may_reconnect: bool = False
    repairs: frozenset[Repair] = frozenset()
    may_compact: bool = False
    has_fallback: bool = False
    has_wider_fallback: bool = False
    seconds_left: float | None = None
    """How long the turn may still wait; None: without limit."""


def decide(failure: ProviderFailure, at: AttemptState, jitter: float) -> Decision:
    """`jitter` is from [0, 1)."""
    treatment = TREATMENTS[failure.kind]
    repair = failure.repair
    if repair is not None and not at.repairs.issuperset((repair,)):
        return Mend(repair)
    if treatment.compact and at.may_compact:
        return "compact"
    delay_s = _delay_s(failure, at.failures, jitter)
    by_key = _by_key(failure, treatment, at, delay_s)
    if by_key is not None:
        return by_key
    may_fall_back = at.has_wider_fallback if treatment.fall_back == "wider" else at.has_fallback
    if treatment.fall_back in ("at_once", "wider") and may_fall_back:
        return "fall_back"
    if treatment.retry and at.failures < at.max_attempts and _fits(delay_s, at):
        return Retry(delay_s)
    if treatment.reconnect and at.may_reconnect and _fits(reconnect_delay_s(at.failures), at):
        return Reconnect(reconnect_delay_s(at.failures))
    return "fall_back" if treatment.fall_back == "after_retries" and may_fall_back else "give_up"


def reconnect_delay_s(failures: int) -> float:
    return min(3.0 + failures, 8.0)


def _by_key(failure: ProviderFailure, treatment: Treatment, at: AttemptState, delay_s: float) -> Decision | None:
    if failure.kind == "auth" and at.can_refresh:
        return "refresh_key"
    if not at.has_other_key or treatment.rotate == "never":
        return None
    is_worth_waiting = treatment.rotate == "second" and at.failures_of_key < 2 and delay_s <= SHORT_WAIT_S
    if is_worth_waiting and at.failures < at.max_attempts and _fits(delay_s, at):
        return Retry(delay_s)
    return "rotate_key"


def _delay_s(failure: ProviderFailure, failures: int, jitter: float) -> float:
    if failure.retry_after_s is not None:
        return min(max(0.0, failure.retry_after_s), MAX_RETRY_AFTER_S)
    backoff_s = min(FIRST_BACKOFF_S * 2 ** (failures - 1), MAX_BACKOFF_S)
    return backoff_s + jitter * backoff_s / 2


def _fits(delay_s: float, at: AttemptState) -> bool:
    return at.seconds_left is None or delay_s < at.seconds_left
