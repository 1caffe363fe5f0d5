"""What an exported conversation looks like to whoever opens it in a terminal."""

import json

import pytest

from talaria.cli.sessions.export import ExportFormat, export_session
from talaria.core.entries import MessageAdded, Recorded
from talaria.core.ids import CallId, SessionId
from talaria.core.messages import Assistant, Outcome, ToolCall, ToolResult, user
from talaria.store.base import Session

ACTING = "\x9b\u202e\u200b"


@pytest.mark.parametrize("format", ["lines", "markdown", "html"])
def test_nothing_in_an_export_acts_on_a_terminal(format: ExportFormat) -> None:
    said = f"a{ACTING}b"
    row = Session(SessionId("talk"), "cli", "demo:demo", "/", "", "[]", "t", None, 1.0, 1.0, None, 1)
    written = export_session(row, [Recorded(1, 1.0, MessageAdded(user(said)))], format).decode()
    assert not set(ACTING) & set(written)
    assert "u202e" in written
    if format == "lines":
        assert json.loads(written.splitlines()[1])["entry"]["message"]["parts"][0]["text"] == said


@pytest.mark.parametrize("outcome", [Outcome("failed", "exit 3"), None])
@pytest.mark.parametrize(
    ("format", "said"),
    [("markdown", "Result of `terminal` (failed):"), ("html", '<b>terminal</b> <span class="wrong">')],
)
def test_a_command_that_failed_is_no_plain_result(format: ExportFormat, said: str, outcome: Outcome | None) -> None:
    row = Session(SessionId("talk"), "cli", "demo:demo", "/", "", "[]", "t", None, 1.0, 1.0, None, 1)
    call = ToolCall(CallId("c"), "terminal", "{}")
    result = ToolResult(call.id, call.name, "[exit code 3]", outcome=outcome)
    entries = [
        Recorded(place, 1.0, MessageAdded(one)) for place, one in enumerate((Assistant((call,), "calls"), result))
    ]
    assert said in export_session(row, entries, format).decode()
