"""The checkpoints of a conversation: what each turn changed in files, and how to go back.

Restoring a checkpoint puts every file that has changed since then back to its state before that turn, and saves what it
replaces as a new checkpoint. Changes by somebody else are left alone unless requested.

`OldCheckpoints` reads those of earlier versions: numbered folders with a manifest and blobs.
"""

import json
import os
import stat
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec

from talaria.core.errors import BadInput
from talaria.core.fs import safe_file_name
from talaria.core.ids import SessionId
from talaria.core.messages import FileChange
from talaria.core.redaction import Redactor
from talaria.core.trees import Root
from talaria.store.undo_port import ABSENT, ChangeRow, CheckpointRow, PathState, UndoStore
from talaria.tools.diffs import compare_contents, replace_surrogates
from talaria.tools.undo.project_record import INTERRUPTED, ProjectRecord, is_same, owner_name
from talaria.tools.undo.restore_files import Target, restore_targets

MAX_MANIFEST_BYTES = 16 << 20
_MANIFEST = "manifest.json"


class SavedFile(msgspec.Struct, frozen=True):
    """A file before it was changed."""

    path: str
    was_there: bool
    blob: str = ""
    """The name of its content; empty: there was no file, or it could not be kept."""
    mode: int = 0
    size_bytes: int = 0
    left: str = ""
    """The digest of the file after the change; empty: none."""


class OldCheckpoint(msgspec.Struct, frozen=True):
    number: int
    at: float
    turn: str = ""
    why: str = ""
    files: tuple[SavedFile, ...] = ()


def digest(content: bytes) -> str:
    return sha256(content).hexdigest()


class OldCheckpoints:
    def __init__(self, folder: Path) -> None:
        """`checkpoints/SESSION` of a home."""
        self._sessions = folder.parent
        self._name = folder.name

    def numbers(self) -> list[int]:
        """Oldest first. Raises `OSError`."""
        try:
            with self._open_folder() as folder:
                names = [entry.name for entry in folder.entries()]
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal())

    def all(self) -> Sequence[OldCheckpoint]:
        """Oldest first, without those that cannot be read."""
        found: list[OldCheckpoint] = []
        for number in self.numbers():
            with suppress(OSError, ValueError, RecursionError, msgspec.MsgspecError), self._open_folder() as folder:
                text = folder.read(f"{number}/{_MANIFEST}", MAX_MANIFEST_BYTES)
                found.append(msgspec.convert(json.loads(text), OldCheckpoint))  # not msgspec's: names may not be UTF-8
        return found

    def content(self, number: int, kept: SavedFile) -> Iterable[bytes]:
        """Raises `OSError`, also if the saved copy is damaged."""
        if kept.was_there and not kept.blob:
            raise OSError(0, "what it held before was too large to keep")
        with self._open_folder() as folder:
            content = folder.read(f"{number}/{kept.blob}", kept.size_bytes + 1)
        if digest(content) != kept.blob:
            raise OSError(0, "its saved copy is damaged")
        return (content,)

    @contextmanager
    def _open_folder(self) -> Generator[Root]:
        with Root.open(self._sessions) as sessions, sessions.folder(self._name) as folder:
            yield folder


MAX_COMPARED_BYTES = 1 << 20
_ANY_MODE = -1


def checkpoint_folder(home: Path, session: SessionId) -> Path:
    """The checkpoints of earlier versions."""
    return home / "checkpoints" / safe_file_name(session)


class TurnFileChange(msgspec.Struct, frozen=True):
    """What one turn did to one file."""

    path: Path
    was_there: bool
    size_bytes: int
    """Before the change."""
    is_folder: bool = False


class Checkpoint(msgspec.Struct, frozen=True):
    number: int
    at: float
    turn: str = ""
    why: str = ""
    """Set if no turn made it."""
    files: tuple[TurnFileChange, ...] = ()


class RestoreResult(msgspec.Struct, frozen=True):
    """What happened to one file."""

    path: Path
    what: Literal["restored", "removed", "same", "left", "failed"]
    """`left`: somebody else has changed it, so it was left alone."""
    was_changed: bool = False
    """By somebody else, after our last change."""
    reason: str = ""
    is_folder: bool = False


class RestoreReport(msgspec.Struct, frozen=True):
    number: int
    outcomes: tuple[RestoreResult, ...]
    saved_as: int | None
    """The checkpoint of what was replaced; None: nothing was."""
    left_out: Mapping[str, str] = {}
    """What is not recorded and so not restored, and why."""
    unrecorded: str = ""
    """Why changes by commands are not recorded at all."""


