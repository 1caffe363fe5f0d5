"""Aids for typing a line: completions (commands, their arguments, files after an @), the history of earlier lines,
and folding of large pastes into one word until the line is sent.
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

HISTORY_FILE = "history"
MAX_HISTORY = 2_000
"""How many lines are kept; the oldest are dropped first."""
_ENTRY_START = re.compile(rb"^#", re.MULTILINE)


class InputHistory(FileHistory):
    """Earlier lines, without known secrets."""

    def __init__(self, home: Path, *, may_create: bool) -> None:
        """`may_create`: create the home if it does not exist."""
        self._file = home / HISTORY_FILE
        try:
            if may_create:
                home.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._file, os.O_CREAT | os.O_WRONLY, 0o600))  # nobody else may read it
        except OSError:
            self._file = Path(os.devnull)
        super().__init__(str(self._file))
        self.redact: Callable[[str], str] = lambda text: text
        self.unfold: Callable[[str], str] = lambda text: text

    def store_string(self, string: str) -> None:
        super().store_string(self.redact(self.unfold(string)))

    def trim(self) -> None:
        """Does nothing if the file cannot be replaced, or if others write to it at the same time."""
        try:
            before = self._file.stat()
            content = read_bytes(self._file, before.st_size)
            starts = [found.start() for found in _ENTRY_START.finditer(content)]
            if len(starts) > MAX_HISTORY and self._file.stat().st_size == before.st_size:
                replace_file(self._file, content[starts[-MAX_HISTORY] :], mode=0o600)
        except OSError:
            return


MAX_PASTED_LINES = 6
MAX_PASTED_CHARS = 800
_PASTED = re.compile(r"\[pasted #(\d+): [\d,]+ (?:lines|characters)\]")


class Pastes:
    def __init__(self) -> None:
        self._texts: list[str] = []

    def fold(self, text: str) -> str:
        """The word that stands for the text on the line, or the text itself if it is short."""
        lines = len(text.splitlines())
        if lines <= MAX_PASTED_LINES and len(text) <= MAX_PASTED_CHARS:
            return text
        self._texts.append(text)
        size = f"{lines:,} lines" if lines > MAX_PASTED_LINES else f"{len(text):,} characters"
        return f"[pasted #{len(self._texts)}: {size}]"

    def unfold(self, line: str) -> str:
        def text_of(word: re.Match[str]) -> str:
            number = int(word[1])
            return self._texts[number - 1] if 0 < number <= len(self._texts) else word[0]

        return _PASTED.sub(text_of, line)


MAX_OFFERED = 100
MAX_LISTED = 5_000
_GENERATED = frozenset(
    {"__pycache__", "node_modules", "bower_components", "venv", ".git", ".hg", ".svn", ".jj", ".venv", ".tox", ".nox"}
    | {".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".cache", ".gradle", ".next", ".terraform"}
)
"""Folders that programs fill. A file in them is not suggested unless the folder is named."""


class Suggestion(NamedTuple):
    text: str
    about: str = ""


class LineCompleter(Completer):
    """Completes files, and also commands and their arguments once `commands` and `arguments` are set."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.commands: Callable[[str], Sequence[Suggestion]] = lambda _: ()
        """Takes the start of a line."""
        self.arguments: Callable[[str], Sequence[Suggestion]] = lambda _: ()
        """Takes the name of a command."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002  (of the port)
        text = document.text_before_cursor
        if text.startswith("/") and "\n" not in text:
            command, space, argument = text.partition(" ")
            if not space:
                yield from (_completion(one, len(text)) for one in self.commands(command))
                return
            wanted = argument.lower()
            fitting = (one for one in self.arguments(command[1:]) if wanted in f"{one.text} {one.about}".lower())
            yield from (_completion(one, len(argument)) for one in fitting)
        before, mark, word = text.rpartition("@")
        starts_word = not before or before[-1].isspace() or before[-1] in "(\"'"
        if mark and starts_word and not any(char.isspace() for char in word):
            is_path = "/" in word or word.startswith(("~", "."))
            for path in _complete_path(word, self._folder) if is_path else _search_files(word, self._folder):
                yield Completion(path, start_position=-len(word), display=visible(path))


def _completion(one: Suggestion, replaced: int) -> Completion:
    return Completion(one.text, start_position=-replaced, display=readable(one.text), display_meta=readable(one.about))


def _complete_path(word: str, folder: Path) -> Iterator[str]:
    """Names in the folder that was typed. A generated folder is offered only if nothing else can be meant."""
    typed, _, start = word.rpartition("/")
    place = folder / Path(f"{typed}/" if typed or word.startswith("/") else ".").expanduser()
    try:
        entries = sorted(os.scandir(place), key=lambda entry: entry.name)
    except OSError:
        return
    prefix = f"{typed}/" if "/" in word else ""
    fitting = [
        entry
        for entry in entries[:MAX_LISTED]
        if entry.name.startswith(start) and (start.startswith(".") or not entry.name.startswith("."))
    ]
    is_alone = bool(start) and len(fitting) == 1
    for entry in fitting:
        if is_alone or entry.name == start or not _is_generated(entry.name):
            yield f"{prefix}{entry.name}{'/' if entry.is_dir() else ''}"


def _is_generated(name: str) -> bool:
    return name in _GENERATED or name.endswith(".egg-info")


def _search_files(word: str, folder: Path) -> Iterator[str]:
    """Files below the folder whose path contains the word, the best match first."""
    wanted, found, left = word.lower(), list[str](), MAX_LISTED  # a home folder may be huge
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not (_is_generated(name) or name.startswith(".")))
        prefix = os.path.relpath(place, folder)
        paths = [name if prefix == "." else f"{prefix}/{name}" for name in sorted(files)[:left]]
        found += [path for path in paths if wanted in path.lower()]
        left -= len(paths)
        if left <= 0:
            break
    found.sort(key=lambda path: (not path.rpartition("/")[2].lower().startswith(wanted), path.count("/"), path))
    yield from found[:MAX_OFFERED]
