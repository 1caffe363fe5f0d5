"""The record of one project: what it contains as far as we know, and which turn changed what.

Before the first change of a turn the whole project is recorded, including content; after each call it is compared with
that. Changes during a call were made by the call; changes at other times were made by the person.
"""

import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from talaria.core.trees import Root
from talaria.store.undo_port import (
    ABSENT,
    PIECE_BYTES,
    ChangeRow,
    CheckpointRow,
    KnownFile,
    Packed,
    PathState,
    UndoStore,
    pack,
    pack_piece,
)
from talaria.tools.undo.scan import USUAL, PathStamp, ScanLimits, TooLarge, find_path_stamp, make_path_stamp, scan

DOUBTFUL_NS = 2_000_000_000
"""A file modified this shortly before we read it may be modified again without a visible change of its time: some file
systems have a resolution of seconds."""
BATCH = 512
INTERRUPTED = "?"
"""In place of the owner: a restore that was not finished."""

Progress = Callable[[int, int], None]
"""Receives the number of files recorded, and of all."""


class Difference(NamedTuple):
    before: PathState
    after: PathState


class Recording(NamedTuple):
    """A running call, in the checkpoint of its turn."""

    session: str
    number: int
    token: object
    paths: tuple[str, ...] | None
    """The only ones it can change, relative to the project or absolute; None: anything in the project."""
    outside: Mapping[str, PathState]
    """Paths outside the project, before the call."""


