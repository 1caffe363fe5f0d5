"""The one way blocking work leaves the event loop."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


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
