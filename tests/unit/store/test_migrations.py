"""Schema versions: a fresh file, a known one, one from the future."""

from importlib import resources
from pathlib import Path
from typing import cast

import apsw
import pytest

from talaria.model.errors import StoreTooNew
from talaria.model.ids import SessionId
from talaria.store.base import NewSession
from talaria.store.sqlite.connection import Connection
from talaria.store.sqlite.migrate import LATEST, steps
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.clock import ManualClock


def version(path: Path) -> int:
    connection = cast("Connection", apsw.Connection(str(path)))
    try:
        return int(connection.pragma("user_version"))
    finally:
        connection.close()


def write_future(path: Path, mode: str) -> None:
    path.parent.mkdir()
    connection = cast("Connection", apsw.Connection(str(path)))
    connection.pragma("journal_mode", mode)
    connection.execute("CREATE TABLE of_tomorrow (x)")
    connection.pragma("user_version", LATEST + 1)
    connection.close()


def test_latest_is_the_number_of_the_newest_file() -> None:
    folder = resources.files("talaria.store.sqlite") / "migrations"
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(".sql"))

    assert int(names[-1].split("_")[0]) == LATEST


def test_migrations_are_numbered_without_gaps() -> None:
    assert [number for number, _ in steps()] == list(range(1, LATEST + 1))


async def test_fresh_home_gets_the_newest_schema(home: Path, clock: ManualClock) -> None:
    async with SqliteStore(home, clock) as store:
        await store.sessions.create(NewSession(SessionId("s"), "test"))

    assert version(home / "state.db") == LATEST


async def test_known_file_is_opened_as_it_is(home: Path, clock: ManualClock) -> None:
    async with SqliteStore(home, clock) as store:
        await store.sessions.create(NewSession(SessionId("s"), "test"))
    async with SqliteStore(home, clock) as store:
        assert await store.sessions.get(SessionId("s")) is not None


@pytest.mark.parametrize("mode", ["wal", "delete"])
async def test_file_from_the_future_is_refused_in_a_sentence_and_left_alone(
    home: Path, clock: ManualClock, mode: str
) -> None:
    path = home / "state.db"
    write_future(path, mode)
    before = path.read_bytes()

    with pytest.raises(StoreTooNew) as refusal:
        async with SqliteStore(home, clock):
            pass

    assert str(path) in str(refusal.value)
    assert f"schema {LATEST + 1}" in str(refusal.value)
    assert path.read_bytes() == before
