"""What becomes of open calls after a crash, decided from values alone."""

import pytest

from talaria.agent.interrupted import Close, Ended, RunAgain, RunIfAllowed, close, resume
from talaria.core.ids import CallId, TurnId
from talaria.core.messages import ToolCall, ToolResult
from talaria.store.base import CallRow, CallState
from talaria.tools.base import AfterCrash

NOW = 10_000.0


def row(id: str, state: CallState, *, tool: str = "once", age_s: float = 1.0) -> CallRow:
    result = ToolResult(CallId(id), tool, "kept") if state == "done" else None
    return CallRow(TurnId("t"), ToolCall(CallId(id), tool, "{}"), state, NOW - age_s, result)


def declared(call: ToolCall) -> AfterCrash:
    return "repeat" if call.name == "repeat" else "keyed" if call.name == "keyed" else "once"


def test_a_call_at_intent_runs() -> None:
    assert resume([row("a", "intent")], declared, NOW) == {"a": RunIfAllowed()}


def test_a_call_that_ended_keeps_its_outcome() -> None:
    assert resume([row("a", "done")], declared, NOW) == {"a": Ended(ToolResult(CallId("a"), "once", "kept"))}


@pytest.mark.parametrize("tool", ["repeat", "keyed"])
def test_a_started_call_runs_again_if_its_tool_says_so(tool: str) -> None:
    assert resume([row("a", "started", tool=tool)], declared, NOW) == {"a": RunAgain()}


def test_a_started_call_of_a_tool_that_runs_once_is_unknown_and_keeps_its_siblings_from_starting() -> None:
    verdicts = resume([row("a", "intent"), row("b", "started"), row("c", "intent", tool="repeat")], declared, NOW)
    closed = {id: verdict.result.disposition for id, verdict in verdicts.items() if isinstance(verdict, Close)}
    assert closed == {"a": "none", "b": "unknown", "c": "none"}


@pytest.mark.parametrize(("age_s", "runs"), [(599.0, True), (600.0, False)])
def test_a_call_at_intent_runs_only_within_ten_minutes(age_s: float, runs: bool) -> None:
    verdict = resume([row("a", "intent", age_s=age_s)], declared, NOW)[CallId("a")]
    assert (verdict == RunIfAllowed()) is runs


def test_a_turn_that_is_given_up_runs_nothing() -> None:
    rows = [row("a", "done"), row("b", "started", tool="repeat"), row("c", "intent")]
    verdicts = close(rows)
    assert isinstance(verdicts[CallId("a")], Ended)
    told = [verdict.result.disposition for verdict in verdicts.values() if isinstance(verdict, Close)]
    assert told == ["unknown", "none"]
