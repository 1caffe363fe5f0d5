"""Every test of this folder runs over all stores."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from talaria.core.ids import Epoch, OwnerId, SessionId
from talaria.store.base import Held, NewSession, Store
from talaria.store.memory import MemoryStore
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["sqlite", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Store]:
    opened = SqliteStore(tmp_path / "home", clock) if request.param == "sqlite" else MemoryStore(clock)
    async with opened:
        yield opened


@pytest.fixture
async def owner(store: Store) -> OwnerId:
    return await store.owners.join("test")


@pytest.fixture
async def session(store: Store) -> SessionId:
    return (await store.sessions.create(NewSession(SessionId("session-1"), "test"))).id


@pytest.fixture
async def epoch(store: Store, session: SessionId, owner: OwnerId) -> Epoch:
    """`session` seized by `owner`."""
    seized = await store.journal.seize(session, owner)
    assert not isinstance(seized, Held)
    return seized
