"""Shows a conversation on the screen: its turns, questions to the person, notices, and queued lines.

Turns from the journal look as they did when they ran.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from talaria.cli.command_name import runnable
from talaria.cli.conversation import INTERRUPTED, TypedLine
from talaria.cli.safe import decidable, readable
from talaria.cli.screen import palette
from talaria.cli.screen.change_view import render_change, strip_codes
from talaria.cli.screen.menu import Menu, MenuItem
from talaria.cli.screen.painting import BOLD, CYAN, DIM, RED, YELLOW, has_colour, style
from talaria.cli.screen.screen import PROMPT, Screen
from talaria.cli.screen.turn_view import TurnView
from talaria.cli.screen.width import cut, wrap, wrap_words
from talaria.cli.sessions.remarks import remark_on
from talaria.core.aio import in_thread
from talaria.core.clock import Clock
from talaria.core.entries import MessageAdded, Recorded, TurnEnded, TurnStarted
from talaria.core.errors import TalariaError
from talaria.core.events import Event
from talaria.core.messages import User
from talaria.core.questions import Answer, Instead, Question, measure
from talaria.runtime.builtin_commands import headline
from talaria.runtime.chat import Reason
from talaria.runtime.lease import Observer
from talaria.runtime.replay import Replay
from talaria.runtime.turn_runner import Report
from talaria.store.base import Session

INSTEAD = "No, and tell it what to do instead"
MAX_ECHOED_LINES = 12
MAX_SCREENS = 3
"""How much of a resumed conversation is shown."""
TICK_S = 0.1
_KEYS: dict[Answer, str] = {"once": "y", "session": "s", "project": "p", "always": "a"}


class ScreenInterface:
    def __init__(self, screen: Screen, clock: Clock) -> None:
        self.person = ScreenPerson(screen)
        self._screen = screen
        self._clock = clock
        self._view: TurnView | None = None
        self._last_view: TurnView | None = None
        self._queue: deque[TypedLine] = deque()
        """Lines that wait here until those before them are done; those in the store come first."""

    @property
    def queued_labels(self) -> Sequence[str]:
        return [f"queued: {line}" for line, _ in self._queue]

    @property
    def is_turn_shown(self) -> bool:
        return self._view is not None

    def say(self, text: str) -> None:
        self._screen.print(style(wrap_words(readable(runnable(text)), self._screen.columns), DIM))

    def show_error(self, error: TalariaError) -> None:
        self.end_view()
        self.say_failure(str(error))

    def say_failure(self, text: str) -> None:
        self._screen.print(style(wrap_words(readable(runnable(text)), self._screen.columns), RED))

    def observer(self, stop_hint: str = "Ctrl-C stops") -> Observer:
        view = self._view = TurnView(self._screen, self._clock, self._show_usage, stop_hint)
        self._screen.is_working = True
        self._screen.show(self._render_live)

        def show(event: Event) -> None:
            self._last_view = view  # only now: if there is nothing to finish, the previous turn stays the last one
            view.show(event)

        return show

    def show_report(self, report: Report) -> None:
        self.end_view()
        if report.error is not None:
            self.say_failure(str(report.error))
        elif report.outcome != "completed":
            self._screen.print(style(INTERRUPTED, YELLOW))
        self._screen.print("")

    def end_view(self) -> None:
        if self._view is not None:
            self._view.end()
        self._view = None
        self._screen.is_working = False
        self._screen.show(self._render_live)

    def echo(self, line: str) -> None:
        if line:
            self._screen.print(render_echo(line, self._screen.columns))

    def on_switch(self, reason: Reason) -> None:
        if reason != "branch":
            self._last_view = None
            self._screen.status = self._screen.status._replace(tokens=0 if reason == "new" else None)

    async def repaint(self, row: Session, entries: Sequence[Recorded]) -> bool:
        columns, max_lines = self._screen.columns, MAX_SCREENS * self._screen.rows
        past = await in_thread(lambda: render_past_turns(entries, columns, max_lines, self._clock))
        self.say(headline(row))
        if not past.is_all:
            self.say(f"Earlier messages: talaria sessions show {row.id}")
        self._screen.print("\n".join(["", *past.lines]).rstrip("\n"))
        self._last_view = past.last
        if past.tokens is not None:
            self._show_usage(past.tokens, self._screen.status.window)
        return True

    def show_note(self, text: str, *, is_read: bool = False) -> None:
        """Show what a person tells the model during a turn."""
        note = style(f"  ↪ {readable(text)}", CYAN) + style("" if is_read else "  (sent at its next step)", DIM)
        if self._view is not None:
            self._view.add_note(note)
        else:
            self._screen.print(note)

    def show_details(self) -> None:
        """Details of the last turn, or of the current one once something has happened in it."""
        details = self._last_view.render_details() if self._last_view else ""
        self._screen.print(details or style("  No tools were used, and there is no thinking to show.", DIM))

    async def tick(self) -> None:
        """Keep redrawing the clock of the turn."""
        while True:
            await asyncio.sleep(TICK_S)
            if self._view is not None:
                self._screen.redraw()

    def _render_live(self, columns: int) -> str:
        parts = [self._view.render_live(columns)] if self._view else []
        parts += [style(cut(f"  {' '.join(readable(one).split())}", columns), DIM) for one in self.queued_labels]
        return "\n".join(parts)

    def _show_usage(self, tokens: int, window: int | None) -> None:
        self._screen.status = self._screen.status._replace(tokens=tokens, window=window)


class ScreenPerson:
    """Asked whether to approve calls, and the model's questions."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def may_approve(self) -> bool:
        return True

    async def allow(self, question: Question) -> Answer | Instead:
        yes = (MenuItem(one, f"Yes, {question.scope_of(one)}", key=_KEYS[one]) for one in question.offered[1:])
        items = [MenuItem("no", "No", key="n"), *yes, MenuItem("instead", INSTEAD, key="i")]
        facts: tuple[str, ...] = ()
        if question.content is not None:
            size = measure(question.content)
            facts = (f"The {question.noun}: {size.text}", size.text, f"The {question.noun}: {size.short}", size.short)
        render_body: Callable[[int], Sequence[str]] | None = None
        if question.changes:
            render_body = lru_cache(maxsize=2)(partial(question_rows, question))
            await in_thread(partial(render_body, self._screen.columns - 2))  # a long change takes a moment
        menu = Menu(
            question.title or f"May {question.tool} do this?",
            items,
            body=question.text,
            render_body=render_body,
            footer=f"You are asked because {question.reason}" if question.reason else "",
            quoted=question.model_words,
            facts=facts,
        )
        answer = await self._ask(menu)
        if answer == "instead":
            words = await self._screen.ask(Menu("What to do instead?", [], body=question.headline, mode="words"))
            return Instead(words) if words and words.strip() else "no"
        for one in question.offered:
            if one == answer:
                return one
        return "no"

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        items = [MenuItem(one, one) for one in choices]
        return await self._ask(Menu("The model asks", items, body=question, mode="words"))

    async def _ask(self, menu: Menu) -> str | None:
        try:
            return await self._screen.ask(menu)
        except asyncio.CancelledError as request:
            if words := str(request):  # it was answered elsewhere
                self._screen.print(style(f"  {readable(words)}", YELLOW))
            raise


