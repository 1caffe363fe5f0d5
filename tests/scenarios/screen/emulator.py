"""A terminal with a program in it: a real pseudo-terminal, and an emulator that knows what is on the screen."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import pyte

from talaria.testing.patience import PATIENCE_S

ENTER, ESCAPE, TAB, INTERRUPT, END = "\r", "\x1b", "\t", "\x03", "\x04"
UP, DOWN, PAGE_DOWN, PAGE_UP = "\x1b[A", "\x1b[B", "\x1b[6~", "\x1b[5~"
FIRST_PAGE, LAST_PAGE = "\x1b[H", "\x1b[F"
NEW_LINE, DETAILS, SEARCH, STEER = "\n", "\x0f", "\x12", "\x13"
_BRACKETED_PASTE = 2004 << 5  # as pyte keeps private modes

_JOINERS = dict.fromkeys((0x200C, 0x200D, 0xFE0E, 0xFE0F, *range(0xE0020, 0xE0080)))
"""pyte forgets the rest of a text behind them; without them it draws as terminals do that join nothing."""


class _Screen(pyte.HistoryScreen):
    """Keeps what a program does beside writing: titles, and whatever else it may try."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__(columns, rows, history=2_000, ratio=0.5)
        self.titles: list[str] = []

    def set_title(self, param: str) -> None:
        self.titles.append(param)

    def draw(self, data: str) -> None:
        super().draw(data.translate(_JOINERS))

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        """As terminals do: what no longer fits leaves at the top, and only as much of it as must."""
        rows, row = lines or self.lines, self.cursor.y
        over = max(0, row + 1 - rows)
        self.cursor.y = self.lines - 1
        for _ in range(over):
            self.index()
        self.cursor.y = row - over
        for gone in range(rows, self.lines):
            self.buffer.pop(gone, None)
        self.lines = min(rows, self.lines)
        super().resize(rows, columns)


class Terminal:
    def __init__(
        self,
        command: Sequence[str],
        environment: dict[str, str],
        *,
        columns: int = 80,
        rows: int = 24,
        cwd: str | None = None,
    ) -> None:
        self._emulated = _Screen(columns, rows)
        self._stream = pyte.ByteStream(self._emulated)
        self.raw = b""
        """All that was written to it."""
        self._gone: list[str] = []
        self._master, slave = pty.openpty()
        self._set_size(columns, rows)
        self._process = subprocess.Popen(
            command,
            env={"TERM": "xterm-256color", **environment},
            cwd=cwd or environment.get("PWD"),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509  (two calls, which take no lock)
        )
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        os.close(self._master)

    def kill(self) -> None:
        """At once: nobody is asked."""
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lines(self) -> list[str]:
        """On the screen, without the blanks at their ends."""
        return [line.rstrip() for line in self._emulated.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines).rstrip("\n")

    @property
    def scrollback(self) -> list[str]:
        """What has left the screen at the top, and the screen."""
        columns = self._emulated.columns
        above: list[Any] = list(self._emulated.history.top)
        self._gone += ["".join(row[at].data for at in range(columns)).rstrip() for row in above[len(self._gone) :]]
        return [*self._gone, *self.lines]

    @property
    def cells(self) -> list[list[Any]]:
        """Every sign on the screen with its colours."""
        buffer = self._emulated.buffer
        return [
            [buffer[row][column] for column in range(self._emulated.columns)] for row in range(self._emulated.lines)
        ]

    @property
    def cursor(self) -> tuple[int, int]:
        """Column and row."""
        return self._emulated.cursor.x, self._emulated.cursor.y

    @property
    def status(self) -> str:
        """The last line that is written on."""
        return next((line for line in reversed(self.lines) if line), "")

    @property
    def typed(self) -> str:
        """What stands on the line, without its prompt."""
        first = max((row for row, line in enumerate(self.lines) if line.startswith("›")), default=len(self.lines))
        return "\n".join(line[2:] for line in self.lines[first : self._status_row]).rstrip("\n")

    @property
    def _status_row(self) -> int:
        return max((row for row, line in enumerate(self.lines) if line), default=0)

    @property
    def is_restored(self) -> bool:
        """As it was found: keys are echoed in whole lines, pastes come as they are, the cursor is seen."""
        local = termios.tcgetattr(self._master)[3]
        is_cooked = all(local & mode for mode in (termios.ECHO, termios.ICANON, termios.ISIG))
        return is_cooked and not self._emulated.cursor.hidden and not self.takes_pastes

    @property
    def takes_pastes(self) -> bool:
        """They are told apart from typing."""
        return _BRACKETED_PASTE in self._emulated.mode

    @property
    def titles(self) -> Sequence[str]:
        return self._emulated.titles

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def say(self, line: str) -> None:
        self.type(f"{line}{ENTER}")

    def paste(self, text: str) -> None:
        self.type(f"\x1b[200~{text}\x1b[201~")

    def resize(self, columns: int, rows: int) -> None:
        self._emulated.resize(rows, columns)
        self._set_size(columns, rows)
        os.killpg(self._process.pid, signal.SIGWINCH)

    def see(self, *texts: str) -> str:
        """The screen, once all of these are on it or above it."""
        return self.wait(lambda: all(any(text in line for line in self.scrollback) for text in texts), texts)

    def see_gone(self, *texts: str) -> str:
        """The screen, once none of these is on it."""
        return self.wait(lambda: not any(text in self.text for text in texts), texts)

    def see_typed(self, text: str) -> str:
        """The screen, once this stands on the line, and nothing else."""
        return self.wait(lambda: self.typed == text, text)

    def wait(self, is_so: Callable[[], bool], what: object = "that") -> str:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            left_s = deadline - time.monotonic()
            if left_s < 0 or not (self.take(left_s) or is_so()):
                raise AssertionError(f"{what!r} did not come about on\n{self.text}")
        return self.text

    def take(self, seconds: float) -> bool:
        """What is written next, if anything is in that time. False: the program has ended, or is silent."""
        ready, _, _ = select.select([self._master], [], [], max(0.0, seconds))
        if not ready:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # how Linux says that the other side is closed
            return False
        self.raw += data
        self._stream.feed(data)
        return True

    def end(self) -> int:
        """The exit code, once everything is on the screen."""
        deadline = time.monotonic() + PATIENCE_S
        while self.take(deadline - time.monotonic()):
            pass
        assert time.monotonic() < deadline, f"it goes on:\n{self.text}"
        return self._process.wait()

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _take_terminal() -> None:
    """So that its keys reach the program as signals, where it wants them so, also if our own tests ignore them because
    they run in the background."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def talaria(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "talaria.cli.main", *arguments]
