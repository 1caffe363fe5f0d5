"""Whatever a model, a tool or a person writes, the terminal is only written on: never steered, retitled or read."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import msgspec
import pyte
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prompt_toolkit.completion import DummyCompleter
from prompt_toolkit.data_structures import Size
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input

from talaria.cli.options import CliOptions
from talaria.cli.safe import readable, visible
from talaria.cli.screen.chat_screen import ChatScreen
from talaria.cli.screen.line_input import InputHistory, LineCompleter
from talaria.cli.screen.menu import Menu, MenuItem
from talaria.cli.screen.rendering import ClusterOutput, StatusLine
from talaria.cli.screen.screen import REDRAW_S, Screen
from talaria.cli.screen.screen_interface import ScreenPerson
from talaria.cli.screen.turn_view import ToolCallLines, TurnView
from talaria.cli.tool_outcomes import output_lines
from talaria.core.errors import UserFacing
from talaria.core.events import (
    AnswerRestarted,
    Event,
    Notice,
    TextDelta,
    ThinkingDelta,
    ToolBegan,
    ToolEnded,
    ToolOutput,
)
from talaria.core.ids import CallId
from talaria.core.messages import Outcome, ToolResult
from talaria.core.questions import Question
from talaria.testing.manual_clock import ManualClock

ROWS = 12
SEQUENCES = [
    *("\x1b]0;owned\x07", "\x1b]2;owned\x1b\\", "\x9d0;owned\x9c", "\x1b]52;c;b3duZWQ=\x07", "\x1b]8;;http://x\x07"),
    *("\x1b[2J", "\x1b[H", "\x1b[10A", "\x9b5;5H", "\x1b[3;5r", "\x1b[?1049h", "\x1b[?25l", "\x1b[?2004l", "\x1b[4h"),
    *("\x1bc", "\x1b7", "\x1b8", "\x1b(0", "\x0e", "\x0f", "\x07", "\x08", "\x7f", "\r", "\x0b", "\x0c", "\x00"),
    *(
        "\x1bP+q544e\x1b\\",
        "\x1b_x\x1b\\",
        "\x1b[6n",
        "\x1b[c",
        "\x1b[5i",
        "\x1b[31m",
        "\x1b[0m",
        "\x1b",
        "\x9b",
        "\x00",
    ),
    *(
        "\u202e",
        "\u2066",
        "\u200b",
        "\u200d",
        "\ufeff",
        "\u2028",
        "\U000e0041",
        "\ud800",
        "\udfff",
        "e\u0301",
        "\ufe0f",
    ),
]
MARKS = [
    *("```", "~~~", "```python\n", "````", "`", "**", "_", "# ", "- ", "1. ", "> ", "| a | b |\n|---|---|\n", "[x](y)"),
    *("![", "](", "<b>", "&lt;", "\n", "\n\n", "    ", "\t", "\\", "--- a\n+++ b\n", "@@ -1 +1 @@\n", "+x\n", "-y\n"),
    *("[bold]", "[/]", ":smile:", '{"command": "', '"}', "日本語", "👩‍👩‍👧", "x" * 300, "漢" * 90, "word " * 40),
]
hostile = st.lists(
    st.sampled_from(SEQUENCES)
    | st.sampled_from(MARKS)
    | st.text(max_size=12)
    | st.text(st.characters(categories=["Cc", "Cf", "Cs", "Mn", "Zl", "Zp"]), max_size=6)
    | st.binary(max_size=12).map(lambda data: data.decode("latin-1"))
    | st.binary(max_size=12).map(lambda data: data.decode("utf-8", "surrogateescape")),
    max_size=10,
).map("".join)
plain = st.text(st.sampled_from("abcdeXYZäß日本語한 \n"), max_size=200)
widths = st.sampled_from([10, 20, 40, 80])

PAINT = re.compile(r"\x1b\[[\d;]*m")
STEERING = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e001f]"
)
"""Joiners and the tags of flags are not among them: what keeps those is tested with `readable`."""
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
DRAWING = re.compile(r"\x1b\[(?:[\d;]*[ABCDGJKm]|\?(?:1|7|12|25|2004)[hl])")
"""What prompt_toolkit moves and paints with."""


class Emulated(pyte.Screen):
    def __init__(self, columns: int, rows: int) -> None:
        super().__init__(columns, rows)
        self.did: list[str] = []
        self.first_mode = frozenset(self.mode)

    def set_title(self, param: str) -> None:
        self.did.append(f"title {param}")

    def set_icon_name(self, param: str) -> None:
        self.did.append(f"icon {param}")

    def bell(self, *_: object) -> None:
        self.did.append("bell")

    def report_device_status(self, mode: int, **_: object) -> None:
        self.did.append(f"report {mode}")

    def report_device_attributes(self, mode: int = 0, **_: object) -> None:
        self.did.append(f"report {mode}")

    def define_charset(self, code: str, mode: str) -> None:
        self.did.append(f"charset {code}")


class Paper:
    """A screen as far as a turn knows it; keeps what is printed."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.is_working = False
        self.menu = None
        self.printed: list[str] = []

    def print(self, text: str) -> None:
        self.printed.append(text)

    def show(self, live: Callable[[int], str]) -> None:
        self.print(live(self.columns))


