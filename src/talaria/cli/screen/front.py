"""What is shown of a conversation on the screen: its turns, what is said beside them, and the lines that wait."""

import asyncio
from collections import deque

from talaria.cli.conversation import INTERRUPTED
from talaria.cli.safe import readable
from talaria.cli.screen.painting import BOLD, CYAN, DIM, RED, YELLOW, styled
from talaria.cli.screen.person import ScreenPerson
from talaria.cli.screen.screen import PROMPT, Screen
from talaria.cli.screen.turn_view import TurnView
from talaria.cli.screen.width import cut, paragraphs
from talaria.model.clock import Clock
from talaria.model.errors import TalariaError
from talaria.runtime.recorder import Observer
from talaria.runtime.turn import Report

TICK_S = 0.1
MOST_ECHOED_LINES = 12


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
        self._screen.print(styled(paragraphs(readable(text), self._screen.columns), DIM))

    def failed(self, error: TalariaError) -> None:
        self.end_view()
        self._complain(error)

    def observer(self) -> Observer:
        self._view = self._last = TurnView(self._screen, self._clock, self._fill)
        self._screen.is_working = True
        self._screen.show(self._live)
        return self._view.show

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
        """What the person has said, or the beginning of it."""
        if not line:
            return
        first, *others = paragraphs(readable(line), self._screen.columns - len(PROMPT)).split("\n")
        kept = others[: MOST_ECHOED_LINES - 1]
        left = len(others) - len(kept)
        more = [styled(f"  … {left} more lines", DIM)] if left else []
        self._screen.print(
            "\n".join([styled(PROMPT, CYAN, BOLD) + styled(first, BOLD), *(f"  {one}" for one in kept), *more])
        )

    def note(self, text: str) -> None:
        """What the model is told while it works."""
        told = styled(f"  ↪ {readable(text)}", CYAN) + styled("  (told at its next step)", DIM)
        if self._view is not None:
            self._view.add_note(told)
        else:
            self._screen.print(told)

    def wants_details(self) -> None:
        shown = self._view or self._last
        told = shown.details() if shown else ""
        self._screen.print(told or styled("  No tool was used, and nothing is known of what was thought.", DIM))

    async def tick(self) -> None:
        """Time is seen to pass."""
        while True:
            await asyncio.sleep(TICK_S)
            if self._view is not None:
                self._screen.redraw()

    def _complain(self, error: TalariaError) -> None:
        self._screen.print(styled(paragraphs(readable(str(error)), self._screen.columns), RED))

    def _live(self, columns: int) -> str:
        shown = [self._view.live(columns)] if self._view else []
        shown += [styled(cut(f"  queued: {' '.join(readable(line).split())}", columns), DIM) for line in self._lines]
        return "\n".join(shown)

    def _fill(self, tokens: int, window: int | None) -> None:
        self._screen.status = self._screen.status._replace(tokens=tokens, window=window)
