"""Async code of others on our own event loop, where its connections live: with a limit, and contained."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from talaria.foreign import Broke, contained
from talaria.model.clock import Clock


async def called(work: Callable[[], Awaitable[Any]], seconds: float, clock: Clock) -> Any:
    """Raises `Broke`, and nothing else. What has not returned in time is cancelled, and left alone."""
    running = asyncio.ensure_future(_contained(work))
    limit = asyncio.ensure_future(clock.expire(seconds))
    try:
        await asyncio.wait([running, limit], return_when=asyncio.FIRST_COMPLETED)
    finally:
        limit.cancel()
        if not running.done():
            running.cancel()
            running.add_done_callback(_looked_at)
    if not running.done():
        raise Broke(f"did not return within {seconds:.0f} seconds", has_hung=True)
    if running.cancelled():
        raise Broke("was cancelled by its own code")
    return running.result()


async def _contained(work: Callable[[], Awaitable[Any]]) -> Any:
    """Also leaving the process is not for others to decide: it would stop the loop."""
    try:
        return await work()
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as fault:  # noqa: BLE001
        caught = fault

    def again() -> None:
        raise caught

    return contained(again)


def _looked_at(task: "asyncio.Future[Any]") -> None:
    """So that a failure which nobody waits for any more is not complained about."""
    if not task.cancelled():
        task.exception()