def assert_only_written(raw: str, columns: int) -> Emulated:
    steering = STEERING.findall(PAINT.sub("", raw))
    assert not steering, f"{steering!r} in {raw!r}"
    emulated = Emulated(columns, ROWS)
    pyte.Stream(emulated).feed(raw.replace("\n", "\r\n"))
    assert emulated.did == []
    assert emulated.margins is None
    assert emulated.mode == emulated.first_mode
    return emulated


def assert_fits(raw: str, columns: int) -> None:
    """No line of it is broken by the terminal."""
    lines = raw.split("\n")
    emulated = Emulated(columns, len(lines) + 1)
    pyte.Stream(emulated).feed(raw.replace("\n", "\r\n"))
    assert emulated.cursor.y == len(lines) - 1, raw


def told(raw: str) -> str:
    return "".join(PAINT.sub("", raw).split())


def pieces(text: str, places: Sequence[int]) -> list[str]:
    cuts = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[begin:end] for begin, end in pairwise(cuts)]


def shown(columns: int, events: Sequence[Event]) -> str:
    """All that a turn of these events writes and draws."""
    paper = Paper(columns)
    view = TurnView(cast("Screen", paper), ManualClock(), lambda _, __: None)
    drawn: list[str] = []
    for event in events:
        view.show(event)
        drawn.append(view.render_live(columns))
    return "\n".join((*drawn, *paper.printed, view.render_details()))


def _printed(text: str) -> Outcome:
    return Outcome("failed", text, output_chars=len(text))


def called(name: str, arguments: str, text: str, is_error: bool) -> list[Event]:
    call = CallId("c")
    return [
        ThinkingDelta(text),
        ToolBegan(call, name, arguments),
        Notice(text),
        ToolOutput(call, text),
        ToolEnded(ToolResult(call, name, f"--- a\n+++ b\n{text}", is_error), 1.0),
        ToolBegan(call, name, arguments),
        ToolEnded(ToolResult(call, name, f"{text}\n[exit code 1]", outcome=_printed(text)), 1.0),
        AnswerRestarted(arguments),
    ]


@given(widths, hostile, st.lists(st.integers(0, 400), max_size=5))
@example(40, "```python\nx = '\x1b]0;owned\x07'\n```\n", [3, 12])
@settings(max_examples=120, deadline=None)
def test_what_a_model_writes_steers_nothing_wherever_it_is_cut(columns: int, text: str, places: list[int]) -> None:
    assert_only_written(shown(columns, [TextDelta(piece) for piece in pieces(text, places)]), columns)


@given(widths, hostile, hostile, hostile, st.booleans())
@settings(max_examples=120, deadline=None)
def test_what_tools_are_called_given_and_answer_steers_nothing(
    columns: int, name: str, arguments: str, text: str, is_error: bool
) -> None:
    assert_only_written(shown(columns, called(name, arguments, text, is_error)), columns)


@given(widths, hostile)
@settings(max_examples=60, deadline=None)
def test_what_is_said_beside_a_turn_steers_nothing(columns: int, text: str) -> None:
    paper = Paper(columns)
    chat = ChatScreen(
        cast("Screen", paper),
        LineCompleter(Path()),
        InputHistory(Path(os.devnull), may_create=False),
        None,
        CliOptions(),
    )
    chat.say(text)
    chat.show_error(UserFacing(text))
    assert_only_written("\n".join(paper.printed), columns)


@given(widths, plain, st.lists(st.integers(0, 400), max_size=5), st.sampled_from(["\x1b]0;t\x07", "\u202e", "\x9b2J"]))
@settings(max_examples=100, deadline=None)
def test_nothing_of_a_plain_text_is_lost_and_controls_are_shown(
    columns: int, text: str, places: list[int], control: str
) -> None:
    text += control
    paper = Paper(columns)
    view = TurnView(cast("Screen", paper), ManualClock(), lambda _, __: None)
    for piece in pieces(text, places):
        view.show(TextDelta(piece))
    view.show(Notice("END"))
    assert told("\n".join(paper.printed)) == "".join(readable(text).split()) + "END"


