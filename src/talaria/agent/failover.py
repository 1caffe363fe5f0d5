"""Does what may help after a failed model call, as `retry` decides it."""

import logging
import random
from collections.abc import Awaitable
from typing import assert_never

from talaria.agent.compaction import make_room
from talaria.agent.retry import Decision, Mend, Reconnect, Retry, decide
from talaria.agent.turn import Sink, Turn
from talaria.core.entries import RouteChanged
from talaria.core.errors import ProviderFailure
from talaria.core.events import AnswerRestarted, Notice, RouteSwitched
from talaria.providers.base import Endpoint

log = logging.getLogger(__name__)


async def heal(turn: Turn, failure: ProviderFailure, sink: Sink) -> None:
    """So that the next attempt can be made. Raises `failure` when there is nothing left to do."""
    turn.walk.failed()
    await turn.budget.release()
    while True:
        standing = turn.walk.standing(turn.budget.seconds_for_waiting)
        decision = decide(failure, standing, random.random())  # noqa: S311  (jitter)
        log.info(
            "%s failed with %s (%s); next: %s",
            *(turn.walk.endpoint.label, type(failure).__name__, failure.kind),
            decision if isinstance(decision, str) else type(decision).__name__.lower(),
        )
        if decision == "give_up":
            turn.walk.give_up(failure)
            raise _final(turn, failure)
        sink.emit(AnswerRestarted(str(failure)))
        if await _carry_out(decision, turn, failure, sink):
            return


async def _carry_out(decision: Decision, turn: Turn, failure: ProviderFailure, sink: Sink) -> bool:
    """False: it did not help, something else must."""
    walk = turn.walk
    match decision:
        case Mend(repair):
            walk.mend(repair)
            walk.forgive()
        case "compact":
            has_helped = await make_room(turn, sink, has_overflowed=True)
            walk.shortened(has_helped=has_helped)
            return has_helped
        case "refresh_key":
            walk.forgive()
            return await _helped(walk.refresh_key())
        case "rotate_key":
            sink.emit(Notice(f"{failure} Trying another key."))
            walk.rotate_key(failure)
        case Retry(delay_s):
            sink.emit(Notice(f"{failure} Trying again in {delay_s:.0f} s."))
            await turn.budget.wait(delay_s)
        case Reconnect(delay_s):
            if not await _helped(walk.reconnect()):
                return False
            sink.emit(Notice(f"{failure} Trying new connections in {delay_s:.0f} s."))
            await turn.budget.wait(delay_s)
        case "fall_back":
            before = walk.endpoint
            walk.fall_back(failure)
            await announce(turn, before, str(failure), sink)
        case "give_up":
            return False
        case _:
            assert_never(decision)
    return True


async def _helped(remedy: Awaitable[bool]) -> bool:
    """A remedy that fails itself is none; the failure that it was for says what is wrong."""
    try:
        return await remedy
    except Exception as fault:  # noqa: BLE001  (whoever wrote the provider)
        log.warning("a remedy failed: %r", fault)
        return False


async def announce(turn: Turn, before: Endpoint, reason: str, sink: Sink) -> None:
    """The turn goes on elsewhere: the journal keeps it, and people are told."""
    now = turn.walk.endpoint
    await sink.record(RouteChanged(turn.id, before.label, now.label, reason))
    sink.emit(RouteSwitched(before.label, now.label, reason, now.window, now.compact_at))


def _final(turn: Turn, failure: ProviderFailure) -> ProviderFailure:
    """The failure, with those of the endpoints that were tried before."""
    mishaps = turn.walk.mishaps
    if len(mishaps) > 1:
        failure.args = (f"No model answered. {' '.join(map(str, mishaps))}",)
    return failure
