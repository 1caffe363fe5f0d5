"""What is shown of a conversation on the screen: its turns, what is said beside them, and the lines that wait."""

import asyncio
from collections import deque
from collections.abc import Sequence

from talaria.cli.command_name import runnable
from talaria.cli.conversation import INTERRUPTED
from talaria.cli.safe import readable
from talaria.cli.screen.painting import CYAN, DIM, RED, YELLOW, styled
from talaria.cli.screen.past_turns import paint_past_turns, paint_words
from talaria.cli.screen.screen import Screen
from talaria.cli.screen.terminal_person import ScreenPerson
from talaria.cli.screen.turn_view import TurnView
from talaria.cli.screen.width import cut, paragraphs
from talaria.core.clock import Clock
from talaria.core.entries import Recorded
from talaria.core.errors import TalariaError
from talaria.core.events import Event
from talaria.runtime.builtin_commands import headline
from talaria.runtime.open_chat import Reason
from talaria.runtime.recorder import Observer
from talaria.runtime.turn_runner import Report
from talaria.store.base import Session
from talaria.waiting import in_thread

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