@given(st.sampled_from([30, 40, 80]), plain)
@settings(max_examples=100, deadline=None)
def test_no_line_of_it_is_wider_than_the_screen(columns: int, text: str) -> None:
    result = ToolResult(CallId("c"), "terminal", f"--- a\n+++ b\n{text}")
    arguments = f'{{"command": "{text}"}}'
    view = TurnView(cast("Screen", Paper(columns)), ManualClock(), lambda _, __: None)
    view.show(TextDelta(text))
    view.show(ThinkingDelta(text))
    for raw in (
        view.render_live(columns),
        ToolCallLines("terminal", arguments, seconds=75.0).render_running(columns, "·", "2", output_lines(text)),
        ToolCallLines(
            "terminal", arguments, ToolResult(result.call_id, "", text, outcome=_printed(text)), 1.0
        ).render_ended(columns),
        ToolCallLines(
            "terminal", arguments, msgspec.structs.replace(result, outcome=Outcome("refused", text))
        ).render_ended(columns),
        ToolCallLines("terminal", arguments, result, 12.0).render_ended(columns),
        ToolCallLines(
            "terminal", arguments, ToolResult(CallId("c"), "terminal", text, is_error=True), 1.0
        ).render_ended(columns),
        StatusLine(model=text.replace("\n", " "), tokens=5, window=10, session=text.replace("\n", " ")).render(columns),
    ):
        assert_fits(raw, columns)


class Nobody:
    def submit(self, text: str) -> None: ...
    def steer(self, text: str) -> None: ...
    def interrupt(self) -> None: ...
    def leave(self) -> None: ...
    def show_details(self) -> None: ...


async def drawn(columns: int, use: Callable[[Screen], Awaitable[None]]) -> str:
    """All that the screen writes while it is used so."""
    written = StringIO()
    with create_pipe_input() as keys:
        screen = Screen(
            Nobody(),
            history=InMemoryHistory(),
            completer=DummyCompleter(),
            input=keys,
            output=ClusterOutput(written, lambda: Size(rows=ROWS, columns=columns), enable_cpr=False),
        )
        tasks: list[asyncio.Future[None]] = []

        async def use_it() -> None:
            try:
                await use(screen)
                screen.redraw()
                await asyncio.sleep(REDRAW_S)
            finally:
                screen.close()

        await screen.run(lambda: tasks.append(asyncio.ensure_future(use_it())))
        await tasks[0]
    return written.getvalue()


def assert_drawn_with_own_moves(raw: str, columns: int, steering: re.Pattern[str]) -> None:
    found = steering.findall(DRAWING.sub("", raw).replace("\r", "").replace("\x08", ""))
    assert not found, f"{found!r} in {raw!r}"
    emulated = Emulated(columns, ROWS)
    pyte.Stream(emulated).feed(raw)
    assert emulated.did == []
    assert emulated.margins is None


async def asked(screen: Screen, answer: Coroutine[Any, Any, object], text: str) -> None:
    """A question that is drawn, typed at and left."""
    asking = asyncio.create_task(answer)
    while screen.menu is None:
        await asyncio.sleep(0)
    screen.menu.type(text)
    screen.redraw()
    await asyncio.sleep(REDRAW_S * 1.5)
    screen.menu.cancel()
    await asking


@given(widths, hostile)
@settings(max_examples=40, deadline=None)
def test_a_screen_full_of_it_is_drawn_with_nothing_but_its_own_moves(columns: int, text: str) -> None:
    async def use(screen: Screen) -> None:
        screen.status = StatusLine(model="test", session=visible(text))
        screen.show(lambda width: shown(width, [TextDelta(text)]))
        screen.print(shown(columns, [TextDelta(text)]))
        await screen.drain()

    assert_drawn_with_own_moves(asyncio.run(drawn(columns, use)), columns, STEERING)


@given(widths, hostile)
@example(40, "ls \u202e\x1b]0;owned\x07")
@settings(max_examples=30, deadline=None)
def test_questions_show_what_is_hidden_in_them(columns: int, text: str) -> None:
    async def use(screen: Screen) -> None:
        person = ScreenPerson(screen)
        await asked(screen, person.allow(Question("q", text, text, reason=text, in_session=text)), text)
        await asked(screen, person.choose(text, [text, "other"]), text)
        choices = [MenuItem(text, text, text, searched=text), MenuItem("other", "other")]
        await asked(screen, screen.ask(Menu("Which?", choices, mode="search")), "")

    assert_drawn_with_own_moves(asyncio.run(drawn(columns, use)), columns, STEERING)


@given(widths, hostile)
@settings(max_examples=40, deadline=None)
def test_what_is_pasted_moves_no_cursor(columns: int, text: str) -> None:
    async def use(screen: Screen) -> None:
        screen.paste(text)

    assert_drawn_with_own_moves(asyncio.run(drawn(columns, use)), columns, CONTROLS)


@pytest.mark.long
@given(widths, hostile, hostile, hostile, st.lists(st.integers(0, 400), max_size=5), st.booleans())
@settings(max_examples=8_000, deadline=None)
def test_thousands_of_turns_steer_nothing(
    columns: int, text: str, name: str, arguments: str, places: list[int], is_error: bool
) -> None:
    events = [*(TextDelta(piece) for piece in pieces(text, places)), *called(name, arguments, text, is_error)]
    assert_only_written(shown(columns, events), columns)
