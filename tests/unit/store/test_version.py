"""The number that tells of other processes' commits."""

from pathlib import Path
from typing import cast

import apsw

from talaria.core.ids import SessionId
from talaria.store.base import NewSession
from talaria.store.sqlite.connection import SqliteConnection
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.manual_clock import ManualClock


async def test_version_changes_with_every_commit_of_another_process(home: Path, clock: ManualClock) -> None:
    async with SqliteStore(home, clock) as store, SqliteStore(home, clock) as another:
        seen = {await store.version()}
        for number in range(3):
            await another.sessions.create(NewSession(SessionId(str(number)), "test"))
            seen.add(await store.version())

    assert len(seen) == 4


async def test_version_stays_through_our_own_commits_and_reads(home: Path, clock: ManualClock) -> None:
    async with SqliteStore(home, clock) as store, SqliteStore(home, clock) as another:
        before = await store.version()
        await store.sessions.create(NewSession(SessionId("s"), "test"))
        await another.sessions.list()

        assert await store.version() == before


async def test_commit_that_came_between_two_of_ours_is_seen(home: Path, clock: ManualClock) -> None:
    async with SqliteStore(home, clock) as store, SqliteStore(home, clock) as another:
        before = await store.version()
        await another.sessions.create(NewSession(SessionId("theirs"), "test"))
        await store.sessions.create(NewSession(SessionId("ours"), "test"))

        assert await store.version() != before


async def test_version_is_told_while_another_process_is_writing(home: Path, clock: ManualClock) -> None:
    async with SqliteStore(home, clock, busy_timeout_s=0.0) as store:
        before = await store.version()
        another = cast("SqliteConnection", apsw.Connection(str(home / "state.db")))
        try:
            another.execute("BEGIN IMMEDIATE; INSERT INTO homes VALUES ('telegram', 'telegram:42')")
            assert await store.version() == before
            another.execute("COMMIT")
            assert await store.version() != before
        finally:
            another.close()
