"""Output for people: answers on stdout, everything else on stderr.

The progress of long work is one line on a terminal, rewritten and finally removed; elsewhere a line now and then.
"""

import os
import sys
import time
from collections.abc import Callable
from io import TextIOWrapper
from types import TracebackType
from typing import Self, TextIO

from talaria.cli.command_name import runnable
from talaria.cli.safe import printable


def show(*lines: str) -> None:
    """Write to stdout."""
    sys.stdout.writelines(f"{printable(line)}\n" for line in lines)
    sys.stdout.flush()


def say(text: str) -> None:
    """Write to stderr; commands in the text are spelled so that they can be typed."""
    sys.stderr.write(f"{printable(runnable(text))}\n")
    sys.stderr.flush()


def complain(sentence: str) -> None:
    say(f"talaria: {sentence}")


def replace_unencodable() -> None:
    """A character that the terminal cannot encode must not end a turn."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def discard_output() -> None:
    """After the reader of stdout has left: further output is dropped without an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


REDRAW_S = 0.1
LINE_EVERY_S = 10.0
MIN_COLUMNS = 20


class Progress:
    """`with Progress("Copying") as show: show(3, 10)` shows 30 %; without a total it shows a count."""

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
        share = 100 * done // total if total else 100
        minutes, seconds = divmod(int(self._now() - self._began_at), 60)
        line = f"{self._what} · {f'{done:,}' if total is None else f'{min(share, 100)} %'} · {minutes}:{seconds:02}"
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
        """Over the previous line, without escape sequences, so that it works on the simplest terminal."""
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError):
            columns = 0
        columns = max(MIN_COLUMNS, columns or 80)  # some terminals do not know their size
        shown = " ".join(printable(line).split())[: columns - 1]
        self._write(f"\r{shown.ljust(self._drawn_chars)}")
        self._drawn_chars = len(shown)

    def _write(self, text: str) -> None:
        self._drawn_at = self._now()
        self._stream.write(text)
        self._stream.flush()
