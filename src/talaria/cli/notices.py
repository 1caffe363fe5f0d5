"""What is said to a person: answers on stdout, and all that is said beside them on stderr.

How far long work is: on a terminal one line that is rewritten and goes at the end, elsewhere a line now and then.
"""

import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from talaria.cli.command_name import runnable
from talaria.cli.safe import printable


def show(*lines: str) -> None:
    """On stdout."""
    sys.stdout.writelines(f"{printable(line)}\n" for line in lines)
    sys.stdout.flush()


def say(text: str) -> None:
    """On stderr; commands in it are named so that they can be typed."""
    sys.stderr.write(f"{printable(runnable(text))}\n")
    sys.stderr.flush()


def complain(sentence: str) -> None:
    say(f"talaria: {sentence}")


def discard_output() -> None:
    """Whoever read stdout has left: what is written there from now on goes nowhere, and is no failure."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


REDRAW_S = 0.1
LINE_EVERY_S = 10.0
NARROWEST = 20


class Progress:
    """`with Progress("Copying") as show: show(3, 10)`: so much is done, of so much. Without the latter it counts."""

    def __init__(self, what: str, *, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._stream = stream or sys.stderr
        self._now = now
        self._is_terminal = self._stream.isatty()
        self._began_at = self._drawn_at = now()
        self._drawn_chars = 0

    def __enter__(self) -> Self:
        if self._is_terminal:
            self._draw(self._what)
        return self

    def __call__(self, done: int, total: int | None = None) -> None:
        if self._now() - self._drawn_at < (REDRAW_S if self._is_terminal else LINE_EVERY_S):
            return
        line = f"{self._what} · {_how_far(done, total)} · {_clock(self._now() - self._began_at)}"
        if self._is_terminal:
            self._draw(line)
        else:
            self._write(f"{printable(line)}\n")

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._drawn_chars:
            self._write(f"\r{' ' * self._drawn_chars}\r")

    def _draw(self, line: str) -> None:
        """Over what is there, without escape sequences: the simplest terminal can do it."""
        shown = " ".join(printable(line).split())[: self._columns() - 1]
        self._write(f"\r{shown.ljust(self._drawn_chars)}")
        self._drawn_chars = len(shown)

    def _columns(self) -> int:
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError):
            columns = 0
        return max(NARROWEST, columns or 80)  # some terminals do not know their size

    def _write(self, text: str) -> None:
        self._drawn_at = self._now()
        self._stream.write(text)
        self._stream.flush()


def _how_far(done: int, total: int | None) -> str:
    if total is None:
        return f"{done:,}"
    share = 100 * done // total if total else 100
    return f"{min(share, 100)} %"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"
