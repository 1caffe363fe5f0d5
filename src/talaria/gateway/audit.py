"""What the log tells the operator: who did what where, how it ended and what it cost. Only ids, kinds and numbers:
nothing that anybody said, no titles, file names or codes, and no sentence of a service, which might quote them."""

import logging
from typing import Literal

from talaria.core.clock import Clock
from talaria.core.errors import (
    Fenced,
    LimitReached,
    MissingCredential,
    ProviderFailure,
    StoreDamaged,
    StoreUnavailable,
    TalariaError,
)
from talaria.core.ids import SessionId
from talaria.platforms.base import Address, PlatformFailure
from talaria.runtime.turn_runner import Report
from talaria.store.chat_ports import OutboxRow

REFUSALS_EACH_MINUTE = 20
MINUTE_S = 60.0

_OURS = (LimitReached, MissingCredential, StoreDamaged, StoreUnavailable)
"""Errors whose sentence contains only our own words and numbers."""

log = logging.getLogger(__name__)


def log_turn(report: Report, person: str, where: Address, seconds: float) -> None:
    """One line for a turn that has ended, or that is left open on the disk for the next start."""
    is_left = isinstance(report.error, Fenced | StoreUnavailable)
    outcome = "left_open" if is_left else report.outcome
    cost = "unknown" if report.cost_usd is None else f"{report.cost_usd:.4f}"
    error = f" {error_kind(report.error)}" if report.error is not None else ""
    is_trouble = report.outcome == "failed" and not isinstance(report.error, Fenced)
    log.log(
        logging.WARNING if is_trouble else logging.INFO,
        "turn ended: outcome=%s person=%s chat=%s seconds=%.1f model=%s tokens_in=%d tokens_out=%d cost_usd=%s%s",
        *(outcome, person, where, seconds, report.model, report.usage.prompt, report.usage.output, cost, error),
        extra={"session": report.session, "turn": report.turn},
    )


def log_broken_turn(session: SessionId, fault: Exception, person: str, where: Address, seconds: float) -> None:
    """One line for a turn that a bug ended."""
    error = f"error=bug kind={type(fault).__name__}"
    template = "turn ended: outcome=failed person=%s chat=%s seconds=%.1f %s"
    log.warning(template, person, where, seconds, error, extra={"session": session})


def log_handoff(
    session: SessionId,
    platform: str,
    outcome: Literal["completed", "failed"],
    seconds: float,
    error: Exception | None = None,
) -> None:
    """One line for a handoff that has ended."""
    why = f" {error_kind(error)}" if error is not None else ""
    level = logging.INFO if outcome == "completed" else logging.WARNING
    template = "handoff ended: outcome=%s platform=%s seconds=%.1f%s"
    log.log(level, template, outcome, platform, seconds, why, extra={"session": session})


def log_undelivered(row: OutboxRow, why: str) -> None:
    """One line for a reply that is given up. `why` is our own word, or comes from `failure_kind`."""
    template = "reply not delivered: row=%d chat=%s tries=%d error=%s"
    log.warning(template, row.id, row.target, row.attempts, why, extra={"session": row.session})


def failure_kind(fault: PlatformFailure) -> str:
    """Not its sentence, which may quote the service, which may quote what we sent."""
    return type(fault).__name__


def error_kind(error: Exception) -> str:
    kind = f" kind={error.kind}" if isinstance(error, ProviderFailure) else ""
    if not isinstance(error, TalariaError):
        return f"error=bug kind={type(error).__name__}"
    reason = f' reason="{error}"' if isinstance(error, _OURS) else ""
    return f"error={type(error).__name__}{kind}{reason}"


class Refusals:
    """Logs people who wrote to the agent and may not: each once a minute, up to a limit. Neither the log nor memory
    grows with their number."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()
        self._seen: set[tuple[str, Address]] = set()
        self._unlogged = 0

    def add(self, person: str, where: Address) -> None:
        self.flush()
        if (person, where) in self._seen:
            return
        if len(self._seen) >= REFUSALS_EACH_MINUTE:
            self._unlogged += 1
            return
        self._seen.add((person, where))
        log.info("refused: person=%s chat=%s", person, where)

    def flush(self) -> None:
        """Start a new minute if one is over, and log how many lines the last one left out."""
        if self._clock.monotonic() - self._since < MINUTE_S:
            return
        if self._unlogged:
            log.info("refused: %d more messages from people who may not write", self._unlogged)
        self._since, self._unlogged = self._clock.monotonic(), 0
        self._seen.clear()
