"""Damaged files: the facts are left as they are and told about; the search index is made anew."""

import os
from pathlib import Path
from typing import cast

import apsw
import pytest

from talaria.core.entries import MessageAdded
from talaria.core.errors import StoreDamaged
from talaria.core.ids import Epoch, SessionId
from talaria.core.messages import user
from talaria.store.base import Held, NewSession
from talaria.store.sqlite.connection import SqliteConnection
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.manual_clock import ManualClock

SESSION = SessionId("s")


async def write_home(home: Path, clock: ManualClock, count: int = 200) -> None:
    """With messages in state.db and in search.db, nothing left in a write-ahead log."""
    async with SqliteStore(home, clock) as store:
        await fill(store, count)
        await store.search.search("needle")
    for name in ("state.db", "search.db"):
        connection = cast("SqliteConnection", apsw.Connection(str(home / name)))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()


async def fill(store: SqliteStore, count: int = 200) -> Epoch:
    owner = await store.owners.join("test")
    await store.sessions.create(NewSession(SESSION, "test"))
    epoch = await store.journal.seize(SESSION, owner)
    assert not isinstance(epoch, Held)
    await store.journal.record(SESSION, epoch, [MessageAdded(user(f"needle {n} {'hay ' * 50}")) for n in range(count)])
    return epoch


def overwrite(path: Path, start: int) -> None:
    """Noise from `start` to the end."""
    with path.open("r+b") as file:
        file.seek(start)
        file.write(os.urandom(path.stat().st_size - start))


async def read_all(home: Path, clock: ManualClock) -> None:
    async with SqliteStore(home, clock) as store:
        await store.journal.entries(SESSION)


async def hits(store: SqliteStore) -> int:
    return len(await store.search.search("needle", limit=1_000))


@pytest.mark.parametrize("start", [0, 4096])
async def test_damaged_facts_are_told_in_a_sentence_and_left_alone(home: Path, clock: ManualClock, start: int) -> None:
    await write_home(home, clock)
    path = home / "state.db"
    overwrite(path, start)
    before = path.read_bytes()

    with pytest.raises(StoreDamaged) as told:
        await read_all(home, clock)

    assert str(path) in str(told.value)
    assert path.read_bytes() == before


async def test_file_that_is_no_database_is_told_in_a_sentence_and_left_alone(home: Path, clock: ManualClock) -> None:
    home.mkdir()
    path = home / "state.db"
    path.write_text("Dear diary, " * 1_000)

    with pytest.raises(StoreDamaged, match=str(path)):
        await read_all(home, clock)

    assert path.read_text() == "Dear diary, " * 1_000


async def test_entry_that_cannot_be_decoded_is_damage_of_the_file(home: Path, clock: ManualClock) -> None:
    await write_home(home, clock)
    path = home / "state.db"
    path.write_bytes(path.read_bytes().replace(b'{"type":"message"', b'{"type"~"message"'))

    with pytest.raises(StoreDamaged, match=str(path)):
        await read_all(home, clock)


async def test_damage_stops_only_the_work_that_meets_it(home: Path, clock: ManualClock) -> None:
    await write_home(home, clock, count=1_000)
    path = home / "state.db"
    overwrite(path, path.stat().st_size // 2)

    async with SqliteStore(home, clock) as store:
        with pytest.raises(StoreDamaged):
            await store.journal.entries(SESSION)
        with pytest.raises(StoreDamaged):
            await store.sessions.delete(SESSION)
        await store.sessions.rename(SESSION, "still here")
        assert (await store.sessions.find("still here")).id == SESSION


async def test_deleted_search_index_is_made_anew(home: Path, clock: ManualClock) -> None:
    await write_home(home, clock)
    (home / "search.db").unlink()

    async with SqliteStore(home, clock) as store:
        assert await hits(store) == 200


@pytest.mark.parametrize("start", [0, 100, 4096])
async def test_damaged_search_index_is_made_anew(home: Path, clock: ManualClock, start: int) -> None:
    await write_home(home, clock)
    overwrite(home / "search.db", start)

    async with SqliteStore(home, clock) as store:
        assert await hits(store) == 200
        assert await store.search.rebuild() == 200


async def test_search_index_deleted_while_in_use_is_made_anew(home: Path, clock: ManualClock) -> None:
    async with SqliteStore(home, clock) as store:
        epoch = await fill(store)
        assert await hits(store) == 200

        for path in home.glob("search.db*"):
            path.unlink()
        await store.journal.record(SESSION, epoch, [MessageAdded(user("another needle"))])

        assert await hits(store) == 201
        assert (home / "search.db").exists()


async def test_search_index_replaced_by_another_process_is_followed(home: Path, clock: ManualClock) -> None:
    async with SqliteStore(home, clock) as one, SqliteStore(home, clock) as two:
        epoch = await fill(one)
        assert await hits(two) == 200

        for path in home.glob("search.db*"):
            path.unlink()
        assert await hits(one) == 200
        await one.journal.record(SESSION, epoch, [MessageAdded(user("another needle"))])

        assert (await hits(two), await hits(one)) == (201, 201)


async def test_search_index_of_another_version_is_made_anew(home: Path, clock: ManualClock) -> None:
    await write_home(home, clock)
    connection = cast("SqliteConnection", apsw.Connection(str(home / "search.db")))
    connection.execute("DROP TABLE words; CREATE TABLE words (something, quite, different)")
    connection.pragma("user_version", 99)
    connection.close()

    async with SqliteStore(home, clock) as store:
        assert await hits(store) == 200
