"""The chat screen in a pseudo-terminal: how soon it takes a key, and how soon a key is seen while an answer streams
or a command prints without end."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from benchmarks.application import temporary_home
from benchmarks.measuring import Lap, Plan, percentile
from benchmarks.model_server import model_server
from benchmarks.programs import PYTHON, TALARIA
from benchmarks.table import Row

_FLOOR = (PYTHON, str(Path(__file__).with_name("floors") / "prompt.py"))
_FIRST_KEY = "ж"
_READY = re.compile(f"›.*{_FIRST_KEY}".encode(), re.DOTALL)
_STREAMS = re.compile(b"Writing")
_PRINTS = re.compile(b"(?:lorem.*){4}", re.DOTALL)
"""The command, and some of the lines that it prints."""
_DELTAS_PER_S = 200
_LETTERS = [chr(code) for code in range(0x0410, 0x0430)]
"""None of them is in the answer, nor on the line before it is typed."""
_BETWEEN_KEYS_S = 0.05
_AFTER_CLEARING_S = 0.5
_CLEAR = "\x15"
_WARM_UP = 2
_PATIENCE_S = 20.0


def rows(plan: Plan) -> Iterator[Row]:
    runs, keys = plan.of(21, 5), plan.of(256, 96)
    with temporary_home() as home, model_server() as server:
        (home / "config.yaml").write_text(f"model:\n  base_url: {server}/stream/{_DELTAS_PER_S}\n")
        floor, ours = _until_ready(home, runs)
        yield Row("prompt ready / a bare prompt", floor.median_ms, ours.median_ms, "ms", runs, times=1.3)
        quiet, streaming = _echoes(_FLOOR, home, keys), _echoes(_ours("custom:test"), home, keys, _STREAMS)
        (home / "config.yaml").write_text(f"model:\n  base_url: {server}/print/100\n")
        printing = _echoes(_ours("custom:test"), home, keys, _PRINTS)
    what = f"key, {_DELTAS_PER_S} deltas/s"
    yield Row(f"{what}, p50 / a bare prompt", percentile(quiet, 50), percentile(streaming, 50), "ms", keys)
    yield Row(f"{what}, p99 / a bare prompt", percentile(quiet, 99), percentile(streaming, 99), "ms", keys, limit=50)
    yield Row(f"{what}, longest / a bare prompt", max(quiet), max(streaming), "ms", keys)
    what = "key, a command prints"
    yield Row(f"{what}, p50 / a bare prompt", percentile(quiet, 50), percentile(printing, 50), "ms", keys)
    yield Row(f"{what}, p99 / a bare prompt", percentile(quiet, 99), percentile(printing, 99), "ms", keys, limit=50)


def _ours(model: str) -> Sequence[str]:
    return (TALARIA, "-m", model)


def _until_ready(home: Path, runs: int) -> tuple[Lap, Lap]:
    floor, ours = Lap(_WARM_UP), Lap(_WARM_UP)
    for _ in range(runs + _WARM_UP):
        for lap, command in ((floor, _FLOOR), (ours, _ours("demo"))):
            with lap:
                terminal = _Terminal(command, home)
                terminal.type(_FIRST_KEY)
                terminal.see(_READY)
            terminal.end()
    return floor, ours


def _echoes(command: Sequence[str], home: Path, keys: int, goes_on: re.Pattern[bytes] | None = None) -> list[float]:
    """Milliseconds from each key to its sight; with `goes_on`, once a turn is so far."""
    took: list[float] = []
    with _Terminal(command, home) as terminal:
        terminal.type(_FIRST_KEY)
        terminal.see(_READY)
        if goes_on is not None:
            terminal.type("\r")
            terminal.see(goes_on)
        for number in range(keys):
            letter = _LETTERS[number % len(_LETTERS)]
            if letter == _LETTERS[0]:
                terminal.type(_CLEAR)
                terminal.rest(_AFTER_CLEARING_S)  # what is still on the screen would not be drawn again
            terminal.rest(_BETWEEN_KEYS_S)
            began = time.perf_counter()
            terminal.type(letter)
            terminal.see(re.compile(letter.encode()))
            took.append((time.perf_counter() - began) * 1000)
    return took


class _Terminal:
    """Bytes in, bytes out: an emulator would be slower than what it looks at."""

    def __init__(self, command: Sequence[str], home: Path) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        quiet = termios.tcgetattr(slave)
        quiet[3] &= ~termios.ECHO  # what is seen was drawn by the program
        termios.tcsetattr(slave, termios.TCSANOW, quiet)
        environment = {
            "PROMPT_TOOLKIT_NO_CPR": "1",  # nobody here would answer where the cursor is
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "TALARIA_HOME": str(home),
            "TERM": "xterm-256color",
        }
        self._process = subprocess.Popen(
            command, env=environment, cwd=home.parent / "project", stdin=slave, stdout=slave, stderr=slave
        )
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def see(self, sight: re.Pattern[bytes]) -> None:
        """Waits until it is written."""
        written, deadline = b"", time.perf_counter() + _PATIENCE_S
        while not sight.search(written):
            written += self._read(deadline - time.perf_counter())
            if time.perf_counter() > deadline:
                raise RuntimeError(f"{sight.pattern!r} was not seen in {written[-2000:]!r}")

    def rest(self, seconds: float) -> None:
        """Lets it write."""
        until = time.perf_counter() + seconds
        while (left_s := until - time.perf_counter()) > 0:
            self._read(left_s)

    def _read(self, seconds: float) -> bytes:
        ready, _, _ = select.select([self._master], [], [], max(0.0, seconds))
        return os.read(self._master, 65536) if ready else b""

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)
