"""What was typed, kept for the next time. Known secrets are not."""

import os
import re
from collections.abc import Callable
from pathlib import Path

from prompt_toolkit.history import FileHistory

from talaria.files import read_bytes, replace_file

FILE = "history"
MOST_LINES = 2_000
"""That are kept; the oldest go first."""
_TYPED_AT = re.compile(rb"^#", re.MULTILINE)
"""Begins each of them in the file."""


class Typed(FileHistory):
    def __init__(self, home: Path, *, may_make: bool) -> None:
        """`may_make`: the home, if there is none."""
        self._file = _file(home, may_make=may_make)
        super().__init__(str(self._file))
        self.redacted: Callable[[str], str] = lambda text: text
        self.unfolded: Callable[[str], str] = lambda text: text

    def store_string(self, string: str) -> None:
        super().store_string(self.redacted(self.unfolded(string)))

    def trim(self) -> None:
        """A file that cannot be replaced stays as it is; so does one that others write to meanwhile."""
        try:
            known = self._file.stat()
            content = read_bytes(self._file, known.st_size)
            begun = [found.start() for found in _TYPED_AT.finditer(content)]
            if len(begun) > MOST_LINES and self._file.stat().st_size == known.st_size:
                replace_file(self._file, content[begun[-MOST_LINES] :], mode=0o600)
        except OSError:
            return


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
