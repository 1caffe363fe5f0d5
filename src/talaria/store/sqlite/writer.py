"""The writer thread with group commit: all submissions that have gathered share one transaction and one fsync.

If one refuses, all are run again, each in its own savepoint, so that a refusal does not fail the group: work may run
twice, and has no effect but on the database. A future is resolved only after the COMMIT that carries it has reached the
disk.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import apsw

from talaria.core.errors import StoreDamaged, StoreUnavailable
from talaria.store.sqlite.connection import SqliteConnection
from talaria.store.sqlite.faults import explain
from talaria.store.sqlite.jobs import Job, Jobs, Work, settle
from talaria.waiting import completed

T = TypeVar("T")

MAX_GROUP = 256


class Writer:
    def __init__(self, path: Path, connect: Callable[[], SqliteConnection]) -> None:
        self._path = path
        self._connect = connect
        self.trouble = ""
        """Why the last commit failed, if the disk was the reason; empty once something was written again."""
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
        """A cancelled caller still waits for the outcome: a commit is not an await that may be torn."""
        return await completed(self._jobs.put(work, is_write=True))

    async def version(self) -> int:
        """Another number when another connection has committed. To the one that writes, its own commits are no news."""
        return await self._jobs.put(self._version, is_write=False)

    def _version(self, connection: SqliteConnection) -> int:
        return (self._connections << 32) + int(connection.pragma("data_version"))  # each connection counts anew

    def _serve(self) -> None:
        while group := self._jobs.gathered(MAX_GROUP):
            self._look([job for job in group if not job.is_write])
            self._commit([job for job in group if job.is_write])
        if self._connection is not None:
            self._connection.close()

    def _look(self, group: Sequence[Job[Any]]) -> None:
        for job in group:
            try:
                job.result = job.work(self._opened())
            except Exception as fault:  # noqa: BLE001  (a thread's border: handed to the submitter)
                job.error = explain(fault, self._path)
        settle(group)

    def _commit(self, group: Sequence[Job[Any]]) -> None:
        if not group:
            return
        try:
            connection = self._begin()
            changed = connection.total_changes()
            if not _have_run(connection, group):
                connection.execute("ROLLBACK")
                connection.execute("BEGIN IMMEDIATE")
                for job in group:
                    self._run(connection, job)
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
        connection = self._opened()
        connection.execute("BEGIN IMMEDIATE")
        return connection

    def _opened(self) -> SqliteConnection:
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

    def _run(self, connection: SqliteConnection, job: Job[Any]) -> None:
        connection.execute("SAVEPOINT job")
        try:
            job.result = job.work(connection)
        except Exception as fault:
            if not connection.in_transaction:
                raise  # SQLite has rolled the whole group back (disk full, I/O error)
            connection.execute("ROLLBACK TO job")
            job.error = explain(fault, self._path)
        connection.execute("RELEASE job")


def _have_run(connection: SqliteConnection, group: Sequence[Job[Any]]) -> bool:
    """False: one of them refuses, and all must be run anew, apart. That is rare, so none has a savepoint yet."""
    try:
        for job in group:
            job.result = job.work(connection)
    except Exception:
        if len(group) == 1 or not connection.in_transaction:
            raise  # nobody else is concerned, or all are: SQLite has rolled back by itself (disk full, I/O error)
        return False
    return True
