"""Work for threads, waited for in event loops. What has gathered is taken together, and a loop is woken once for all of
it: that is most of what handing work to another thread costs."""

import asyncio
import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from talaria.store.sqlite.connection import SqliteConnection

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
        job = Job(work, loop.create_future(), loop, is_write)
        self._queue.put(job)
        return job.future

    def close(self) -> None:
        """Take no more; what is there is still done."""
        self.is_closed = True
        self._queue.put(None)

    def gathered(self, most: int) -> list[Job[Any]]:
        """The next and those that have gathered behind it; empty at the end of work. Waits, in a thread."""
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
    """A few at a time: whoever waits for them goes on in the same pass of the loop, and others want their turn, too."""
    for job in jobs[:AT_ONCE]:
        job.settle()
    if rest := jobs[AT_ONCE:]:
        jobs[0].loop.call_soon(_settle_some, rest)
