"""What lies in the home: who may read it, and what stays after closing."""

from pathlib import Path

import pytest

from talaria.core.entries import Noted
from talaria.core.errors import OperatorError
from talaria.core.ids import SessionId
from talaria.store.base import Held, NewSession
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.manual_clock import ManualClock


async def use(store: SqliteStore, text: str = "kept") -> None:
    owner = await store.owners.join("test")
    await store.sessions.create(NewSession(SessionId("s"), "test"))
    epoch = await store.journal.seize(SessionId("s"), owner)
    assert not isinstance(epoch, Held)
    await store.journal.record(SessionId("s"), epoch, [Noted(text)])
    await store.search.search("kept")


def sizes(home: Path) -> dict[str, int]:
    return {name: (home / name).stat().st_size for name in ("state.db", "state.db-wal")}


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def test_nobody_else_may_read_the_home_or_any_file_in_it(home: Path, clock: ManualClock) -> None:
    async with SqliteStore(home, clock) as store:
        await use(store)
        found = {path.relative_to(home).as_posix(): mode(path) for path in [home, *home.rglob("*")]}

    assert {"state.db", "state.db-wal", "state.db-shm", "search.db", "search.db-wal"} <= set(found)
    folders = {name: bits for name, bits in found.items() if name in (".", "run")}
    assert folders == {".": 0o700, "run": 0o700}
    assert {bits for name, bits in found.items() if name not in folders} == {0o600}


async def test_closing_leaves_the_write_ahead_log_as_it_is(home: Path, clock: ManualClock) -> None:
    async with SqliteStore(home, clock) as store:
        await use(store, "kept " * 10_000)
        before = sizes(home)

    assert sizes(home) == before
    assert before["state.db-wal"] > 50_000
    async with SqliteStore(home, clock) as store:
        assert [one.entry for one in await store.journal.entries(SessionId("s"))] == [Noted("kept " * 10_000)]


async def test_closed_store_leaves_no_owner_behind(home: Path, clock: ManualClock) -> None:
    async with SqliteStore(home, clock) as store:
        await use(store)

    assert list((home / "run").iterdir()) == []
    async with SqliteStore(home, clock) as store:
        assert not isinstance(await store.journal.seize(SessionId("s"), await store.owners.join("test")), Held)


async def test_search_index_is_not_made_before_it_is_needed(home: Path, clock: ManualClock) -> None:
    async with SqliteStore(home, clock) as store:
        await store.sessions.create(NewSession(SessionId("s"), "test"))

        assert not (home / "search.db").exists()


async def test_home_that_cannot_be_made_is_told_in_a_sentence(home: Path, clock: ManualClock) -> None:
    home.write_text("a file stands in the way")

    with pytest.raises(OperatorError, match=str(home)):
        async with SqliteStore(home, clock):
            pass
