"""What the beginning of a line may become: commands and what they are given, and files behind an @.

What was typed, kept for the next time. Known secrets are not.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory

from talaria.cli.safe import readable, visible
from talaria.core.fs import read_bytes, replace_file

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


MOST = 100
MOST_WALKED = 5_000
_GENERATED = frozenset(
    {"__pycache__", "node_modules", "bower_components", "venv", ".git", ".hg", ".svn", ".jj", ".venv", ".tox", ".nox"}
    | {".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".cache", ".gradle", ".next", ".terraform"}
)
"""Folders that programs fill: nobody means a file in them, unless they say so."""


class Suggestion(NamedTuple):
    text: str
    about: str = ""


class LineCompleter(Completer):
    """Knows commands and their arguments once somebody has told it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.commands: Callable[[str], Sequence[Suggestion]] = lambda _: ()
        self.arguments: Callable[[str], Sequence[Suggestion]] = lambda _: ()
        """Of the command of this name."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002  (of the port)
        text = document.text_before_cursor
        if text.startswith("/") and "\n" not in text:
            command, space, argument = text.partition(" ")
            if not space:
                yield from (_made(offer, len(text)) for offer in self.commands(command))
                return
            wanted = argument.lower()
            fitting = (one for one in self.arguments(command[1:]) if wanted in f"{one.text} {one.about}".lower())
            yield from (_made(offer, len(argument)) for offer in fitting)
        word = text.rpartition("@")[2]
        before = text[: len(text) - len(word)]
        if before.endswith("@") and not any(sign.isspace() for sign in word) and _begins_word(before[:-1]):
            for path in self._files(word):
                yield Completion(path, start_position=-len(word), display=visible(path))

    def _files(self, word: str) -> Iterator[str]:
        if "/" in word or word.startswith(("~", ".")):
            return _beside(word, self._folder)
        return _anywhere(word, self._folder)


def _begins_word(before: str) -> bool:
    return not before or before[-1].isspace() or before[-1] in "(\"'"


def _made(offer: Suggestion, replaced: int) -> Completion:
    return Completion(
        offer.text, start_position=-replaced, display=readable(offer.text), display_meta=readable(offer.about)
    )


def _beside(word: str, folder: Path) -> Iterator[str]:
    """The names in the folder that was typed. One that programs fill is offered to whoever can mean nothing else."""
    typed, _, begun = word.rpartition("/")
    place = folder / Path(f"{typed}/" if typed or word.startswith("/") else ".").expanduser()
    try:
        entries = sorted(os.scandir(place), key=lambda entry: entry.name)
    except OSError:
        return
    prefix = f"{typed}/" if "/" in word else ""
    fitting = [
        entry
        for entry in entries[:MOST_WALKED]
        if entry.name.startswith(begun) and (begun.startswith(".") or not entry.name.startswith("."))
    ]
    is_alone = bool(begun) and len(fitting) == 1
    for entry in fitting:
        if is_alone or entry.name == begun or not _is_generated(entry.name):
            yield f"{prefix}{entry.name}{'/' if entry.is_dir() else ''}"


def _is_generated(name: str) -> bool:
    return name in _GENERATED or name.endswith(".egg-info")


def _anywhere(word: str, folder: Path) -> Iterator[str]:
    """Files below the folder whose path holds the letters typed, the closest first."""
    wanted = word.lower()
    found = [path for path in _walked(folder) if wanted in path.lower()]
    found.sort(key=lambda path: (not path.rpartition("/")[2].lower().startswith(wanted), path.count("/"), path))
    yield from found[:MOST]


def _walked(folder: Path) -> Iterator[str]:
    """A bounded look: a home folder has no end."""
    left = MOST_WALKED
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not (_is_generated(name) or name.startswith(".")))
        prefix = os.path.relpath(place, folder)
        for name in sorted(files):
            yield name if prefix == "." else f"{prefix}/{name}"
            left -= 1
            if left <= 0:
                return
