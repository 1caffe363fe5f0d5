"""What is shown of a conversation on the screen: its turns, what is said beside them, and the lines that wait.

A question about changes of files, as a person at a terminal reads it before they decide. Nothing is left out.
The person at the screen: allows or does not, and answers the model's questions.
Turns from the journal, painted as they were when they ran.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from talaria.cli.command_name import runnable
from talaria.cli.conversation import INTERRUPTED
from talaria.cli.safe import decidable, readable
from talaria.cli.screen import palette
from talaria.cli.screen.change_view import paint_change, without_codes
from talaria.cli.screen.menu import Menu, MenuItem
from talaria.cli.screen.painting import BOLD, CYAN, DIM, RED, YELLOW, has_colour, styled
from talaria.cli.screen.screen import PROMPT, Screen
from talaria.cli.screen.turn_view import TurnView
from talaria.cli.screen.width import cut, paragraphs, wrapped
from talaria.cli.sessions.remarks import remark_on
from talaria.core.aio import in_thread
from talaria.core.clock import Clock
from talaria.core.entries import MessageAdded, Recorded, TurnEnded, TurnStarted
from talaria.core.errors import TalariaError
from talaria.core.events import Event, RoundEnded, ThinkingDelta, ToolBegan, ToolEnded
from talaria.core.messages import Assistant, Thinking, ToolResult, User
from talaria.runtime.builtin_commands import headline
from talaria.runtime.chat import Reason
from talaria.runtime.lease import Observer
from talaria.runtime.turn_runner import Report
from talaria.store.base import Session
from talaria.tools.person import Answer, Instead, Question, measure


def question_rows(question: Question, columns: int, *, is_plain: bool = False) -> list[str]:
    """No row is wider than `columns`. `is_plain`: they are text and nothing else, also where there are colours."""
    colours = palette.current() if has_colour() else palette.CAREFUL
    place = f"\n(in {question.place})" if question.place else ""
    rows = wrapped(decidable(f"{question.headline}{place}"), columns)
    for change in question.changes:
        painted = paint_change(change, columns, colours, most_rows=None, has_colour=has_colour())
        rows += [*painted.header.split("\n"), *painted.rows]
    return [without_codes(row) for row in rows] if is_plain else rows


INSTEAD = "No, and tell it what to do instead"
_KEYS: dict[Answer, str] = {"once": "y", "session": "s", "project": "p", "always": "a"}


class ScreenPerson:
    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def may_approve(self) -> bool:
        return True

    async def allow(self, question: Question) -> Answer | Instead:
        yes = (MenuItem(one, f"Yes, {question.scope_of(one)}", key=_KEYS[one]) for one in question.offered[1:])
        offered = [MenuItem("no", "No, do not", key="n"), *yes, MenuItem("instead", INSTEAD, key="i")]
        why = f"It is asked because {question.reason}" if question.reason else ""
        facts: tuple[str, ...] = ()
        if question.content is not None:
            found = measure(question.content)
            facts = (
                f"The {question.noun}: {found.text}",
                found.text,
                f"The {question.noun}: {found.short}",
                found.short,
            )
        painted: Callable[[int], Sequence[str]] | None = None
        if question.changes:
            painted = lru_cache(maxsize=2)(partial(question_rows, question))
            await in_thread(partial(painted, self._screen.columns - 2))  # of a long change that takes a moment
        title = question.title or f"May {question.tool} do this?"
        quoted = question.model_words
        menu = Menu(title, offered, body=question.text, painted=painted, footer=why, quoted=quoted, facts=facts)
        given = await self._screen.ask(menu)
        if given == "instead":
            words = await self._screen.ask(Menu("What to do instead?", [], body=question.headline, typing="words"))
            return Instead(words) if words and words.strip() else "no"
        for one in question.offered:
            if one == given:
                return one
        return "no"

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        offered = [MenuItem(one, one) for one in choices]
        return await self._screen.ask(Menu("The model asks", offered, body=question, typing="words"))


MOST_ECHOED_LINES = 12


class PastTurns(NamedTuple):
    lines: Sequence[str]
    is_all: bool
    """False: something was before these lines."""
    last: TurnView | None
    tokens: int | None
    """That the conversation took in its last round."""


class _Sheet:
    """A screen as far as a turn needs one; keeps what is printed."""

    menu = None

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.lines: list[str] = []

    def print(self, text: str) -> None:
        self.lines += text.split("\n")


def paint_past_turns(entries: Sequence[Recorded], columns: int, most_lines: int, clock: Clock) -> PastTurns:
    """The last turns that fit, the very last one at least in part. Takes a moment: markdown is painted."""
    starts = [place for place, one in enumerate(entries) if isinstance(one.entry, TurnStarted) and place]
    turns = [entries[begin:end] for begin, end in zip([0, *starts], [*starts, len(entries)], strict=True)]
    lines: list[str] = []
    last: TurnView | None = None
    tokens: int | None = None
    left = len(turns) if entries else 0
    while left and len(lines) < most_lines:
        used: list[int] = []
        sheet = _Sheet(columns)
        view = TurnView(sheet, clock, lambda count, _, used=used: used.append(count))
        _paint(turns[left - 1], view, sheet)
        if last is not None and len(sheet.lines) + len(lines) > most_lines:
            break
        lines = [*sheet.lines, *lines]
        if last is None:
            last, tokens = view, used[-1] if used else None
        left -= 1
    is_all = not left and len(lines) <= most_lines and (not entries or entries[0].seq == 1)
    return PastTurns(lines[-most_lines:], is_all, last, tokens)


def _paint(turn: Sequence[Recorded], view: TurnView, sheet: _Sheet) -> None:
    called_at: dict[str, float] = {}
    for one in turn:
        match one.entry:
            case MessageAdded(User(author="person") as said):
                sheet.print(paint_words(said.text, sheet.columns))
            case MessageAdded(User(author="steering") as said):
                sheet.print(styled(f"  ↪ {readable(said.text)}", CYAN))
            case MessageAdded(User()):
                pass  # of the host; people are not shown it
            case MessageAdded(Assistant() as message):
                view.show(ThinkingDelta("".join(part.text for part in message.parts if isinstance(part, Thinking))))
                view.show(RoundEnded(message))
                for call in message.calls:
                    view.show(ToolBegan(call.id, call.name, call.arguments))
                    called_at[call.id] = one.at
            case MessageAdded(ToolResult() as result):
                view.show(ToolEnded(result, max(0.0, one.at - called_at.get(result.call_id, one.at))))
            case TurnEnded(_, outcome, _, error):
                view.end()
                if outcome != "completed":
                    failure = styled(paragraphs(readable(error), sheet.columns), RED)
                    sheet.print(failure if error else styled(INTERRUPTED, YELLOW))
                sheet.print("")
            case entry:
                if remark := remark_on(entry):
                    sheet.print(styled(paragraphs(f"  {readable(remark)}", sheet.columns), YELLOW))


def paint_words(line: str, columns: int) -> str:
    """What the person has said, or the beginning of it."""
    first, *others = paragraphs(readable(line), columns - len(PROMPT)).split("\n")
    kept = others[: MOST_ECHOED_LINES - 1]
    left = len(others) - len(kept)
    more = [styled(f"  … {left} more lines", DIM)] if left else []
    return "\n".join([styled(PROMPT, CYAN, BOLD) + styled(first, BOLD), *(f"  {one}" for one in kept), *more])


TICK_S = 0.1
MOST_SCREENS = 3
"""Of a conversation that somebody comes back to."""


class ScreenFront:
    def __init__(self, screen: Screen, clock: Clock) -> None:
        self.person = ScreenPerson(screen)
        self._screen = screen
        self._clock = clock
        self._view: TurnView | None = None
        self._last: TurnView | None = None
        self._lines: deque[str] = deque()
        """That wait for their turn."""

    @property
    def is_showing(self) -> bool:
        """A turn."""
        return self._view is not None

    def say(self, text: str) -> None:
        self._screen.print(styled(paragraphs(readable(runnable(text)), self._screen.columns), DIM))

    def failed(self, error: TalariaError) -> None:
        self.end_view()
        self._complain(error)

    def observer(self) -> Observer:
        view = self._view = TurnView(self._screen, self._clock, self._fill)
        self._screen.is_working = True
        self._screen.show(self._live)

        def show(event: Event) -> None:
            self._last = view  # not before: where nothing was left to finish, the turn before is still the last
            view.show(event)

        return show

    def ended(self, report: Report) -> None:
        self.end_view()
        if report.error is not None:
            self._complain(report.error)
        elif report.outcome != "completed":
            self._screen.print(styled(INTERRUPTED, YELLOW))
        self._screen.print("")

    def end_view(self) -> None:
        if self._view is not None:
            self._view.end()
        self._view = None
        self._screen.is_working = False
        self._screen.show(self._live)

    def echo(self, line: str) -> None:
        if not line:
            return
        self._screen.print(paint_words(line, self._screen.columns))

    def switched(self, reason: Reason) -> None:
        if reason != "branch":
            self._last = None
            self._screen.status = self._screen.status._replace(tokens=0 if reason == "new" else None)

    async def repaint(self, row: Session, entries: Sequence[Recorded]) -> bool:
        columns, most_lines = self._screen.columns, MOST_SCREENS * self._screen.rows
        past = await in_thread(lambda: paint_past_turns(entries, columns, most_lines, self._clock))
        self.say(headline(row))
        if not past.is_all:
            self.say(f"Earlier messages: talaria sessions show {row.id}")
        self._screen.print("\n".join(["", *past.lines]).rstrip("\n"))
        self._last = past.last
        if past.tokens is not None:
            self._fill(past.tokens, self._screen.status.window)
        return True

    def note(self, text: str) -> None:
        """What the model is told while it works."""
        told = styled(f"  ↪ {readable(text)}", CYAN) + styled("  (told at its next step)", DIM)
        if self._view is not None:
            self._view.add_note(told)
        else:
            self._screen.print(told)

    def wants_details(self) -> None:
        told = self._last.details() if self._last else ""  # also of a turn that runs, once something has happened in it
        self._screen.print(told or styled("  No tool was used, and nothing is known of what was thought.", DIM))

    async def tick(self) -> None:
        """Time is seen to pass."""
        while True:
            await asyncio.sleep(TICK_S)
            if self._view is not None:
                self._screen.redraw()

    def _complain(self, error: TalariaError) -> None:
        self._screen.print(styled(paragraphs(readable(runnable(str(error))), self._screen.columns), RED))

    def _live(self, columns: int) -> str:
        shown = [self._view.live(columns)] if self._view else []
        shown += [styled(cut(f"  queued: {' '.join(readable(line).split())}", columns), DIM) for line in self._lines]
        return "\n".join(shown)

    def _fill(self, tokens: int, window: int | None) -> None:
        self._screen.status = self._screen.status._replace(tokens=tokens, window=window)