def question_rows(question: Question, columns: int, *, is_plain: bool = False) -> list[str]:
    """A question about file changes, with nothing left out. No row is wider than `columns`. `is_plain` removes all
    escape sequences."""
    colours = palette.current() if has_colour() else palette.BASIC
    place = f"\n(in {question.workdir})" if question.workdir else ""
    rows = wrap(decidable(f"{question.headline}{place}"), columns)
    for change in question.changes:
        rendered = render_change(change, columns, colours, max_rows=None, has_colour=has_colour())
        rows += [*rendered.header.split("\n"), *rendered.rows]
    return [strip_codes(row) for row in rows] if is_plain else rows


class PastTurns(NamedTuple):
    lines: Sequence[str]
    is_all: bool
    """False if the conversation has more before these lines."""
    last: TurnView | None
    tokens: int | None
    """How many the conversation took in its last round."""


class _LineBuffer:
    """A `TurnOutput` that keeps what is printed."""

    menu = None

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.lines: list[str] = []

    def print(self, text: str) -> None:
        self.lines += text.split("\n")


def render_past_turns(entries: Sequence[Recorded], columns: int, max_lines: int, clock: Clock) -> PastTurns:
    """The last turns that fit; of the very last one at least a part. Renders markdown, which takes a moment."""
    starts = [place for place, one in enumerate(entries) if isinstance(one.entry, TurnStarted) and place]
    turns = [entries[start:end] for start, end in zip([0, *starts], [*starts, len(entries)], strict=True)]
    lines: list[str] = []
    last: TurnView | None = None
    tokens: int | None = None
    left = len(turns) if entries else 0
    while left and len(lines) < max_lines:
        used: list[int] = []
        output = _LineBuffer(columns)
        view = TurnView(output, clock, lambda count, _, used=used: used.append(count))
        _replay_turn(turns[left - 1], view, output)
        if last is not None and len(output.lines) + len(lines) > max_lines:
            break
        lines = [*output.lines, *lines]
        if last is None:
            last, tokens = view, used[-1] if used else None
        left -= 1
    is_all = not left and len(lines) <= max_lines and (not entries or entries[0].seq == 1)
    return PastTurns(lines[-max_lines:], is_all, last, tokens)


def _replay_turn(turn: Sequence[Recorded], view: TurnView, output: _LineBuffer) -> None:
    replay = Replay()
    for one in turn:
        match one.entry:
            case MessageAdded(User(author="person") as message):
                output.print(render_echo(message.text, output.columns))
            case MessageAdded(User(author="steering") as message):
                output.print(style(f"  ↪ {readable(message.text)}", CYAN))
            case MessageAdded(User()):
                pass  # from the host, and not for people
            case MessageAdded():
                for event in replay.events(one):
                    view.show(event)
            case TurnEnded(_, outcome, _, error):
                view.end()
                if outcome != "completed":
                    failure = style(wrap_words(readable(error), output.columns), RED)
                    output.print(failure if error else style(INTERRUPTED, YELLOW))
                output.print("")
            case entry:
                if remark := remark_on(entry):
                    output.print(style(wrap_words(f"  {readable(remark)}", output.columns), YELLOW))


def render_echo(line: str, columns: int) -> str:
    """What the person typed, or the start of it."""
    first, *others = wrap_words(readable(line), columns - len(PROMPT)).split("\n")
    shown = others[: MAX_ECHOED_LINES - 1]
    left = len(others) - len(shown)
    more = [style(f"  … {left} more line{'' if left == 1 else 's'}", DIM)] if left else []
    return "\n".join([style(PROMPT, CYAN, BOLD) + style(first, BOLD), *(f"  {one}" for one in shown), *more])