class _NetChange(msgspec.Struct):
    """All changes to one file since a checkpoint, as one change."""

    path: Path
    wanted: PathState
    """Before the first change."""
    content: Callable[[], Iterable[bytes]]
    left: tuple[int, bytes]
    """Mode and content after the last change."""
    is_own: bool
    """Nobody else changed it in between."""
    unfinished: PathState | None = None
    """What an interrupted restore may have left there as well."""

    def is_untouched(self, present: PathState) -> bool:
        """Since our last change."""
        mode, content = self.left
        if present.content == content and mode in (_ANY_MODE, present.mode):
            return True
        if self.unfinished is None:
            return False
        is_between = not present.mode and stat.S_IFMT(mode) != stat.S_IFMT(self.unfinished.mode)
        is_folder = stat.S_ISDIR(present.mode) and stat.S_ISDIR(mode)  # its mode is restored last
        return is_between or is_folder or present.is_like(self.unfinished)


class Checkpoints:
    """All methods block. They raise `OSError`, and errors of ours if the store cannot be used."""

    def __init__(
        self,
        home: Path,
        session: SessionId,
        store: UndoStore,
        record_of: Callable[[Path], ProjectRecord],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._session = session
        self._store = store
        self._record_of = record_of
        self._now = now
        self._old = OldCheckpoints(checkpoint_folder(home, session))

    def list(self) -> Sequence[Checkpoint]:
        """Newest first."""
        found = [
            Checkpoint(
                one.number,
                one.at,
                one.turn,
                one.why,
                tuple(TurnFileChange(Path(kept.path), kept.was_there, kept.size_bytes) for kept in one.files),
            )
            for one in self._old.all()
        ]
        for row in self._rows():
            changes = self._store.changes(self._session, row.number).values()
            project = Path(self._store.project_path(row.project))
            files = tuple(
                TurnFileChange(
                    project / one.path,
                    bool(one.before.mode),
                    one.before.size,
                    stat.S_ISDIR(one.before.mode or one.left_mode),
                )
                for one in changes
            )
            found.append(Checkpoint(row.number, row.at, row.turn, row.why, files))
        return [one for one in reversed(found) if one.files]

    def of_turn(self, turn: str) -> Checkpoint | None:
        return next((one for one in self.list() if one.turn == turn), None) if turn else None

    def restore(self, number: int, *, everything: bool = False) -> RestoreReport:
        """`everything`: also what somebody else has changed. Raises `BadInput` for an unknown number."""
        chains = self._net_changes(number)
        project = self._record_of(self._project(number, chains))
        present = {chain.path: project.observe(str(chain.path)) for chain in chains}
        outcomes: dict[Path, RestoreResult] = {}
        targets: list[Target] = []
        for chain in chains:
            now = present[chain.path]
            was_changed = not (chain.is_own and chain.is_untouched(now))
            is_folder = stat.S_ISDIR(chain.wanted.mode or now.mode)
            if is_same(now, chain.wanted):
                outcomes[chain.path] = RestoreResult(chain.path, "same", is_folder=is_folder)
            elif stat.S_ISREG(now.mode) and not now.content:
                reason = "its current content cannot be read, so it cannot be saved"
                outcomes[chain.path] = RestoreResult(chain.path, "failed", was_changed, reason)
            elif was_changed and not everything:
                outcomes[chain.path] = RestoreResult(chain.path, "left", was_changed=True, is_folder=is_folder)
            else:
                targets.append(Target(str(chain.path), chain.wanted, now, chain.content))
                what = "restored" if chain.wanted.mode else "removed"
                outcomes[chain.path] = RestoreResult(chain.path, what, was_changed=was_changed, is_folder=is_folder)
        saved_as = self._restore_targets(number, project, targets, outcomes) if targets else None
        rows = self._store.checkpoints(self._session)
        made_at = next((row.at for row in rows if row.number >= number), self._now())
        left_out = {} if project.reason else self._store.list_excluded(project.id, made_at)
        return RestoreReport(number, tuple(outcomes.values()), saved_as, left_out, project.reason)

    def _restore_targets(
        self, number: int, project: ProjectRecord, targets: Sequence[Target], outcomes: dict[Path, RestoreResult]
    ) -> int:
        """What is replaced is saved durably before anything is replaced."""
        first = max(self._old.numbers(), default=0) + 1
        row = CheckpointRow(
            self._session,
            project.next_number(self._session, first),
            project.id,
            "",
            self._now(),
            f"before going back to {number}",
            owner_name(),
        )
        with self._store.transaction(survives_power_cut=True):
            self._store.put_checkpoint(row)
            self._store.put_changes(
                row.session,
                row.number,
                (
                    ChangeRow(project.name_of(Path(one.path)), one.present, one.wanted.mode, one.wanted.content, True)
                    for one in targets
                ),
            )
        was_interrupted = any(one.owner == INTERRUPTED for one in self._store.checkpoints(self._session))
        for path, reason in restore_targets(targets, was_interrupted=was_interrupted).items():
            known = outcomes.get(Path(path)) or RestoreResult(Path(path), "failed", is_folder=True)
            outcomes[Path(path)] = msgspec.structs.replace(known, what="failed", reason=reason)
        project.refresh([name for one in targets if not (name := project.name_of(Path(one.path))).startswith("/")])
        self._store.set_owner(row.session, row.number, "")
        return row.number

    def changes_since(self, number: int, redactor: Redactor) -> Iterator[FileChange]:
        """What is different now, file by file."""
        for chain in self._net_changes(number):
            project = self._record_of(self._project(number, [chain]))
            now = project.observe(str(chain.path))
            if now.is_like(chain.wanted) or stat.S_ISDIR(now.mode or chain.wanted.mode):
                continue
            new = partial(self._store.content, now.content)
            yield compare_states(project.name_of(chain.path), chain.wanted, now, chain.content, new, redactor)

    def _rows(self) -> Sequence[CheckpointRow]:
        """Settles first what a crash or a background process has left."""
        rows = self._store.checkpoints(self._session)
        for project in {row.project for row in rows}:
            self._record_of(Path(self._store.project_path(project))).settle(self._session)
        return self._store.checkpoints(self._session)

    def _project(self, number: int, chains: Sequence[_NetChange]) -> Path:
        row = next((row for row in self._store.checkpoints(self._session) if row.number >= number), None)
        if row is not None:
            return Path(self._store.project_path(row.project))
        return chains[0].path.parent  # from an earlier version, which did not know projects

    def _net_changes(self, number: int) -> Sequence[_NetChange]:
        rows = self._rows()
        numbers = {*(row.number for row in rows), *self._old.numbers()}
        if number not in numbers:
            raise BadInput(f"There is no checkpoint {number}.")
        found: dict[Path, _NetChange] = {}
        for chain in tuple(self._list_changes(number, rows)):
            known = found.setdefault(chain.path, chain)
            if known is not chain:
                known.is_own = known.is_own and chain.is_own and known.is_untouched(chain.wanted)
                known.left, known.unfinished = chain.left, chain.unfinished
        return tuple(found.values())

    def _list_changes(self, number: int, rows: Sequence[CheckpointRow]) -> Iterator[_NetChange]:
        """Oldest first; earlier versions made the old ones."""
        for old in self._old.all():
            for kept in old.files if old.number >= number else ():
                mode = stat.S_IFREG | kept.mode
                wanted = PathState(mode, kept.size_bytes, 0, 1, bytes.fromhex(kept.blob)) if kept.was_there else ABSENT
                content = partial(self._old.content, old.number, kept)
                left = (_ANY_MODE if kept.left else 0, bytes.fromhex(kept.left))
                yield _NetChange(Path(kept.path), wanted, content, left, is_own=True)
        for row in rows:
            if row.number < number:
                continue
            project = Path(self._store.project_path(row.project))
            for one in self._store.changes(row.session, row.number).values():
                yield _NetChange(
                    project / one.path,
                    one.before,
                    partial(self._store.content, one.before.content),
                    (one.left_mode, one.left_content),
                    is_own=one.is_sure,
                    unfinished=one.before if row.owner == INTERRUPTED else None,
                )


def compare_states(
    path: str,
    before: PathState,
    after: PathState,
    old: Callable[[], Iterable[bytes]],
    new: Callable[[], Iterable[bytes]],
    redactor: Redactor,
) -> FileChange:
    """For people: files as a diff, links and modes as a note."""
    kind = "created" if not before.mode else "deleted" if not after.mode else "changed"
    notes = [
        f"{'was ' if state is before else ''}a link to {replace_surrogates(os.fsdecode(state.content))}"
        for state in (before, after)
        if stat.S_ISLNK(state.mode) and not before.is_like(after)
    ]
    if kind == "changed" and stat.S_IMODE(before.mode) != stat.S_IMODE(after.mode):
        notes.append(f"mode {stat.S_IMODE(before.mode):o} → {stat.S_IMODE(after.mode):o}")
    if any(stat.S_ISREG(state.mode) and not state.content for state in (before, after)):
        return FileChange(path, kind, note="; ".join([*notes, "cannot be read"]))
    if any(stat.S_ISREG(state.mode) and state.size > MAX_COMPARED_BYTES for state in (before, after)):
        sizes = " → ".join(f"{state.size:,} bytes" for state in (before, after) if state.mode)
        return FileChange(path, kind, note="; ".join([*notes, sizes]))
    texts = [b"".join(read()) if stat.S_ISREG(state.mode) else None for state, read in ((before, old), (after, new))]
    if texts == [None, None] or before.content == after.content:
        return FileChange(path, kind, note="; ".join(notes))
    change = compare_contents(path, texts[0], texts[1], redactor)
    note = "; ".join(filter(None, [*notes, change.note]))
    return msgspec.structs.replace(change, kind=kind, note=note)
