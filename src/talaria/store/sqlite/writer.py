"""The writer thread with group commit: all submissions that have gathered share one transaction and one fsync.

Each runs in its own savepoint, so that one refusal does not fail the group; a future is resolved only after
the COMMIT that carries it has reached the disk.
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

from talaria.store.sqlite.connection import Connection
from talaria.store.sqlite.faults import explain
from talaria.waiting import completed

T = TypeVar("T")
Work = Callable[[Connection], T]

MAX_GROUP = 256


@dataclass(slots=True)
class _Job(Generic[T]):
    work: Work[T]
    future: "asyncio.Future[T]"
    loop: asyncio.AbstractEventLoop
    is_write: bool = True
    result: T | None = None
    error: BaseException | None = None

    def settle(self) -> None:
        if self.future.cancelled():  # who only looks may stop waiting
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]  # what `work` returned


class Writer:
    def __init__(self, path: Path, connect: Callable[[], Connection]) -> None:
        self._path = path
        self._connect = connect
        self._connection: Connection | None = None
        self._connections = 0
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._serve, name=f"writer {path.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Takes no more work; `join` waits for what was submitted."""
        self._is_stopped = True
        self._jobs.put(None)

    def join(self) -> None:
        self._thread.join()

    async def submit(self, work: Work[T]) -> T:
        """A cancelled caller still waits for the outcome: a commit is not an await that may be torn."""
        return await completed(self._put(work))

    async def version(self) -> int:
        """Another number when another connection has committed. To the one that writes, its own commits are no news."""
        return await self._put(self._version, is_write=False)

    def _put(self, work: Work[T], *, is_write: bool = True) -> "asyncio.Future[T]":
        if self._is_stopped:
            raise RuntimeError(f"{self._path} is closed")
        loop = asyncio.get_running_loop()
        job = _Job(work, loop.create_future(), loop, is_write)
        self._jobs.put(job)
        return job.future

    def _version(self, connection: Connection) -> int:
        return (self._connections << 32) + int(connection.pragma("data_version"))  # each connection counts anew

    def _serve(self) -> None:
        while group := self._collect():
            self._look([job for job in group if not job.is_write])
            self._commit([job for job in group if job.is_write])
        if self._connection is not None:
            self._connection.close()

    def _collect(self) -> list[_Job[Any]]:
        """The next job and all that have gathered behind it; empty at the end of work."""
        job = self._jobs.get()
        group: list[_Job[Any]] = []
        while job is not None:
            group.append(job)
            if len(group) == MAX_GROUP or self._jobs.empty():
                return group
            job = self._jobs.get()
        if group:
            self._jobs.put(None)
        return group

    def _look(self, group: Sequence[_Job[Any]]) -> None:
        for job in group:
            try:
                job.result = job.work(self._opened())
            except Exception as fault:  # noqa: BLE001  (a thread's border: handed to the submitter)
                job.error = self._explained(fault)
        _settle(group)

    def _commit(self, group: Sequence[_Job[Any]]) -> None:
        if not group:
            return
        try:
            connection = self._begin()
            for job in group:
                self._run(connection, job)
            connection.execute("COMMIT")
        except Exception as fault:  # noqa: BLE001  (a thread's border: handed to the submitters)
            error = self._explained(fault)
            for job in group:
                job.error = error
            self._roll_back()
        _settle(group)

    def _begin(self) -> Connection:
        connection = self._opened()
        connection.execute("BEGIN IMMEDIATE")
        return connection

    def _opened(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
            self._connections += 1
        return self._connection

    def _roll_back(self) -> None:
        """The connection is kept, and heals with the disk: it alone knows that the frames of a commit that failed half
        way are void, and will overwrite them. One that opens the file anew could take them for committed.
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

    def _run(self, connection: Connection, job: _Job[Any]) -> None:
        connection.execute("SAVEPOINT job")
        try:
            job.result = job.work(connection)
        except Exception as fault:
            if not connection.in_transaction:
                raise  # SQLite has rolled the whole group back (disk full, I/O error)
            connection.execute("ROLLBACK TO job")
            job.error = self._explained(fault)
        connection.execute("RELEASE job")

    def _explained(self, fault: Exception) -> Exception:
        return explain(fault, self._path) or fault


def _settle(group: Sequence[_Job[Any]]) -> None:
    """Wake each waiting loop once for all of its jobs."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Job[Any]]] = {}
    for job in group:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, jobs in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_settle_all, jobs)


def _settle_all(jobs: Sequence[_Job[Any]]) -> None:
    for job in jobs:
        job.settle()
