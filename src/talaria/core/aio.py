"""The two ways of waiting that need care: for blocking work, and for work that must not be torn."""

import asyncio
import contextvars
import os
import queue
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
IDLE_S = 10.0
"""How long a thread waits for its next work."""


_shielded: "set[asyncio.Future[Any]]" = set()


async def completed(work: Awaitable[T]) -> T:
    """Wait for the outcome even if cancelled meanwhile; then the cancellation goes on.

    So a cancelled caller knows that the work was done. If the work failed, its failure is raised instead. Work inside
    of such work is simply awaited: nobody else can cancel it.
    """
    if asyncio.current_task() in _shielded:
        return await work
    task = asyncio.ensure_future(work)
    _shielded.add(task)
    cancelled: asyncio.CancelledError | None = None
    try:
        while not task.done():
            try:
                await ended(task)
            except asyncio.CancelledError as request:
                cancelled = request
    finally:
        _shielded.discard(task)
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


async def ended(task: "asyncio.Future[Any]") -> None:
    """As `asyncio.wait`, with less ado: who is cancelled does not cancel the task."""
    waiter: asyncio.Future[None] = task.get_loop().create_future()
    task.add_done_callback(lambda _: waiter.done() or waiter.set_result(None))
    await waiter


async def in_thread(work: Callable[[], T]) -> T:
    """In a daemon thread that does nothing else: work that hangs keeps neither others nor loop nor process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Callable[[], T]] = loop.create_future()

    def settle(outcome: Callable[[], T]) -> None:
        if not done.done():
            done.set_result(outcome)

    def run() -> None:
        outcome = _outcome(work)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, outcome)

    context = contextvars.copy_context()
    worker = _idle.pop() if _idle else _Worker()
    worker.give(lambda: context.run(run))
    return (await done)()


class _Worker:
    """A thread, used again: to start one holds up whoever does."""

    def __init__(self) -> None:
        self._given: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="tool", daemon=True).start()

    def give(self, work: Callable[[], None]) -> None:
        self._given.put(work)

    def _serve(self) -> None:
        while True:
            try:
                self._given.get(timeout=IDLE_S)()
                _idle.append(self)
            except queue.Empty:
                with suppress(ValueError):  # just taken by somebody: work is coming
                    _idle.remove(self)
                    return


_idle: deque[_Worker] = deque()
os.register_at_fork(after_in_child=_idle.clear)  # threads are not inherited


def _outcome(work: Callable[[], T]) -> Callable[[], T]:
    try:
        result = work()
    except BaseException as fault:  # noqa: BLE001  (raised again in the loop)
        caught = fault

        def fail() -> T:
            raise caught

        return fail
    return lambda: result
