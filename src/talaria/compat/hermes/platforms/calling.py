"""Async code of others on our own event loop, where its connections live: with a limit, and contained."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from talaria.core.clock import Clock
from talaria.plugin_calls import PluginError, ends, looked_at, raised


async def called(work: Callable[[], Awaitable[Any]], seconds: float, clock: Clock) -> Any:
    """Raises `PluginError`, and nothing else. What has not returned in time is cancelled, and left alone."""
    running = asyncio.ensure_future(_contained(work))
    try:
        is_in_time = await ends(running, seconds, clock)
    finally:
        if not running.done():
            running.cancel()
            running.add_done_callback(looked_at)
    if not is_in_time:
        raise PluginError(f"did not return within {seconds:.0f} seconds", has_hung=True)
    if running.cancelled():
        raise PluginError("was cancelled by its own code")
    return running.result()


async def _contained(work: Callable[[], Awaitable[Any]]) -> Any:
    """Also leaving the process is not for others to decide: it would stop the loop."""
    try:
        return await work()
    except (asyncio.CancelledError, GeneratorExit, PluginError):
        raise
    except BaseException as fault:
        raise raised(fault) from fault
