"""One SQLite file: its connections, one writer and a few short readers.

Nothing but SQLite ever opens the file: closing any other descriptor of it would silently drop this
process's locks.
"""

import array
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import apsw

from talaria.core.aio import complete, in_thread
from talaria.store.sqlite.connection import FAULTS, SqliteConnection, Value, explain, unusable_folder
from talaria.store.sqlite.writer import Job, Jobs, Work, Writer, settle

T = TypeVar("T")

THREADS = 2
MAX_GROUP = 8
"""Several, so that few callers wait for somebody else's long read."""


class Readers:
    def __init__(self, path: Path, connect: Callable[[], SqliteConnection]) -> None:
        self._path = path
        self._connect = connect
        self._jobs = Jobs()
        self._threads: list[threading.Thread] = []

    async def submit(self, work: Work[T]) -> T:
        """A cancelled caller does not wait for it."""
        future = self._jobs.put(work, is_write=False)
        if len(self._threads) < THREADS:
            thread = threading.Thread(target=self._serve, name=f"reader {self._path.name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return await future

    def stop(self) -> None:
        self._jobs.close()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        connection: SqliteConnection | None = None
        while group := self._jobs.take_group(MAX_GROUP):
            for job in group:
                connection = self._look(job, connection)
            settle(group)
            group.clear()  # nothing that was found is kept alive by a thread that waits
        _close(connection)

    def _look(self, job: Job[Any], connection: SqliteConnection | None) -> SqliteConnection | None:
        """The connection to continue with. None: the next read reopens the file, because a connection made while the
        disk failed may never recover."""
        try:
            if connection is None:
                connection = self._connect()
                connection.pragma("query_only", True)
            job.result = job.work(connection)
        except FAULTS as fault:
            job.error = explain(fault, self._path)
            _close(connection)
            return None
        except Exception as fault:  # noqa: BLE001  (a thread's border: handed to the submitter)
            job.error = fault
        return connection


def _close(connection: SqliteConnection | None) -> None:
    if connection is not None:
        with suppress(apsw.Error):
            connection.close(True)


CACHE_KB = 16 << 10
CHECKPOINT_PAGES = 4 << 10
"""Large, so that a page that changes with every turn is written back once for many turns."""
Prepare = Callable[[SqliteConnection, Path], None]


class Database:
    def __init__(self, path: Path, prepare: Prepare, *, vfs: str | None = None, busy_timeout_s: float = 10.0) -> None:
        """`prepare` brings the schema up to date, on each writing connection before its first use."""
        self.path = path
        self._prepare = prepare
        self._vfs = vfs
        self._busy_timeout_ms = int(busy_timeout_s * 1000)
        self._writer = Writer(path, self._open_writer)
        self._readers = Readers(path, self._connect)

    async def __aenter__(self) -> Self:
        self._writer.start()
        try:
            await self._writer.submit(lambda _: None)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.stop()
        self._readers.stop()
        await complete(in_thread(self._close))

    def _close(self) -> None:
        """The WAL stays and is not checkpointed, so closing is quick, and safe while other processes run."""
        self._writer.join()
        self._readers.join()

    async def write(self, work: Work[T]) -> T:
        """Run `work` inside the next group's transaction; returns once it is durable, even if the caller is
        cancelled."""
        return await self._writer.submit(work)

    @property
    def trouble(self) -> str:
        return self._writer.trouble

    async def version(self) -> int:
        """Changes with the commits of other connections, not with those of `write`."""
        return await self._writer.version()

    async def read(self, work: Work[T]) -> T:
        return await self._readers.submit(work)

    async def rows(self, sql: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        """The rows that one query finds."""
        return await self.read(lambda db: db.execute(sql, values).fetchall())

    async def change(self, sql: str, values: Sequence[Value] = ()) -> int:
        """Returns how many rows one statement changed."""

        def work(db: SqliteConnection) -> int:
            db.execute(sql, values)
            return db.changes()

        return await self.write(work)

    async def alone(self, work: Work[T]) -> T:
        """For what takes long: with its own connection, outside transactions. A cancelled caller leaves it running."""

        def work_alone() -> T:
            try:
                with closing(self._connect()) as connection:
                    return work(connection)
            except apsw.Error as fault:
                raise explain(fault, self.path) from fault

        return await in_thread(work_alone)

    def connect_for_writing(self) -> SqliteConnection:
        """For a caller in a thread of its own, which waits there. Raises `apsw.Error`."""
        return self._open_writer()

    def _connect(self) -> SqliteConnection:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            is_new = not self.path.exists()
        except OSError as fault:
            raise unusable_folder(self.path.parent, fault) from fault
        native = apsw.Connection(str(self.path), vfs=self._vfs)
        native.set_busy_timeout(self._busy_timeout_ms)
        native.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        native.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        keep = array.array("i", [1])
        native.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, keep.buffer_info()[0])
        if is_new:
            self.path.chmod(0o600)  # before the WAL exists: it takes over the mode
        connection = cast("SqliteConnection", native)
        connection.pragma("foreign_keys", True)
        connection.pragma("trusted_schema", False)
        connection.pragma("cell_size_check", True)
        connection.pragma("cache_size", -CACHE_KB)
        return connection

    def _open_writer(self) -> SqliteConnection:
        connection = self._connect()
        if connection.readonly("main"):  # SQLite settles for that silently, and would stay so when the disk has healed
            raise apsw.ReadOnlyError
        connection.pragma("synchronous", "full")
        self._prepare(connection, self.path)  # before the first write: it may refuse the file
        self._enter_wal(connection)
        connection.pragma("journal_size_limit", 64 << 20)
        connection.pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
        return connection

    def _enter_wal(self, connection: SqliteConnection) -> None:
        """SQLite's own busy timeout does not cover this step, and several processes may open a new file at once."""
        deadline = time.monotonic() + self._busy_timeout_ms / 1000
        while True:
            try:
                connection.pragma("journal_mode", "wal")
            except apsw.BusyError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.005)
            else:
                return
