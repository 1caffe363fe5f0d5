"""Time as a value that is passed in, so that tests can set it."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch, for people and for the journal."""
        ...

    def monotonic(self) -> float:
        """Seconds for measuring and for deadlines; never jumps."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    async def expire(self, seconds: float) -> None:
        """Like `sleep`, but for a time limit, which should not be reached: no test clock advances because of it."""
        ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def expire(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
