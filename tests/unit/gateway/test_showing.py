"""What a chat shows of a turn that works."""

from typing import cast

from talaria.core.events import Event, ToolBegan, ToolEnded, ToolOutput, TurnBegan
from talaria.core.ids import CallId, SessionId, TurnId
from talaria.core.messages import ToolResult
from talaria.gateway.preview import SHOWN_AFTER_S, LivePreview
from talaria.platforms.base import Address, Capabilities, Platform


class Editing:
    name = "some"
    capabilities = Capabilities(max_chars=100, can_edit=True)


def words(*events: Event) -> str:
    """After ten seconds."""
    showing = LivePreview(Address("some", "1"), SessionId("s"), "", 0.0)
    for event in (TurnBegan(SessionId("s"), TurnId("t"), "m"), *events):
        showing(event)
    draft = showing.draft(max(10.0, SHOWN_AFTER_S), 0.0, cast("Platform", Editing()))
    return draft.text if draft else ""


def ended(id: str, *, has_run: bool) -> tuple[Event, Event]:
    result = ToolResult(CallId(id), "terminal", "", disposition="done" if has_run else "none")
    return ToolBegan(result.call_id, result.name, "{}"), ToolEnded(result, 0.0)


def test_calls_that_did_not_run_are_no_steps() -> None:
    refused = ended("a", has_run=False)
    assert words(*refused) == ""
    assert words(*refused, *ended("b", has_run=True)) == "⚙ 1 step, 10 s"


def test_output_is_not_shown_in_chats() -> None:
    began, _ = ended("a", has_run=True)
    assert words(began, ToolOutput(CallId("a"), "secret lines")) == "⚙ 1 step, 10 s: terminal {}"
