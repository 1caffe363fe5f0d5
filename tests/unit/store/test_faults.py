"""A disk that says no: the caller is told, nothing acknowledged is lost, and all goes on once the disk is well."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import apsw
import pytest

from talaria.core.entries import MessageAdded, Noted
from talaria.core.errors import StoreUnavailable
from talaria.core.ids import Epoch, SessionId
from talaria.core.messages import user
from talaria.store.base import Held, NewSession
from talaria.store.sqlite.connection import SqliteConnection
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.manual_clock import ManualClock

SESSION = SessionId("s")
PADDING = "x" * 20_000


class Disk(apsw.VFS):
    """The real one, until it is told to fail."""

    def __init__(self) -> None:
        self.name = f"disk-{os.urandom(6).hex()}"
        super().__init__(self.name, "")
        self.refuses_writes_with: type[apsw.Error] | None = None
        self.refuses_syncs_with: type[apsw.Error] | None = None
        self.refuses_reads_with: type[apsw.Error] | None = None
        self.is_read_only = False

    def heal(self) -> None:
        self.refuses_writes_with = self.refuses_syncs_with = self.refuses_reads_with = None
        self.is_read_only = False

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> "DiskFile":  # noqa: N802
        if self.is_read_only:
            flags[0] = flags[0] & ~(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE) | apsw.SQLITE_OPEN_READONLY
        return DiskFile(name, flags, self)


class DiskFile(apsw.VFSFile):
    def __init__(self, name: str | apsw.URIFilename | None, flags: list[int], disk: Disk) -> None:
        super().__init__("", name, flags)
        self._disk = disk

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        if self._disk.refuses_reads_with:
            raise self._disk.refuses_reads_with
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        if self._disk.refuses_writes_with:
            raise self._disk.refuses_writes_with
        super().xWrite(data, offset)  # pyright: ignore[reportUnknownMemberType]  (apsw's stub)

    def xSync(self, flags: int) -> None:  # noqa: N802
        if self._disk.refuses_syncs_with:
            raise self._disk.refuses_syncs_with
        super().xSync(flags)


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.unregister()


@pytest.fixture
async def store(home: Path, clock: ManualClock, disk: Disk) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(home, clock, vfs=disk.name, busy_timeout_s=0.02) as store:
        yield store


async def seize(store: SqliteStore) -> Epoch:
    owner = await store.owners.join("test")
    await store.sessions.create(NewSession(SESSION, "test"))
    epoch = await store.journal.seize(SESSION, owner)
    assert not isinstance(epoch, Held)
    return epoch


async def note(store: SqliteStore, epoch: Epoch, text: str) -> None:
    await store.journal.record(SESSION, epoch, [Noted(text)])


async def note_until_refused(store: SqliteStore, epoch: Epoch, acknowledged: list[str]) -> None:
    while True:
        text = f"{len(acknowledged)} {PADDING}"
        await note(store, epoch, text)
        acknowledged.append(text)


async def notes(store: SqliteStore) -> list[str]:
    entries = [one.entry for one in await store.journal.entries(SESSION)]
    return [entry.text for entry in entries if isinstance(entry, Noted)]


@pytest.mark.parametrize("fault", [apsw.FullError, apsw.IOError, apsw.ReadOnlyError])
async def test_refused_write_is_told_and_the_next_one_after_healing_succeeds(
    store: SqliteStore, disk: Disk, home: Path, fault: type[apsw.Error]
) -> None:
    epoch = await seize(store)
    await note(store, epoch, "before")

    disk.refuses_writes_with = fault
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match=str(home / "state.db")):
            await note(store, epoch, "lost")
    assert await notes(store) == ["before"]

    disk.heal()
    await note(store, epoch, "after")
    assert await notes(store) == ["before", "after"]


async def test_trouble_is_told_until_something_was_written(store: SqliteStore, disk: Disk) -> None:
    epoch = await seize(store)
    assert store.trouble == ""
    disk.refuses_writes_with = apsw.FullError
    with pytest.raises(StoreUnavailable):
        await note(store, epoch, "lost")
    assert "the disk is full" in store.trouble
    assert await store.outbox.prune(0.0) == 0  # for that nothing is written
    assert "the disk is full" in store.trouble
    disk.heal()
    await note(store, epoch, "after")
    assert store.trouble == ""


async def test_commit_whose_sync_failed_is_not_acknowledged_and_leaves_nothing_behind(
    store: SqliteStore, disk: Disk, home: Path, clock: ManualClock
) -> None:
    epoch = await seize(store)
    await note(store, epoch, "before")

    disk.refuses_syncs_with = apsw.IOError
    with pytest.raises(StoreUnavailable):
        await note(store, epoch, "lost")
    disk.heal()
    await note(store, epoch, "after")

    assert await notes(store) == ["before", "after"]
    async with SqliteStore(home, clock) as other:
        assert await notes(other) == ["before", "after"]


async def test_commit_whose_sync_failed_does_not_return_from_the_dead(
    store: SqliteStore, disk: Disk, home: Path
) -> None:
    """Its frames lie in the log: whoever first opened the file after everybody had closed it would find them."""
    epoch = await seize(store)
    await note(store, epoch, "before")
    other = apsw.Connection(str(home / "state.db"))
    other.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    disk.refuses_syncs_with = apsw.IOError
    with pytest.raises(StoreUnavailable):
        await note(store, epoch, "lost")
    disk.heal()
    cast("SqliteConnection", other).execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable):
        await note(store, epoch, "locked out")
    other.close()
    await note(store, epoch, "after")

    assert await notes(store) == ["before", "after"]


async def test_store_survives_a_disk_that_is_gone_for_a_while(store: SqliteStore, disk: Disk) -> None:
    epoch = await seize(store)
    await note(store, epoch, "before")

    disk.refuses_reads_with = disk.refuses_writes_with = disk.refuses_syncs_with = apsw.IOError
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await store.journal.record(SESSION, epoch, [MessageAdded(user(PADDING))] * 20)
    disk.heal()
    await note(store, epoch, "after")

    assert await notes(store) == ["before", "after"]


async def test_read_that_failed_once_succeeds_later(store: SqliteStore, disk: Disk) -> None:
    epoch = await seize(store)
    assert await notes(store) == []
    await note(store, epoch, "written")

    disk.refuses_reads_with = apsw.IOError
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await notes(store)
    disk.heal()

    assert await notes(store) == ["written"]


async def test_read_only_home_is_told_at_the_start_and_opens_once_writable(
    home: Path, clock: ManualClock, disk: Disk
) -> None:
    async with SqliteStore(home, clock, vfs=disk.name):
        pass

    disk.is_read_only = True
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        async with SqliteStore(home, clock, vfs=disk.name):
            pass

    disk.heal()
    async with SqliteStore(home, clock, vfs=disk.name) as store:
        await seize(store)


async def test_connections_made_while_the_disk_was_read_only_are_not_kept(store: SqliteStore, disk: Disk) -> None:
    epoch = await seize(store)
    disk.refuses_writes_with = apsw.ReadOnlyError
    disk.refuses_reads_with = apsw.IOError
    disk.is_read_only = True
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await note(store, epoch, "lost")
        with pytest.raises(StoreUnavailable):
            await notes(store)
    disk.heal()

    await note(store, epoch, "after")
    assert await notes(store) == ["after"]


async def test_lock_held_for_longer_than_we_wait_is_told_and_then_forgotten(store: SqliteStore, home: Path) -> None:
    epoch = await seize(store)
    await note(store, epoch, "before")
    other = cast("SqliteConnection", apsw.Connection(str(home / "state.db")))
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreUnavailable, match="locked"):
        await note(store, epoch, "lost")
    assert await notes(store) == ["before"]

    other.execute("ROLLBACK")
    other.close()
    await note(store, epoch, "after")
    assert await notes(store) == ["before", "after"]


async def test_owner_who_could_not_join_is_not_alive(store: SqliteStore, disk: Disk, home: Path) -> None:
    disk.refuses_writes_with = apsw.FullError
    with pytest.raises(StoreUnavailable):
        await store.owners.join("test")
    disk.heal()

    assert list((home / "run").iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("may not mount a file system here")
    yield folder
    subprocess.run(["umount", folder], check=True)


async def test_really_full_disk_loses_nothing_acknowledged_and_heals(small_disk: Path, clock: ManualClock) -> None:
    filler = small_disk / "filler"
    acknowledged: list[str] = []
    async with SqliteStore(small_disk / "home", clock) as store:
        epoch = await seize(store)
        filler.write_bytes(bytes(400_000))
        with pytest.raises(StoreUnavailable, match="full"):
            await note_until_refused(store, epoch, acknowledged)
        assert len(acknowledged) > 3
        assert await notes(store) == acknowledged

        filler.unlink()
        await note(store, epoch, "after")
        assert await notes(store) == [*acknowledged, "after"]
    async with SqliteStore(small_disk / "home", clock) as store:
        assert await notes(store) == [*acknowledged, "after"]
