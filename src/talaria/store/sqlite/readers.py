"""A few threads that look into the database, each with a connection of its own. They begin when they are needed."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import apsw

from talaria.store.sqlite.connection import SqliteConnection
from talaria.store.sqlite.faults import FAULTS, explain
from talaria.store.sqlite.jobs import Job, Jobs, Work, settle

T = TypeVar("T")

THREADS = 2
MAX_GROUP = 8
"""So that few wait for a long look that is not theirs."""


class Readers:
    def __init__(self, path: Path, connect: Callable[[], SqliteConnection]) -> None:
        self._path = path
        self._connect = connect
        self._jobs = Jobs()
        self._threads: list[threading.Thread] = []

    async def submit(self, work: Work[T]) -> T:
        """Who is cancelled does not wait for it."""
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
        while group := self._jobs.gathered(MAX_GROUP):
            connection = self._look_all(group, connection)
            group.clear()  # nothing that was found is kept alive by a thread that waits
        _closed(connection)

    def _look_all(self, group: Sequence[Job[Any]], connection: SqliteConnection | None) -> SqliteConnection | None:
        for job in group:
            connection = self._look(job, connection)
        settle(group)
        return connection

    def _look(self, job: Job[Any], connection: SqliteConnection | None) -> SqliteConnection | None:
        """The connection to go on with. None: the next look opens the file anew, because a connection made while the
        disk was ill may never recover."""
        try:
            connection = connection or self._opened()
            job.result = job.work(connection)
        except FAULTS as fault:
            job.error = explain(fault, self._path)
            _closed(connection)
            return None
        except Exception as fault:  # noqa: BLE001  (a thread's border: handed to the submitter)
            job.error = fault
        return connection

    def _opened(self) -> SqliteConnection:
        connection = self._connect()
        connection.pragma("query_only", True)
        return connection


def _closed(connection: SqliteConnection | None) -> None:
    if connection is not None:
        with suppress(apsw.Error):
            connection.close(True)
