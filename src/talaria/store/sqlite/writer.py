"""The writer thread with group commit: all submissions that have gathered share one transaction and
one fsync.

If one refuses, all are run again, each in its own savepoint, so that a refusal does not fail the
group: work may run twice, and has no effect but on the database. A future is resolved only after
the COMMIT that carries it has reached the disk.

Work for threads, waited for in event loops. What has gathered is taken together, and a loop is
woken once for all of it: that is most of what handing work to another thread costs.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import apsw

from talaria.core.aio import UncancellableFuture, complete
from talaria.core.errors import StoreDamaged, StoreUnavailable
from talaria.store.sqlite.connection import SqliteConnection, explain

T = TypeVar("T")
Work = Callable[[SqliteConnection], T]
AT_ONCE = 16


@dataclass(slots=True)
class Job(Generic[T]):
    work: Work[T]
    future: "asyncio.Future[T]"
    loop: asyncio.AbstractEventLoop
    is_write: bool
    result: T | None = None
    error: BaseException | None = None

    def settle(self) -> None:
        if self.future.cancelled():  # who only looks may stop waiting
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]  # what `work` returned


class Jobs:
    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self.is_closed = False

    def put(self, work: Work[T], *, is_write: bool) -> "asyncio.Future[T]":
        """Waited for in the loop that runs. Raises `RuntimeError` after `close`."""
        if self.is_closed:
            raise RuntimeError("the database is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = UncancellableFuture(loop=loop) if is_write else loop.create_future()
        job = Job(work, future, loop, is_write)
        self._queue.put(job)
        return job.future

    def close(self) -> None:
        """Take no more; what is there is still done."""
        self.is_closed = True
        self._queue.put(None)

    def take_group(self, most: int) -> list[Job[Any]]:
        """The next and those that have gathered behind it; empty at the end of work. Waits, in a
        thread."""
        job = self._queue.get()
        group: list[Job[Any]] = []
        while job is not None:
            group.append(job)
            if len(group) == most or self._queue.empty():
                return group
            job = self._queue.get()
        self._queue.put(None)  # for this thread's next look, and for the other threads
        return group


def settle(group: Sequence[Job[Any]]) -> None:
    """Wake each waiting loop once for all of its jobs."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Job[Any]]] = {}
    for job in group:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, jobs in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_settle_some, jobs)


def _settle_some(jobs: Sequence[Job[Any]]) -> None:
    """A few at a time: whoever waits for them goes on in the same pass of the loop, and others want
    their turn, too."""
    for job in jobs[:AT_ONCE]:
        job.settle()
    if rest := jobs[AT_ONCE:]:
        jobs[0].loop.call_soon(_settle_some, rest)


MAX_GROUP = 256


class Writer:
    def __init__(self, path: Path, connect: Callable[[], SqliteConnection]) -> None:
        self._path = path
        self._connect = connect
        self.trouble = ""
        """Why the last commit failed, if the disk was the reason; empty once something was written
        again."""
        self._connection: SqliteConnection | None = None
        self._connections = 0
        self._jobs = Jobs()
        self._thread = threading.Thread(target=self._serve, name=f"writer {path.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Takes no more work; `join` waits for what was submitted."""
        self._jobs.close()

    def join(self) -> None:
        self._thread.join()

    async def submit(self, work: Work[T]) -> T:
        """A cancelled caller still waits for the outcome: a commit is not an await that may be
        torn."""
        return await complete(self._jobs.put(work, is_write=True))

    async def version(self) -> int:
        """Another number when another connection has committed. To the one that writes, its own
        commits are no news."""
        return await self._jobs.put(self._version, is_write=False)

    def _version(self, connection: SqliteConnection) -> int:
        return (self._connections << 32) + int(connection.pragma("data_version"))  # each connection counts anew

    def _serve(self) -> None:
        while group := self._jobs.take_group(MAX_GROUP):
            self._run_reads([job for job in group if not job.is_write])
            self._commit([job for job in group if job.is_write])
        if self._connection is not None:
            self._connection.close()

    def _run_reads(self, group: Sequence[Job[Any]]) -> None:
        for job in group:
            try:
                job.result = job.work(self._open())
            except Exception as fault:  # noqa: BLE001  (a thread's border: handed to the submitter)
                job.error = explain(fault, self._path)
        settle(group)

    def _commit(self, group: Sequence[Job[Any]]) -> None:
        if not group:
            return
        try:
            connection = self._begin()
            changed = connection.total_changes()
            if not _run_together(connection, group):
                connection.execute("ROLLBACK")
                connection.execute("BEGIN IMMEDIATE")
                for job in group:
                    self._run_apart(connection, job)
            connection.execute("COMMIT")
            if connection.total_changes() != changed:  # else the disk was not asked
                self.trouble = ""
        except Exception as fault:  # noqa: BLE001  (a thread's border: handed to the submitters)
            error = explain(fault, self._path)
            if isinstance(error, StoreUnavailable | StoreDamaged):
                self.trouble = str(error)
            for job in group:
                job.error = error
            self._roll_back()
        settle(group)

    def _begin(self) -> SqliteConnection:
        connection = self._open()
        connection.execute("BEGIN IMMEDIATE")
        return connection

    def _open(self) -> SqliteConnection:
        if self._connection is None:
            self._connection = self._connect()
            self._connections += 1
        return self._connection

    def _roll_back(self) -> None:
        """The connection is kept, and heals with the disk: it alone knows that the frames of a
        commit that failed half way are void, and will overwrite them. One that opens the file anew
        could take them for committed.
        """
        connection = self._connection
        if connection is None or not connection.in_transaction:
            return
        try:
            connection.execute("ROLLBACK")
        except apsw.Error:
            self._connection = None
            with suppress(apsw.Error):  # whatever happens, this thread lives on
                connection.close(True)

    def _run_apart(self, connection: SqliteConnection, job: Job[Any]) -> None:
        connection.execute("SAVEPOINT job")
        try:
            job.result = job.work(connection)
        except Exception as fault:
            if not connection.in_transaction:
                raise  # SQLite has rolled the whole group back (disk full, I/O error)
            connection.execute("ROLLBACK TO job")
            job.error = explain(fault, self._path)
        connection.execute("RELEASE job")


def _run_together(connection: SqliteConnection, group: Sequence[Job[Any]]) -> bool:
    """False: one of them refuses, and all must be run anew, apart. That is rare, so none has a
    savepoint yet."""
    try:
        for job in group:
            job.result = job.work(connection)
    except Exception:
        if len(group) == 1 or not connection.in_transaction:
            raise  # nobody else is concerned, or all are: SQLite has rolled back by itself (disk full, I/O error)
        return False
    return True
