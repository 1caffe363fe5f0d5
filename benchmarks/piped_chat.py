"""A chat that reads its lines from a pipe: how long a turn takes late in it, beside one soon after its beginning."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from benchmarks.application import temporary_home
from benchmarks.measuring import Lap, Plan
from benchmarks.model_server import model_server
from benchmarks.programs import TALARIA
from benchmarks.table import Row

_EARLY, _LATE = 20, 400
_AROUND = 10
"""Turns before and after it that are measured, too."""


def rows(plan: Plan) -> Iterator[Row]:
    early, late = Lap(), Lap()
    with model_server() as server:
        for _ in range(plan.of(5, 1)):
            with temporary_home() as home:
                (home / "config.yaml").write_text(f"model:\n  base_url: {server}/plain/0\n")
                _measure(home, early, late)
    yield Row(
        f"piped chat, turn {_LATE} / turn {_EARLY}", early.median_ms, late.median_ms, "ms", len(late.laps), times=1.3
    )


def _measure(home: Path, early: Lap, late: Lap) -> None:
    """Turn by turn in two chats: what disturbs one disturbs the other."""
    with _PipedChat(home) as old, _PipedChat(home) as young:
        old.ask(_LATE - _AROUND)
        young.ask(_EARLY - _AROUND)
        both = ((early, young), (late, old))
        for number in range(2 * _AROUND):
            for lap, chat in both if number % 2 else reversed(both):
                with lap:
                    chat.ask()


class _PipedChat:
    def __init__(self, home: Path) -> None:
        self._process = subprocess.Popen(
            [TALARIA, "chat", "-m", "custom:test"],
            env={"PATH": os.environ["PATH"], "HOME": str(home), "TALARIA_HOME": str(home)},
            cwd=home.parent / "project",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def ask(self, times: int = 1) -> None:
        """From the line that asks to the line that answers."""
        asking, answers = self._process.stdin, self._process.stdout
        if asking is None or answers is None:
            raise RuntimeError("the chat has no pipes")
        for _ in range(times):
            asking.write(b"And what about the other files of this program?\n")
            asking.flush()
            if not answers.readline().startswith(b"word"):
                raise RuntimeError("a turn was not answered")
