"""Real time that can be turned forward."""

import asyncio
import time

LOOK_S = 0.01


class TravellingClock:
    def __init__(self) -> None:
        self._ahead_s = 0.0

    def advance(self, seconds: float) -> None:
        self._ahead_s += seconds

    def now(self) -> float:
        return time.time() + self._ahead_s

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead_s

    async def sleep(self, seconds: float) -> None:
        until = self.monotonic() + seconds
        while (left := until - self.monotonic()) > 0:
            await asyncio.sleep(min(left, LOOK_S))

    async def expire(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
