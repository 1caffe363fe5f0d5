"""A project with a recorder, and turns that change it as commands do."""

import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from talaria.core.ids import SessionId
from talaria.core.redaction import Redactor
from talaria.store.sqlite.undo import SqliteUndoStore
from talaria.tools.undo.change_recorder import ChangeRecorder, undo_file
from talaria.tools.undo.checkpoints import Checkpoints, OldCheckpoints, RestoreResult, checkpoint_folder
from talaria.tools.undo.project_record import ProjectRecord
from talaria.tools.undo.scan import CheckpointSettings

SESSION = SessionId("session-1")
Picture = dict[str, tuple[object, ...]]
"""What is in a folder, by path: type and mode, and content, target, or which names are one and the same file."""


def picture(folder: Path) -> Picture:
    found: Picture = {}
    names: dict[int, str] = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        name = str(path.relative_to(folder))
        if stat.S_ISLNK(info.st_mode):
            found[name] = ("link", str(path.readlink()))
        elif stat.S_ISDIR(info.st_mode):
            found[name] = ("folder", stat.S_IMODE(info.st_mode))
        elif stat.S_ISREG(info.st_mode):
            first = names.setdefault(info.st_ino, name) if info.st_nlink > 1 else name
            content = path.read_bytes() if os.access(path, os.R_OK) else None
            found[name] = ("file", stat.S_IMODE(info.st_mode), content, first)
        else:
            found[name] = ("other", info.st_mode)
    return found


class Project:
    def __init__(self, work: Path, home: Path, settings: CheckpointSettings | None = None) -> None:
        self.work = work
        self.home = home
        self.now = 1_000.0
        self.background: set[str] = set()
        self.recorder = ChangeRecorder(
            SqliteUndoStore(undo_file(home)),
            home,
            settings,
            now=lambda: self.now,
            has_background=lambda session: session in self.background,
        )

    @property
    def record(self) -> ProjectRecord:
        return self.recorder.project(self.work)

    @property
    def checkpoints(self) -> Checkpoints:
        return self.recorder.checkpoints(SESSION)

    @contextmanager
    def turn(self, name: str, *paths: Path, session: str = SESSION) -> Generator[None]:
        """A call that may change these files; without any: anything in the project."""
        first = max(OldCheckpoints(checkpoint_folder(self.home, SESSION)).numbers(), default=0) + 1
        recording = self.record.begin(session, name, paths or None, first_number=first)
        assert recording is not None
        yield
        self.record.end(recording)

    def command(self, turn: str, work: Callable[[], object]) -> None:
        with self.turn(turn):
            work()

    def restore(self, number: int, *, everything: bool = False) -> dict[str, RestoreResult]:
        """What became of files, by their names in the project."""
        outcomes = self.checkpoints.restore(number, everything=everything).outcomes
        return {str(one.path.relative_to(self.work)): one for one in outcomes}

    def changes(self, number: int) -> dict[str, str]:
        return {one.path: one.kind for one in self.checkpoints.changes_since(number, Redactor())}
