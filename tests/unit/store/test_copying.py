"""Work on the whole store says how far it is."""

from pathlib import Path

import pytest

from talaria.core.entries import MessageAdded
from talaria.core.errors import StoreUnavailable
from talaria.core.ids import SessionId
from talaria.core.messages import user
from talaria.store.base import NewSession
from talaria.store.sqlite.search import FEED_BATCH, STEP_PAGES
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.manual_clock import ManualClock

SESSION = SessionId("session")


async def filled(store: SqliteStore, count: int, size: int) -> None:
    await store.sessions.create(NewSession(SESSION, "test"))
    epoch = await store.journal.seize(SESSION, await store.owners.join("test"))
    assert isinstance(epoch, int)
    await store.journal.record(SESSION, epoch, [MessageAdded(user("x" * size)) for _ in range(count)])


async def test_copy_has_all_and_tells_how_far_it_is(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    async with SqliteStore(tmp_path / "home", ManualClock()) as store:
        await filled(store, 10, STEP_PAGES * 4096 // 8)
        (tmp_path / "copy").mkdir()
        await store.copy_to(tmp_path / "copy" / "state.db", lambda done, total: told.append((done, total)))
    total = told[-1][1]
    assert told == [(STEP_PAGES, total), (total, total)]
    async with SqliteStore(tmp_path / "copy", ManualClock()) as copy:
        assert len(await copy.journal.entries(SESSION)) == 10
        assert await copy.check() == ""


async def test_copy_that_cannot_be_written_names_its_place(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "home", ManualClock()) as store:
        with pytest.raises(StoreUnavailable, match=r"nowhere/state\.db"):
            await store.copy_to(tmp_path / "nowhere" / "state.db", lambda _done, _total: None)


async def test_rebuilding_the_index_tells_how_far_it_is(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    async with SqliteStore(tmp_path / "home", ManualClock()) as store:
        await filled(store, FEED_BATCH + 5, 1)
        assert await store.search.rebuild(lambda done, total: told.append((done, total))) == FEED_BATCH + 5
    assert told == [(FEED_BATCH, FEED_BATCH + 5), (FEED_BATCH + 5, FEED_BATCH + 5)]
