"""What was typed, kept for the next time. Known secrets are not."""

import os
from collections.abc import Callable
from pathlib import Path

from prompt_toolkit.history import FileHistory

FILE = "history"


class Typed(FileHistory):
    def __init__(self, home: Path, *, may_make: bool) -> None:
        """`may_make`: the home, if there is none."""
        super().__init__(str(_file(home, may_make=may_make)))
        self.redacted: Callable[[str], str] = lambda text: text

    def store_string(self, string: str) -> None:
        super().store_string(self.redacted(string))


def _file(home: Path, *, may_make: bool) -> Path:
    """Nobody else may read it."""
    file = home / FILE
    try:
        if may_make:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError:
        return Path(os.devnull)
    return file
