"""What programs and plain terminals are told of a turn."""

import json

import pytest

from talaria.cli.answer_view import JsonView, TextView
from talaria.core.events import ToolBegan, ToolEnded
from talaria.core.ids import CallId, SessionId, TurnId
from talaria.core.messages import Outcome, ToolResult, Usage
from talaria.runtime.turn_runner import Report

REPORT = Report(SessionId("s"), TurnId("t"), "completed", "So.", Usage(), "m")


def result(text: str, outcome: Outcome | None, *, has_run: bool = True) -> ToolResult:
    return ToolResult(CallId("c"), "terminal", text, disposition="done" if has_run else "none", outcome=outcome)


REFUSED = result("Error: …", Outcome("refused", "it is late", "nobody"), has_run=False)


def test_a_document_lists_what_was_refused_and_so_does_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    view = JsonView()
    view.show(ToolEnded(result("[exit code 0]", None), 1.0))
    view.show(ToolEnded(REFUSED, 0.0))
    view.finish(REPORT)
    told = capsys.readouterr()
    assert json.loads(told.out)["refused"] == [
        {"call": "c", "name": "terminal", "reason": "it is late", "by": "nobody"}
    ]
    assert told.err == "terminal refused: it is late\n"


def test_plain_lines_say_how_calls_ended(capsys: pytest.CaptureFixture[str]) -> None:
    view = TextView()
    for one in (
        result("a\nb\n\n[exit code 3]", Outcome("failed", "exit 3", output_chars=4)),
        result("[exit code 0]", Outcome("done", "exit 0")),
        result("[exit code 4]", None),
        result("Started", Outcome("done", "started in the background as p1")),
        result("Interrupted", Outcome("cancelled", "stopped")),
        REFUSED,
    ):
        view.show(ToolBegan(one.call_id, one.name, "{}"))
        view.show(ToolEnded(one, 1.0))
    assert [line for line in capsys.readouterr().err.splitlines() if not line.startswith("●")] == [
        "  failed in 1.0 s: exit 3",
        "    a",
        "    b",
        "  done in 1.0 s",
        "  failed in 1.0 s: exit 4",
        "  done in 1.0 s: started in the background as p1",
        "  stopped after 1.0 s",
        "terminal refused: it is late",
    ]
