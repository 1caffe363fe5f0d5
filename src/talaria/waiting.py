"""The two ways of waiting that need care: for blocking work, and for work that must not be torn."""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def completed(work: Awaitable[T]) -> T:
    """Wait for the outcome even if cancelled meanwhile; then the cancellation goes on.

    So a cancelled caller knows that the work was done. If the work failed, its failure is raised instead.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await ended(task)
        except asyncio.CancelledError as request:
            cancelled = request
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
    """A daemon thread of its own: work that hangs can be abandoned, and then keeps neither loop nor process alive."""
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
    threading.Thread(target=context.run, args=(run,), name="tool", daemon=True).start()
    return (await done)()


def _outcome(work: Callable[[], T]) -> Callable[[], T]:
    try:
        result = work()
    except BaseException as fault:  # noqa: BLE001  (raised again in the loop)
        caught = fault

        def fail() -> T:
            raise caught

        return fail
    return lambda: result
