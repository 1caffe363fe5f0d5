"""What the screen shows when the conversation becomes another one."""

from collections.abc import Callable
from typing import cast

from talaria.cli.screen.rendering import StatusLine
from talaria.cli.screen.screen import Screen
from talaria.cli.screen.screen_interface import MAX_SCREENS, ScreenInterface
from talaria.core.entries import Entry, MessageAdded, Recorded, TurnEnded, TurnStarted
from talaria.core.events import TurnBegan
from talaria.core.ids import CallId, SessionId, TurnId
from talaria.core.messages import Assistant, Text, Thinking, ToolCall, ToolResult, Usage, user
from talaria.store.base import Session
from talaria.testing.manual_clock import ManualClock

ROW = Session(SessionId("s"), "terminal", "m", "/work", "", "[]", "Wings", None, 1.0, 2.0, None, 4)
NOTHING = "No tools were used"


class Paper:
    """A screen as far as the front knows it."""

    columns, rows = 80, 20
    is_working = False
    menu = None

    def __init__(self) -> None:
        self.status = StatusLine(model="m", tokens=5)
        self.printed: list[str] = []

    @property
    def text(self) -> str:
        return "\n".join(self.printed)

    def print(self, text: str) -> None:
        self.printed.append(text)

    def show(self, live: Callable[[int], str]) -> None: ...


def recorded(*entries: Entry, first: int = 1) -> list[Recorded]:
    return [Recorded(seq, float(seq), entry) for seq, entry in enumerate(entries, first)]


def turn(*messages: Entry, outcome: TurnEnded | None = None) -> list[Entry]:
    return [TurnStarted(TurnId("t"), "terminal"), *messages, outcome or TurnEnded(TurnId("t"), "completed")]


CALLED = turn(
    MessageAdded(user("Where is it?")),
    MessageAdded(Assistant((Thinking("Hmm."), ToolCall(CallId("c"), "terminal", '{"command": "find wings"}')))),
    MessageAdded(ToolResult(CallId("c"), "terminal", "found it")),
    MessageAdded(Assistant((Text("It is *there*."),), usage=Usage(100, 11))),
)


async def test_a_painted_conversation_has_its_tools_and_tokens() -> None:
    paper = Paper()
    front = ScreenInterface(cast("Screen", paper), ManualClock())
    front.on_switch("resume")
    assert await front.repaint(ROW, recorded(*CALLED))
    for words in ("Wings · 4 messages", "Where is it?", "find wings", "1.0 s", "there"):
        assert words in paper.text
    assert "Earlier" not in paper.text
    assert paper.status.tokens == 111
    front.observer()  # nothing was left to finish
    front.end_view()
    front.show_details()
    assert "Hmm." in paper.printed[-1]
    assert "found it" in paper.printed[-1]


async def test_a_turn_that_runs_is_the_last_one() -> None:
    paper = Paper()
    front = ScreenInterface(cast("Screen", paper), ManualClock())
    await front.repaint(ROW, recorded(*CALLED))
    front.observer()(TurnBegan(ROW.id, TurnId("u"), "m"))
    front.show_details()
    assert NOTHING in paper.printed[-1]


async def test_a_new_conversation_has_no_tokens_and_no_tools_yet() -> None:
    paper = Paper()
    front = ScreenInterface(cast("Screen", paper), ManualClock())
    await front.repaint(ROW, recorded(*CALLED))
    front.on_switch("branch")
    assert paper.status.tokens == 111, "a copy has as many"
    front.on_switch("new")
    front.show_details()
    assert paper.status.tokens == 0
    assert NOTHING in paper.printed[-1]


async def test_an_answer_without_end_is_painted_at_its_end() -> None:
    paper = Paper()
    long = "\n\n".join(f"Paragraph {number}." for number in range(500))
    told = turn(MessageAdded(user("Go on.")), MessageAdded(Assistant((Text(long),))))
    await ScreenInterface(cast("Screen", paper), ManualClock()).repaint(ROW, recorded(*CALLED, *told))
    assert "talaria sessions show s" in paper.text.partition("Earlier messages: ")[2]
    assert "Paragraph 499." in paper.text
    assert "Go on." not in paper.text
    assert len(paper.text.split("\n")) <= MAX_SCREENS * Paper.rows + 4


async def test_how_a_turn_ended_and_what_came_before_is_told() -> None:
    paper = Paper()
    failed = turn(MessageAdded(user("Why?")), outcome=TurnEnded(TurnId("t"), "failed", error="It is too late."))
    stopped = turn(MessageAdded(user("When?")), outcome=TurnEnded(TurnId("t"), "interrupted"))
    await ScreenInterface(cast("Screen", paper), ManualClock()).repaint(ROW, recorded(*failed, *stopped, first=40))
    for words in ("It is too late.", "Interrupted.", "Earlier messages"):
        assert words in paper.text
