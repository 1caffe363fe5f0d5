"""What becomes of calls that a crash left open. Pure: it follows from rows, the tools' declarations and the time."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from talaria.core.ids import CallId
from talaria.core.messages import Outcome, ToolCall, ToolResult
from talaria.store.base import CallRow
from talaria.tools.base import AfterCrash

MAX_INTENT_AGE_S = 600.0

UNKNOWN = (
    "Interrupted while it ran: its effect is unknown, and what it started may still be running. "
    "Check the state of things before doing it again."
)
NOT_STARTED = "Not started: the work was interrupted before this call began. Call again if it is still wanted."

_INTERRUPTED = Outcome("cancelled", "stopped")
_LEFT = Outcome("cancelled", "not started")


class RunIfAllowed(msgspec.Struct, frozen=True):
    """Nothing has happened yet: run it, if the gate allows it again."""


class RunAgain(msgspec.Struct, frozen=True):
    """It had started, and the tool declares that running it again is right."""


class Close(msgspec.Struct, frozen=True):
    """It does not run; this is its result."""

    result: ToolResult


class Ended(msgspec.Struct, frozen=True):
    """It ran to its end before the crash; only the message is missing."""

    result: ToolResult


Verdict = RunIfAllowed | RunAgain | Close | Ended
Declared = Callable[[ToolCall], AfterCrash]


def resume(rows: Sequence[CallRow], declared: Declared, now: float) -> Mapping[CallId, Verdict]:
    """For a turn that continues."""
    has_unknown = any(row.state == "started" and declared(row.call) == "once" for row in rows)
    verdicts: dict[CallId, Verdict] = {}
    for row in rows:
        if row.result is not None:
            verdict = Ended(row.result)
        elif row.state == "started":
            verdict = unknown(row.call) if declared(row.call) == "once" else RunAgain()
        elif has_unknown or now - row.created_at >= MAX_INTENT_AGE_S:
            verdict = not_started(row.call)
        else:
            verdict = RunIfAllowed()
        verdicts[row.call.id] = verdict
    return verdicts


def close(rows: Sequence[CallRow]) -> Mapping[CallId, Close | Ended]:
    """For a turn that is given up: nothing runs."""
    verdicts: dict[CallId, Close | Ended] = {}
    for row in rows:
        if row.result is not None:
            verdicts[row.call.id] = Ended(row.result)
        else:
            verdicts[row.call.id] = unknown(row.call) if row.state == "started" else not_started(row.call)
    return verdicts


def unknown(call: ToolCall) -> Close:
    return Close(ToolResult(call.id, call.name, UNKNOWN, is_error=True, disposition="unknown", outcome=_INTERRUPTED))


def not_started(call: ToolCall) -> Close:
    return Close(ToolResult(call.id, call.name, NOT_STARTED, is_error=True, disposition="none", outcome=_LEFT))
