"""What to do about a failed model call: pure, tested without a network."""

from dataclasses import dataclass

from talaria.model.errors import Transient

MAX_ATTEMPTS = 4
MAX_BACKOFF_S = 60.0
MAX_RETRY_AFTER_S = 600.0


@dataclass(frozen=True, slots=True)
class Retry:
    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    pass


def decide(failure: Transient, attempt: int, jitter: float, seconds_left: float | None) -> Retry | GiveUp:
    """`attempt` counts from 1; `jitter` is from [0, 1); `seconds_left` of the turn's budget, if it has one."""
    if attempt >= MAX_ATTEMPTS:
        return GiveUp()
    backoff_s = min(2.0 * 2 ** (attempt - 1), MAX_BACKOFF_S)
    delay_s = backoff_s + jitter * backoff_s / 2
    if failure.retry_after_s is not None:
        delay_s = min(failure.retry_after_s, MAX_RETRY_AFTER_S)
    if seconds_left is not None and delay_s >= seconds_left:
        return GiveUp()
    return Retry(delay_s)
