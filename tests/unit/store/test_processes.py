"""Several processes on one home."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import apsw
import pytest

import talaria
from talaria.core.clock import SystemClock
from talaria.core.entries import Noted
from talaria.core.ids import SessionId
from talaria.store.base import Held
from talaria.store.sqlite.connection import SqliteConnection
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.manual_clock import ManualClock

SCRIPT = Path(__file__).with_name("hammer.py")


class Hammer:
    """Another process that records into the home; it waits for `go`."""

    def __init__(self, home: Path, session: str, count: int = 0) -> None:
        self.session = SessionId(session)
        source = Path(talaria.__file__).parents[1]
        self._process = subprocess.Popen(
            [sys.executable, SCRIPT, home, session, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(source)},
        )

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def next(self) -> int:
        """Wait for the next acknowledged record."""
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def kill(self) -> list[int]:
        """`kill -9`; the acknowledged records that were not read yet."""
        assert self._process.stdout is not None
        if self._process.stdout.closed:
            return []  # it was killed before
        self._process.send_signal(signal.SIGKILL)
        rest = self._process.stdout.read()  # `communicate` would leave out what was read ahead
        self._process.communicate()
        return [int(line) for line in rest.split("\n")[:-1]]

    def finish(self) -> list[int]:
        said, complained = self._process.communicate()
        assert self._process.returncode == 0, complained
        return [int(line) for line in said.split()]


@pytest.fixture
def hammers(home: Path) -> Iterator[list[Hammer]]:
    """Those listed are killed in the end, if need be."""
    started: list[Hammer] = []
    yield started
    for hammer in started:
        hammer.kill()


async def recorded(store: SqliteStore, session: SessionId) -> list[str]:
    entries = [one.entry for one in await store.journal.entries(session)]
    return [entry.text for entry in entries if isinstance(entry, Noted)]


def pairs(count: int) -> list[str]:
    return [f"{number}{half}" for number in range(count) for half in "ab"]


def integrity(home: Path) -> object:
    connection = cast("SqliteConnection", apsw.Connection(str(home / "state.db")))
    try:
        return connection.pragma("integrity_check")
    finally:
        connection.close()


async def test_processes_that_meet_at_a_fresh_home_all_get_to_work(home: Path, clock: ManualClock) -> None:
    together = [Hammer(home, f"session-{n}", count=1) for n in range(4)]
    for hammer in together:
        hammer.go()

    assert [hammer.finish() for hammer in together] == [[0]] * 4


async def test_two_processes_hammer_one_home_and_nothing_acknowledged_is_lost(home: Path, clock: ManualClock) -> None:
    together = [Hammer(home, f"session-{n}", count=200) for n in range(2)]
    for hammer in together:
        hammer.go()
    for hammer in together:
        assert hammer.finish() == list(range(200))

    async with SqliteStore(home, clock) as store:
        for hammer in together:
            assert await recorded(store, hammer.session) == pairs(200)
    assert integrity(home) == "ok"


async def test_killed_process_loses_nothing_acknowledged_and_harms_nobody(
    home: Path, clock: ManualClock, hammers: list[Hammer]
) -> None:
    killed, living = Hammer(home, "killed"), Hammer(home, "living", count=200)
    hammers.append(killed)
    killed.go()
    living.go()
    while killed.next() < 30:
        pass

    acknowledged = 31 + len(killed.kill())

    assert living.finish() == list(range(200))
    async with SqliteStore(home, clock) as store:
        assert await recorded(store, living.session) == pairs(200)
        found = await recorded(store, killed.session)
        assert found == pairs(len(found) // 2)
        assert len(found) // 2 in (acknowledged, acknowledged + 1)
    assert integrity(home) == "ok"


async def test_session_of_another_process_is_held_until_that_process_is_killed(
    home: Path, clock: ManualClock, hammers: list[Hammer]
) -> None:
    other = Hammer(home, "theirs")
    hammers.append(other)
    other.go()
    other.next()

    async with SqliteStore(home, clock) as store:
        owner = await store.owners.join("test")
        assert isinstance(await store.journal.seize(other.session, owner), Held)

        other.kill()

        assert await store.journal.seize(other.session, owner) == 2


async def test_what_another_process_wrote_is_seen_and_found_at_once(
    home: Path, clock: ManualClock, hammers: list[Hammer]
) -> None:
    async with SqliteStore(home, clock) as store:
        assert await store.sessions.list() == []
        hammer = Hammer(home, "theirs", count=3)
        hammer.go()
        hammer.finish()

        assert await recorded(store, hammer.session) == pairs(3)


FORKING = """
import asyncio, os, sys, time
from pathlib import Path
from talaria.core.clock import SystemClock
from talaria.core.ids import SessionId
from talaria.store.base import NewSession
from talaria.store.sqlite.store import SqliteStore

async def main():
    async with SqliteStore(Path(sys.argv[1]), SystemClock()) as store:
        await store.sessions.create(NewSession(SessionId("s"), "test"))
        await store.journal.seize(SessionId("s"), await store.owners.join("test"))
        child = os.fork()
        if child == 0:
            os.close(1); os.close(2); time.sleep(600)
        print(child, flush=True)
        os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def test_child_that_outlives_its_killed_parent_does_not_keep_it_alive(tmp_path: Path) -> None:
    died = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-W", "ignore", "-c", FORKING, str(tmp_path)], capture_output=True, check=False
    )
    assert died.returncode == -9
    try:
        async with SqliteStore(tmp_path, SystemClock()) as store:
            seized = await store.journal.seize(SessionId("s"), await store.owners.join("test"))
            assert not isinstance(seized, Held)
    finally:
        os.kill(int(died.stdout), signal.SIGKILL)
