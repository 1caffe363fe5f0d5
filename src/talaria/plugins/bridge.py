"""From plugin code, which is synchronous and in a thread, back into the application's event loop."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import TimeoutError as TooLate
from typing import Any, TypeVar

T = TypeVar("T")


class Bridge:
    """Works while the application is open. The work runs for the same conversation as its caller."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        self._loop = None

    def run(self, work: Callable[[], Coroutine[Any, Any, T]], seconds: float | None = None) -> T:
        """Raises what the work raises, `TimeoutError`, or `RuntimeError` if it cannot be waited for here."""
        loop = self._loop
        if loop is None or loop.is_closed():
            raise RuntimeError("Talaria has no conversation open here.")
        try:
            is_inside = asyncio.get_running_loop() is loop
        except RuntimeError:
            is_inside = False
        if is_inside:
            raise RuntimeError("This would wait for itself: call it from a thread, or await its async form.")
        future = asyncio.run_coroutine_threadsafe(work(), loop)
        try:
            return future.result(seconds)
        except TooLate:
            future.cancel()
            raise
