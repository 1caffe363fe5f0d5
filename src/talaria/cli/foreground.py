"""Work in front of the person, stopped by Ctrl-C."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Interrupt = Callable[[], bool]
"""Stops the turn under way, which then ends by itself; False if there is none."""


async def interruptible(work: Coroutine[Any, Any, T], interrupt: Interrupt) -> T:
    """The first Ctrl-C stops it, and a turn still ends well on the disk; a second one leaves at once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def stop() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        if not interrupt() and task is not None:  # no turn has begun: nothing is taken yet
            task.cancel()

    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        return await work
    finally:
        loop.remove_signal_handler(signal.SIGINT)
