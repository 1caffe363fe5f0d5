"""Ends a wait for the other side that takes too long.

There is one timer per exchange; whatever arrives only moves its deadline. A wait is cut only inside `limit`, so a slow
reader on our side is never cut.
"""

import asyncio
from contextlib import suppress
from typing import Self

from talaria.core.clock import Clock


class StallWatch:
    def __init__(self, clock: Clock, total_s: float) -> None:
        self._clock = clock
        self._end = clock.monotonic() + total_s
        self._due = self._end
        self._aim = self._end
        """When the timer wakes next: never after `_due`."""
        self._wait: asyncio.Timeout | None = None
        self._timer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @property
    def is_out_of_time(self) -> bool:
        """Whether the whole exchange took too long, not just the last wait."""
        return self._clock.monotonic() >= self._end

    def limit(self, seconds: float) -> asyncio.Timeout:
        """Raises `TimeoutError` if what is awaited inside takes longer than this, or than what is left of the total."""
        now = self._clock.monotonic()
        self._due = min(now + seconds, self._end)
        if self._timer is None or self._timer.done() or self._due < self._aim:
            if self._timer is not None:
                self._timer.cancel()
            self._aim = self._due
            self._timer = asyncio.create_task(self._cut_when_due(), name="stall watch")
        self._wait = asyncio.timeout(None if self._due > now else 0)
        return self._wait

    async def _cut_when_due(self) -> None:
        while (left_s := self._due - self._clock.monotonic()) > 0:
            self._aim = self._due
            await self._clock.expire(left_s)
        if self._wait is not None:
            with suppress(RuntimeError):  # the wait has ended
                self._wait.reschedule(asyncio.get_running_loop().time())
