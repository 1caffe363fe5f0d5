"""The platforms that are connected at this moment, and those that want to be left alone for a while."""

import asyncio
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

from talaria.model.clock import Clock
from talaria.model.errors import Transient
from talaria.platforms.base import Platform, PlatformFailure

LEAVE_S = 5.0


class Links:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._connected: dict[str, Platform] = {}
        self._changed = asyncio.Condition()
        self._quiet_until: dict[str, float] = {}
        self._calls: Counter[int] = Counter()
        """What is under way, by the identity of the platform."""
        self._is_unused = asyncio.Event()

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._connected)

    def find(self, name: str) -> Platform | None:
        return self._connected.get(name)

    async def wait(self, name: str) -> Platform:
        """Until it is connected."""
        async with self._changed:
            await self._changed.wait_for(lambda: name in self._connected)
            return self._connected[name]

    async def connected(self, platform: Platform) -> None:
        async with self._changed:
            self._connected[platform.name] = platform
            self._changed.notify_all()

    async def gone(self, platform: Platform) -> None:
        """Nobody finds it any more, and what is under way has ended, unless that takes too long: it may be closed."""
        async with self._changed:
            if self._connected.get(platform.name) is platform:
                del self._connected[platform.name]
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                while id(platform) in self._calls:
                    self._is_unused.clear()
                    await self._is_unused.wait()

    @contextmanager
    def call(self, platform: Platform) -> Generator[None]:
        """Something is under way: what is cut now may have arrived, and nobody would know."""
        self._calls[id(platform)] += 1
        try:
            yield
        finally:
            self._calls[id(platform)] -= 1
            if not self._calls[id(platform)]:
                del self._calls[id(platform)]
                self._is_unused.set()

    def heed(self, name: str, fault: PlatformFailure) -> None:
        """It may say for how long the platform wants to be left alone."""
        if isinstance(fault, Transient) and fault.retry_after_s is not None:
            self.quieten(name, fault.retry_after_s)

    def quieten(self, name: str, seconds: float) -> None:
        """The platform wants nothing to be sent before that time has passed."""
        until = self._clock.monotonic() + seconds
        self._quiet_until[name] = max(until, self._quiet_until.get(name, until))

    def quiet_s(self, name: str) -> float:
        """For how long nothing may be sent; 0: something may."""
        return max(0.0, self._quiet_until.get(name, 0.0) - self._clock.monotonic())
