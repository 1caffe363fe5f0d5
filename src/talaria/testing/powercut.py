"""Simulated power cuts. A VFS records what SQLite asks of the disk; a `Disk` forgets what was never synced.

One recorded run can be cut after any of its operations, as often as you like:

    with DiskRecorder() as recorder:
        async with SqliteStore(home, clock, vfs=recorder.vfs) as store:
            ...                                     # note len(recorder.operations) at every acknowledgement
    disk = Disk()
    for operation in recorder.operations[:n]:
        disk.do(operation)
    disk.cut(Random(seed), folder)                  # what the next start finds
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Self, TypeAlias, assert_never

import apsw

SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class FileWritten:
    file: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class FileTruncated:
    file: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FileSynced:
    file: str


@dataclass(frozen=True, slots=True)
class FileDeleted:
    file: str


Change: TypeAlias = FileWritten | FileTruncated
Operation: TypeAlias = Change | FileSynced | FileDeleted


class DiskRecorder:
    """While entered, connections that name its `vfs` work on the real files, and their operations are recorded."""

    def __init__(self) -> None:
        self.vfs = f"recorder-{os.urandom(6).hex()}"
        self.operations: list[Operation] = []
        self._registered: _Vfs | None = None

    def __enter__(self) -> Self:
        self._registered = _Vfs(self.vfs, self.operations)
        return self

    def __exit__(self, *_: object) -> None:
        if self._registered is not None:
            self._registered.unregister()


class _Vfs(apsw.VFS):
    def __init__(self, name: str, operations: list[Operation]) -> None:
        super().__init__(name, "")
        self._operations = operations

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        if name is None:  # a temporary file, which does not matter after a power cut
            return apsw.VFSFile("", name, flags)
        return _File(name, flags, self._operations)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        self._operations.append(FileDeleted(Path(filename).name))


class _File(apsw.VFSFile):
    """apsw itself handles shared memory; a power cut loses all of it."""

    def __init__(self, name: str | apsw.URIFilename, flags: list[int], operations: list[Operation]) -> None:
        super().__init__("", name, flags)
        self._name = Path(name.filename() if isinstance(name, apsw.URIFilename) else name).name
        self._operations = operations

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)  # pyright: ignore[reportUnknownMemberType]  (apsw's stub)
        self._operations.append(FileWritten(self._name, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        self._operations.append(FileTruncated(self._name, newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        self._operations.append(FileSynced(self._name))


@dataclass(slots=True)
class _Content:
    safe: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list[Change])
    is_deleted: bool = False


class Disk:
    """Keeps what was synced. For the rest, chance decides: written, lost, or torn between sectors.

    As in an ordinary journaling file system, a deletion is safe after the next sync of any file. A disk that is not
    honest ignores syncs, as some do.
    """

    def __init__(self, *, is_honest: bool = True) -> None:
        self._is_honest = is_honest
        self._files: dict[str, _Content] = {}

    def do(self, operation: Operation) -> None:
        match operation:
            case FileWritten(name) | FileTruncated(name):
                content = self._files.setdefault(name, _Content())
                if content.is_deleted:
                    content = self._files[name] = _Content()
                content.pending.append(operation)
            case FileSynced(name):
                if self._is_honest:
                    self._files = {name: kept for name, kept in self._files.items() if not kept.is_deleted}
                    if name in self._files:
                        content = self._files[name]
                        _apply(content.safe, content.pending)
                        content.pending.clear()
            case FileDeleted(name):
                if name in self._files:
                    self._files[name].is_deleted = True
            case _:
                assert_never(operation)

    def cut(self, chance: Random, folder: Path) -> None:
        """Writes into `folder` what a power cut at this moment leaves behind."""
        folder.mkdir(parents=True)
        luck = chance.choice((0.0, 0.5, 0.9, 1.0))
        for name, content in self._files.items():
            if content.is_deleted and chance.random() < luck:
                continue
            left = bytearray(content.safe)
            _apply(left, _survivors(content.pending, luck, chance))
            (folder / name).write_bytes(left)


def _apply(content: bytearray, changes: Iterable[Change]) -> None:
    for change in changes:
        match change:
            case FileWritten(_, offset, data):
                content.extend(bytes(max(0, offset - len(content))))
                content[offset : offset + len(data)] = data
            case FileTruncated(_, size_bytes):
                del content[size_bytes:]
            case _:
                assert_never(change)


def _survivors(pending: Iterable[Change], luck: float, chance: Random) -> Iterable[Change]:
    for change in pending:
        if chance.random() < luck:
            yield change
        elif isinstance(change, FileWritten) and chance.random() < 0.5:
            start = 0
            while start < len(change.data):
                end = start + SECTOR_BYTES - (change.offset + start) % SECTOR_BYTES
                if chance.random() < 0.5:
                    yield FileWritten(change.file, change.offset + start, change.data[start:end])
                start = end
