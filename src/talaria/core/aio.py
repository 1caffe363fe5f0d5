"""Waiting that needs care: for blocking work, for work that must not be interrupted, and for blocking contexts."""

import asyncio
import contextvars
import os
import queue
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")
IDLE_S = 10.0
"""How long a thread waits for its next work."""


class UncancellableFuture(asyncio.Future[T]):
    """A future for `complete` that is not cancelled with whoever waits for it, so it can be waited for directly."""

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002  (as in `asyncio.Future`)
        """False: the task that waits is cancelled as soon as this is done."""
        return False


_shielded: "set[asyncio.Future[Any]]" = set()


async def complete(work: Awaitable[T]) -> T:
    """Wait for the outcome even if cancelled meanwhile; the cancellation takes effect after it.

    So a cancelled caller knows that the work was done. If the work failed, its failure is raised
    instead. Work inside
    of such work is simply awaited: nobody else can cancel it.
    """
    if asyncio.current_task() in _shielded:
        return await work
    if isinstance(work, UncancellableFuture):
        try:
            return await work
        except asyncio.CancelledError:
            work.result()  # raises its failure, if it has failed
            raise
    task = asyncio.ensure_future(work)
    _shielded.add(task)
    cancelled: asyncio.CancelledError | None = None
    try:
        while not task.done():
            try:
                await wait_until_done(task)
            except asyncio.CancelledError as request:
                cancelled = request
    finally:
        _shielded.discard(task)
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


async def wait_until_done(task: "asyncio.Future[Any]") -> None:
    """Like `asyncio.wait`, but cheaper: cancelling the caller does not cancel the task."""
    waiter: asyncio.Future[None] = task.get_loop().create_future()
    task.add_done_callback(lambda _: waiter.done() or waiter.set_result(None))
    await waiter


async def in_thread(work: Callable[[], T]) -> T:
    """Runs work in its own daemon thread, so that if it hangs, it blocks neither other work, nor the loop, nor the
    process's exit."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Callable[[], T]] = loop.create_future()

    def settle(outcome: Callable[[], T]) -> None:
        if not done.done():
            done.set_result(outcome)

    def run() -> None:
        outcome = _capture(work)
        with suppress(RuntimeError):  # the loop is closed, so nobody waits
            loop.call_soon_threadsafe(settle, outcome)

    context = contextvars.copy_context()
    worker = _idle.pop() if _idle else _Worker()
    worker.give(lambda: context.run(run))
    return (await done)()


class _Worker:
    """A thread that is reused: starting one delays the caller."""

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


def _capture(work: Callable[[], T]) -> Callable[[], T]:
    try:
        result = work()
    except BaseException as fault:  # noqa: BLE001  (raised again in the loop)
        caught = fault

        def fail() -> T:
            raise caught

        return fail
    return lambda: result


@asynccontextmanager
async def in_threads(context: AbstractContextManager[T]) -> AsyncGenerator[T]:
    with ExitStack() as entering:
        entered = await complete(in_thread(lambda: entering.enter_context(context)))
        leaving = entering.pop_all()
    try:
        yield entered
    finally:
        await complete(in_thread(leaving.close))
