"""The writer thread: what shares a transaction, and what a caller is told."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from talaria.core.entries import Noted
from talaria.core.errors import Fenced
from talaria.core.ids import Epoch, SessionId
from talaria.store.base import BrokenRuleError, Held, NewSession
from talaria.store.sqlite.connection import SqliteConnection
from talaria.store.sqlite.database import Database
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.manual_clock import ManualClock
from talaria.testing.patience import PATIENCE_S
from talaria.testing.powercut import DiskRecorder, FileSynced


class Gate:
    """Work that holds the writer thread until it is opened, so that what follows gathers into one group."""

    def __init__(self) -> None:
        self._opened = threading.Event()

    def __call__(self, _: SqliteConnection) -> None:
        assert self._opened.wait(timeout=PATIENCE_S)

    def open(self) -> None:
        self._opened.set()


def prepare(connection: SqliteConnection, _: Path) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS numbers (n INTEGER UNIQUE)")


@pytest.fixture
def recorder() -> Iterator[DiskRecorder]:
    with DiskRecorder() as recorder:
        yield recorder


@pytest.fixture
async def database(home: Path, recorder: DiskRecorder) -> AsyncIterator[Database]:
    async with Database(home / "numbers.db", prepare, vfs=recorder.vfs) as database:
        yield database


async def add(database: Database, number: int) -> int:
    def work(db: SqliteConnection) -> int:
        db.execute("INSERT INTO numbers VALUES (?)", (number,))
        return number * 10

    return await database.write(work)


async def numbers(database: Database) -> list[int]:
    return await database.read(lambda db: [int(row[0]) for row in db.execute("SELECT n FROM numbers ORDER BY n")])


def syncs(recorder: DiskRecorder) -> int:
    return sum(isinstance(operation, FileSynced) for operation in recorder.operations)


async def test_work_that_gathers_shares_one_sync_and_each_caller_gets_its_own_result(
    database: Database, recorder: DiskRecorder
) -> None:
    gate = Gate()
    held = asyncio.ensure_future(database.write(gate))
    waiting = asyncio.gather(*(add(database, n) for n in range(200)))
    await asyncio.sleep(0)
    before = syncs(recorder)
    gate.open()

    assert await waiting == [n * 10 for n in range(200)]
    await held
    assert await numbers(database) == list(range(200))
    assert syncs(recorder) - before <= 3


async def test_one_refusal_does_not_fail_its_neighbours(database: Database) -> None:
    gate = Gate()
    held = asyncio.ensure_future(database.write(gate))
    waiting = asyncio.gather(*(add(database, n) for n in (1, 2, 1, 3)), return_exceptions=True)
    await asyncio.sleep(0)
    gate.open()

    first, second, refused, third = await waiting
    await held

    assert (first, second, third) == (10, 20, 30)
    assert isinstance(refused, BrokenRuleError)
    assert await numbers(database) == [1, 2, 3]


async def test_work_that_raises_leaves_nothing_behind(database: Database) -> None:
    def work(db: SqliteConnection) -> None:
        db.execute("INSERT INTO numbers VALUES (1)")
        raise Fenced("no")

    with pytest.raises(Fenced):
        await database.write(work)

    assert await numbers(database) == []


async def test_cancelled_caller_still_waits_for_the_commit(database: Database) -> None:
    gate = Gate()
    held = asyncio.ensure_future(database.write(gate))
    task = asyncio.ensure_future(add(database, 1))
    await asyncio.sleep(0)

    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    gate.open()

    with pytest.raises(asyncio.CancelledError):
        await task
    await held
    assert await numbers(database) == [1]


async def test_closing_waits_for_what_was_submitted(home: Path) -> None:
    gate = Gate()
    async with Database(home / "numbers.db", prepare) as database:
        waiting = asyncio.gather(database.write(gate), *(add(database, n) for n in range(20)))
        await asyncio.sleep(0)
        gate.open()
    await waiting

    async with Database(home / "numbers.db", prepare) as database:
        assert await numbers(database) == list(range(20))


async def test_closed_database_says_so_instead_of_waiting_for_ever(home: Path) -> None:
    async with Database(home / "numbers.db", prepare) as database:
        pass

    with pytest.raises(RuntimeError, match="closed"):
        await add(database, 1)


async def test_two_hundred_concurrent_records_are_all_there_in_the_order_of_each_session(
    home: Path, clock: ManualClock
) -> None:
    names = [SessionId(f"session-{n}") for n in range(20)]

    async def talk(store: SqliteStore, session: SessionId, epoch: Epoch) -> None:
        for n in range(10):
            await store.journal.record(session, epoch, [Noted(str(n))])

    async with SqliteStore(home, clock) as store:
        owner = await store.owners.join("test")
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                await store.sessions.create(NewSession(name, "test"))
                epoch = await store.journal.seize(name, owner)
                assert not isinstance(epoch, Held)
                tasks.create_task(talk(store, name, epoch))

    async with SqliteStore(home, clock) as store:
        for name in names:
            assert [one.entry for one in await store.journal.entries(name)] == [Noted(str(n)) for n in range(10)]
