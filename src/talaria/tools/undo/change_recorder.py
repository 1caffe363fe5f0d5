"""Records projects around the calls that may change them. There is one recorder for all sessions of a process."""

import logging
import stat
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from talaria.core.aio import complete, in_thread
from talaria.core.errors import TalariaError
from talaria.core.ids import SessionId
from talaria.core.messages import FileChange
from talaria.store.undo_port import UndoStore
from talaria.tools.base import Scope
from talaria.tools.undo.checkpoints import Checkpoints, OldCheckpoints, checkpoint_folder, compare_states
from talaria.tools.undo.project_record import Difference, Progress, ProjectRecord, Recording
from talaria.tools.undo.scan import CheckpointSettings, ScanLimits, TooLarge

MAX_CHANGES = 12
"""Files of one call that are shown with their changes."""
PRUNED_EVERY_S = 24 * 3600.0
GIT = ".git"

log = logging.getLogger(__name__)


def undo_file(home: Path) -> Path:
    return home / "undo.db"


class RecordedChanges(msgspec.Struct, frozen=True):
    """What a call changed in the project, for people."""

    changes: tuple[FileChange, ...] = ()
    more: int = 0
    note: str = ""
    """Why it cannot be undone."""


class ChangeRecorder:
    def __init__(
        self,
        store: UndoStore,
        home: Path,
        settings: CheckpointSettings | None = None,
        *,
        now: Callable[[], float] = time.time,
        has_background: Callable[[SessionId], bool] = lambda _: False,
    ) -> None:
        """`has_background`: whether processes of a session run in the background."""
        self._home = home
        self._settings = settings or CheckpointSettings()
        self._now = now
        self._has_background = has_background
        self._store = store
        self._projects: dict[Path, ProjectRecord] = {}
        self._pruned_at = float("-inf")
        self._reported: set[tuple[SessionId, str]] = set()

    async def begin(
        self, scope: Scope, paths: tuple[Path, ...] | None, progress: Progress | None = None
    ) -> Recording | str:
        """Before a call that may change these files or, with None, anything in the project. A sentence means that it
        cannot be undone, and why. Raises `OSError` and errors of ours."""
        return await complete(in_thread(partial(self._begin, scope, paths, progress)))

    def _begin(self, scope: Scope, paths: tuple[Path, ...] | None, progress: Progress | None) -> Recording | str:
        if self._now() - self._pruned_at > PRUNED_EVERY_S:
            self._pruned_at = self._now()
            self.prune()
        record = self.project(scope.cwd)
        first = max(OldCheckpoints(checkpoint_folder(self._home, scope.session)).numbers(), default=0) + 1
        began = record.begin(scope.session, scope.turn, paths, first_number=first, progress=progress)
        return began or self._warn_once(scope, record.reason)

    def _warn_once(self, scope: Scope, reason: str) -> str:
        if (scope.session, reason) in self._reported:
            return ""
        self._reported.add((scope.session, reason))
        return f"[Changes by commands in {scope.cwd} cannot be undone: {reason}.]"

    async def end(self, scope: Scope, recording: Recording) -> RecordedChanges:
        """After the call. Raises `OSError` and errors of ours."""
        return await complete(in_thread(partial(self._end, scope, recording)))

    def _end(self, scope: Scope, recording: Recording) -> RecordedChanges:
        """Folders are not mentioned, nor are git's own files unless they are damaged."""
        try:
            differences = self.project(scope.cwd).end(recording)
        except TooLarge as fault:
            return RecordedChanges(note=self._warn_once(scope, str(fault)))
        files = {
            path: one
            for path, one in sorted(differences.items())
            if not stat.S_ISDIR(one.after.mode or one.before.mode) and not one.before.is_like(one.after)
        }
        own = {path: one for path, one in files.items() if GIT not in path.split("/")}
        changes = [*_find_damage(files)]
        for path, (before, after) in list(own.items())[:MAX_CHANGES]:
            old, new = partial(self._store.content, before.content), partial(self._store.content, after.content)
            changes.append(compare_states(path, before, after, old, new, scope.redactor))
        return RecordedChanges(tuple(changes), max(0, len(own) - MAX_CHANGES))

    def project(self, path: Path) -> ProjectRecord:
        """`path` is resolved."""
        known = self._projects.get(path)
        if known is None:
            settings = self._settings
            known = ProjectRecord(
                self._store,
                path,
                limits=ScanLimits(settings.max_files, settings.max_file_mb << 20, settings.max_project_mb << 20),
                without=(self._home,),
                now=self._now,
                has_background=lambda session: self._has_background(SessionId(session)),
            )
            if not settings.enabled:
                known.reason = "checkpoints are turned off (checkpoints.enabled)"
            elif Path.home().resolve().is_relative_to(path):
                known.reason = "it is your home folder, or a folder around it"
            known = self._projects.setdefault(path, known)
        return known

    def checkpoints(self, session: SessionId) -> Checkpoints:
        return Checkpoints(self._home, session, self._store, self.project, self._now)

    def has_created(self, session: SessionId, path: Path) -> bool:
        """Whether a file was created in this conversation. False if that is not known."""
        try:
            return self._store.has_created(session, str(path))
        except (OSError, TalariaError):
            return False

    def prune(self) -> None:
        """Drop what is too old, then the oldest of the rest until it fits."""
        rows, most = self._store.oldest(), self._settings.max_mb << 20
        too_old = [row for row in rows if row.at < self._now() - self._settings.keep_days * 86_400]
        rows = rows[len(too_old) :]
        if not too_old and (not rows or self._store.size_bytes() <= most):
            return
        self._store.drop(too_old)
        self._store.collect()
        while len(rows) > 1 and self._store.size_bytes() > most:
            oldest, rows = rows[: max(1, len(rows) // 4)], rows[max(1, len(rows) // 4) :]
            self._store.drop(oldest)
            self._store.collect()

    def forget(self, sessions: tuple[SessionId, ...]) -> None:
        if undo_file(self._home).exists():
            self._store.forget(sessions)

    def close(self) -> None:
        self._store.close()


def _find_damage(files: Mapping[str, Difference]) -> list[FileChange]:
    """Files that git cannot work without and that are gone."""
    gone: dict[str, list[str]] = {}
    for path, one in files.items():
        above, found, below = path.partition(f"{GIT}/")
        vital = below in ("HEAD", "config") or below.startswith(("objects/", "refs/heads/"))
        if found and not one.after.mode and vital and (not above or above.endswith("/")):
            gone.setdefault(above + GIT, []).append(below)
    return [
        FileChange(
            path,
            "changed",
            note=f"damaged: 1 file of git is gone: {names[0]}"
            if len(names) == 1
            else f"damaged: {len(names):,} files of git are gone, including {names[0]}",
        )
        for path, names in gone.items()
    ]