class ProjectRecord:
    """All methods block. They raise `OSError`, and errors of ours if the store cannot be used."""

    def __init__(
        self,
        store: UndoStore,
        path: Path,
        *,
        limits: ScanLimits = USUAL,
        without: Sequence[Path] = (),
        now: Callable[[], float] = time.time,
        has_background: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`without`: folders that are not recorded. `has_background`: whether a session has background processes."""
        self.path = path
        self.reason = ""
        """Why only single files are recorded; empty: the whole project is."""
        self._store = store
        self._limits = limits
        self._without = without
        self._now = now
        self._has_background = has_background
        self._lock = threading.RLock()
        self._known: dict[str, KnownFile] = {}
        self._stamps: dict[str, PathStamp] = {}
        self._id: int | None = None
        self._version = -1
        self._recordings: dict[object, Recording] = {}
        self._left_out: dict[str, str] | None = None
        self._busy = set[str]()
        """Sessions whose processes ran in the background when we last looked."""

    @property
    def id(self) -> int:
        if self._id is None:
            self._id = self._store.project(str(self.path))
        return self._id

    def begin(
        self,
        session: str,
        turn: str,
        paths: Sequence[Path] | None,
        *,
        first_number: int = 1,
        progress: Progress | None = None,
    ) -> Recording | None:
        """Before a call that may change `paths`, or anything.

        None: it may change anything, and the project cannot be recorded.
        """
        with self._lock:
            # The turn's checkpoint; if the turn is unknown, each call has its own.
            latest = self._store.latest_checkpoint(session) if turn else None
            current = latest if latest and (latest.turn, latest.project) == (turn, self.id) else None
            names = None if paths is None else tuple(map(self.name_of, paths))
            inside = names and [name for name in names if not name.startswith("/")]
            is_whole = names is None or current is None
            if is_whole and not self.reason:
                try:
                    self.refresh(progress=progress, then=partial(self._settle, session))
                except TooLarge as fault:
                    self.reason = str(fault)
            if self.reason and names is None:
                return None
            if inside:
                self.refresh(inside, then=partial(self._settle, session))
            outside = {name: self.observe(name) for name in names or () if name.startswith("/")}
            row = current or CheckpointRow(
                session, self.next_number(session, first_number), self.id, turn, self._now(), "", ""
            )
            self._store.put_checkpoint(row._replace(owner=owner_name()))
            recording = Recording(session, row.number, object(), names, outside)
            self._recordings[recording.token] = recording
            self._busy.discard(session)
            return recording

    def end(self, recording: Recording) -> dict[str, Difference]:
        """After the call: what it changed. Raises `TooLarge` if that is not known."""
        with self._lock:
            self._recordings.setdefault(recording.token, recording)
            try:
                inside = recording.paths and [name for name in recording.paths if not name.startswith("/")]
                differences = self.refresh(inside, then=self._attribute)
                outside = {name: Difference(before, self.observe(name)) for name, before in recording.outside.items()}
                outside = {name: one for name, one in outside.items() if not one.before.is_like(one.after)}
                self._attribute_to(recording.session, recording.number, outside)
                return differences | outside
            except TooLarge as fault:
                self.reason = str(fault)
                raise
            finally:
                del self._recordings[recording.token]
                if self._has_background(recording.session):
                    self._busy.add(recording.session)
                open_ones = {(one.session, one.number) for one in self._recordings.values()}
                if (recording.session, recording.number) not in open_ones:
                    self._store.set_owner(recording.session, recording.number, "")

    def next_number(self, session: str, first: int = 1) -> int:
        latest = self._store.latest_checkpoint(session)
        return latest.number + 1 if latest is not None else first

    def settle(self, session: str) -> None:
        """Before anybody asks what was changed: looks once more if something may have changed."""
        with self._lock:
            is_open = any(row.owner != INTERRUPTED for row in self._store.open_checkpoints(self.id))
            if self.reason or not (is_open or self._busy or self._has_background(session)):
                return
            try:
                self.refresh(then=partial(self._settle, session))
            except TooLarge as fault:
                self.reason = str(fault)

    def _settle(self, session: str, differences: Mapping[str, Difference]) -> None:
        """Attributes what has changed since we last looked."""
        for row in self._store.open_checkpoints(self.id):
            if row.owner == INTERRUPTED or is_alive(row.owner):
                continue
            if row.why:  # a restore: what it was going to do is recorded
                self._store.set_owner(row.session, row.number, INTERRUPTED)
            else:
                self._attribute_to(row.session, row.number, differences, is_sure=False)
                self._store.set_owner(row.session, row.number, "")
        busy, self._busy = self._busy, {one for one in self._busy if self._has_background(one)}
        if self._attribute(differences):
            return
        if self._has_background(session):
            busy.add(session)
        for one in busy:
            latest = self._store.latest_checkpoint(one)
            if latest is not None and latest.project == self.id:
                self._attribute_to(one, latest.number, differences, is_sure=False)

    def _attribute(self, differences: Mapping[str, Difference]) -> bool:
        """To all running calls, including those of other processes. False: there are none."""
        running = [row for row in self._store.open_checkpoints(self.id) if not row.why and is_alive(row.owner)]
        for row in running:
            self._attribute_to(row.session, row.number, differences)
        return bool(running)

    def _attribute_to(
        self, session: str, number: int, differences: Mapping[str, Difference], *, is_sure: bool = True
    ) -> None:
        if not differences:
            return
        known = self._store.changes(session, number)
        rows: list[ChangeRow] = []
        for path, (before, after) in differences.items():
            row = known.get(path)
            is_own = row is None or (row.left_mode, row.left_content) == (before.mode, before.content)
            rows.append(
                ChangeRow(
                    path,
                    before if row is None else row.before,
                    after.mode,
                    after.content,
                    is_sure and is_own and (row is None or row.is_sure),
                )
            )
        self._store.put_changes(session, number, rows)

    # Looking at files

    def name_of(self, path: Path) -> str:
        return str(path.relative_to(self.path)) if path.is_relative_to(self.path) else str(path)

    def refresh(
        self,
        paths: Sequence[str] | None = None,
        *,
        progress: Progress | None = None,
        then: Callable[[Mapping[str, Difference]], object] = lambda _: None,
    ) -> dict[str, Difference]:
        """Read the present state of the project, or of `paths`, and return what differs from the known state.

        `then` receives that before it becomes the known state, in the same transaction: a crash loses both or neither.
        """
        with self._lock, Root.open(self.path) as root:
            project = self.id
            version = self._store.version()
            if version != self._version:
                self._known = self._store.files(project)
                self._stamps = {path: one.stamp for path, one in self._known.items()}
                self._version = version
            began_ns = time.time_ns()
            if paths is None:
                found, left_out = scan(root, self._limits, _identities(self._without))
                if found == self._stamps and left_out == self._left_out:
                    then({})
                    return {}
                gone = [
                    path
                    for path in self._stamps
                    if path not in found and not any(above in left_out for above in _with_folders(path))
                ]
                dropped = [path for path in self._stamps if path not in found]
            else:
                wanted = {above for path in paths for above in _with_folders(path)}
                stamps = {path: find_path_stamp(root, path) for path in wanted}
                found = {path: stamp for path, stamp in stamps.items() if stamp is not None}
                gone = dropped = [path for path in wanted if path in self._stamps and path not in found]
                left_out = None
            fresh = {path: stamp for path, stamp in found.items() if self._stamps.get(path) != stamp}
            observed = self._observe_all(root, fresh, began_ns, progress)
            for path in fresh.keys() - observed.keys():  # cannot be read any more; perhaps only its mode has changed
                known = self._known.get(path)
                if known is not None and _is_same_file(known.stamp, fresh[path]):
                    observed[path] = KnownFile(fresh[path], known.content)
                elif left_out is not None and root.find(path) is not None:
                    left_out[path] = "cannot be read"
            if left_out is not None and left_out != self._left_out:
                self._store.set_excluded(self.id, left_out, self._now())
                self._left_out = left_out
            differences = {
                path: Difference(state_of(self._known.get(path)), state_of(one)) for path, one in observed.items()
            } | {path: Difference(state_of(self._known[path]), ABSENT) for path in gone}
            differences = {path: one for path, one in differences.items() if not is_same(*one)}
            with self._store.transaction(survives_power_cut=bool(observed)):
                is_current = self._store.version() == self._version
                self._store.update_files(self.id, observed, dropped)
                then(differences)
            self._version = self._version if is_current else -1
            for path in dropped:
                del self._known[path]
                del self._stamps[path]
            self._known |= observed
            self._stamps |= {path: one.stamp for path, one in observed.items()}
            return differences

    def _observe_all(
        self, root: Root, fresh: Mapping[str, PathStamp], began_ns: int, progress: Progress | None
    ) -> dict[str, KnownFile]:
        """Stores their content, too. Leaves out files that are gone meanwhile or cannot be read."""
        observed: dict[str, KnownFile] = {}
        paths = iter(fresh)
        while batch := list(islice(paths, BATCH)):
            read = [_read_known(root, path) for path in batch]  # threads would not be faster
            with self._store.transaction():
                for path, found in zip(batch, read, strict=True):
                    one = self._keep(root, path, found)
                    if one is not None:
                        is_doubtful = max(one.stamp[2], one.stamp[3]) > began_ns - DOUBTFUL_NS
                        stamp = (*one.stamp[:3], 0, *one.stamp[4:])  # never equal to a real one
                        observed[path] = one._replace(stamp=stamp) if is_doubtful else one
            if progress is not None:
                progress(len(observed), len(fresh))
        return observed

    def _keep(self, root: Root, path: str, found: "KnownFile | tuple[KnownFile, Packed] | None") -> KnownFile | None:
        match found:
            case None:
                return None
            case KnownFile(stamp, content) if stat.S_ISREG(stamp[0]) and not content:  # too large to hold in memory
                return self._keep_large(root, path)
            case KnownFile():
                return found
            case (one, packed):
                self._store.add_content(packed)
                return one

    def _keep_large(self, root: Root, path: str) -> KnownFile | None:
        """Reads it twice: its content is stored under its digest."""
        try:
            with root.open_file(path) as file:
                first = hashlib.sha256()
                while piece := file.read(PIECE_BYTES):
                    first.update(piece)
                digest = first.digest()
                if not self._store.has_content(digest):
                    file.seek(0)
                    again = hashlib.sha256()
                    for number, piece in enumerate(iter(lambda: file.read(PIECE_BYTES), b"")):
                        again.update(piece)
                        self._store.add_piece(digest, number, *pack_piece(piece))
                    if again.digest() != digest:
                        self._store.drop_content(digest)
                        return None
                return KnownFile(make_path_stamp(os.fstat(file.fileno())), digest)
        except OSError:
            return None

    def observe(self, path: str) -> PathState:
        """A file anywhere, by its absolute path. Its content is stored; if it cannot be read, it is empty."""
        with self._lock, Root.open("/") as root, self._store.transaction():
            name = path.lstrip("/")
            found = self._keep(root, name, _read_known(root, name))
            if found is None and (stamp := find_path_stamp(root, name)) is not None:
                known = self._known.get(self.name_of(Path(path)))
                is_same = known is not None and _is_same_file(known.stamp, stamp)
                found = KnownFile(stamp, known.content if known is not None and is_same else b"")
            return state_of(found)


def state_of(known: KnownFile | None) -> PathState:
    if known is None:
        return ABSENT
    mode, size, _, _, inode, links = known.stamp
    return PathState(mode, size, inode, links, known.content)


def is_same(one: PathState, other: PathState) -> bool:
    """Also in the number of names, if a file has or had several."""
    return one.is_like(other) and (one.links == other.links or max(one.links, other.links) <= 1)


def _read_known(root: Root, path: str) -> "KnownFile | tuple[KnownFile, Packed] | None":
    """The file at a path, with its content unless it is large: that is read elsewhere."""
    try:
        info = root.info(path)
        if stat.S_ISLNK(info.st_mode):
            return KnownFile(make_path_stamp(info), os.fsencode(root.read_link(path)))
        if not stat.S_ISREG(info.st_mode):
            return KnownFile(make_path_stamp(info), b"")
        if info.st_size > PIECE_BYTES:
            return KnownFile(make_path_stamp(info), b"")
        with root.open_file(path) as file:
            stamp = make_path_stamp(os.fstat(file.fileno()))
            content = file.read(PIECE_BYTES + 1)
        if len(content) > PIECE_BYTES:
            return KnownFile(stamp, b"")
        packed = pack(content)
        return KnownFile(stamp, packed.digest), packed
    except OSError:
        return None


def _is_same_file(known: PathStamp, found: PathStamp) -> bool:
    """Apart from its mode, as far as is known without reading it."""
    return (stat.S_IFMT(known[0]), *known[1:3], known[4]) == (stat.S_IFMT(found[0]), *found[1:3], found[4])


def _with_folders(path: str) -> Iterator[str]:
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts) + 1))


def _identities(folders: Iterable[Path]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for folder in folders:
        try:
            info = folder.stat()
        except OSError:
            continue
        found.append((info.st_dev, info.st_ino))
    return found


def _process_start_time(pid: int) -> str:
    """When a process was started; empty if that is not known."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def is_alive(owner: str) -> bool:
    pid, _, started = owner.partition(".")
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        return True
    except (ValueError, OSError):
        return False
    return _process_start_time(int(pid)) == started


def owner_name() -> str:
    """The name of this process in the rows of its calls."""
    return f"{os.getpid()}.{_process_start_time(os.getpid())}"
