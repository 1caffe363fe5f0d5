"""What is deleted for good is not in the files any more."""

import subprocess
from pathlib import Path
from typing import cast

import apsw
import pytest

from talaria.core.entries import MessageAdded
from talaria.core.ids import SessionId
from talaria.core.messages import user
from talaria.store.base import NewSession
from talaria.store.sqlite.connection import SqliteConnection
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.manual_clock import ManualClock

WORD = "marzipan-under-the-stairs"
SESSION = SessionId("session")


async def said(store: SqliteStore) -> None:
    await store.sessions.create(NewSession(SESSION, "test"))
    owner = await store.owners.join("test")
    epoch = await store.journal.seize(SESSION, owner)
    assert isinstance(epoch, int)
    await store.journal.record(SESSION, epoch, [MessageAdded(user(f"{WORD} " * 1000))])
    await store.journal.release(SESSION, epoch)


def holds(home: Path, name: str) -> bool:
    """Another process looks: ours has SQLite's locks."""
    return subprocess.run(["grep", "-q", "-a", WORD, str(home / name)], check=False).returncode == 0


async def test_what_is_discarded_is_overwritten_in_its_place(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path, ManualClock()) as store:
        await said(store)
    checkpoint(tmp_path)
    assert holds(tmp_path, "state.db")
    async with SqliteStore(tmp_path, ManualClock()) as store:
        assert await store.forgetting.discard(SESSION) is True
    checkpoint(tmp_path)
    assert not holds(tmp_path, "state.db")


def connected(home: Path) -> SqliteConnection:
    return cast("SqliteConnection", apsw.Connection(str(home / "state.db")))


def checkpoint(home: Path) -> None:
    connection = connected(home)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()


@pytest.mark.parametrize("is_read", [False, True])
async def test_erasing_says_whether_somebody_still_reads_what_was(tmp_path: Path, is_read: bool) -> None:
    async with SqliteStore(tmp_path, ManualClock(), busy_timeout_s=0.05) as store:
        await said(store)
        reader = connected(tmp_path)
        if is_read:
            reader.execute("BEGIN; SELECT count(*) FROM entries").fetchall()
        await store.sessions.delete(SESSION)

        assert await store.erase() is not is_read
        assert holds(tmp_path, "state.db-wal") is is_read
        reader.close()
        assert await store.erase() is True
        assert not holds(tmp_path, "state.db-wal")
        assert not holds(tmp_path, "state.db")
