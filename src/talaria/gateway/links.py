"""The platforms that are connected at this moment, and those that want to be left alone for a while."""

import asyncio
from collections.abc import Sequence

from talaria.model.clock import Clock
from talaria.platforms.base import Platform


class Links:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._connected: dict[str, Platform] = {}
        self._changed = asyncio.Condition()
        self._quiet_until: dict[str, float] = {}

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
        async with self._changed:
            if self._connected.get(platform.name) is platform:
                del self._connected[platform.name]

    def quieten(self, name: str, seconds: float) -> None:
        """The platform wants nothing to be sent before that time has passed."""
        until = self._clock.monotonic() + seconds
        self._quiet_until[name] = max(until, self._quiet_until.get(name, until))

    def quiet_s(self, name: str) -> float:
        """For how long nothing may be sent; 0: something may."""
        return max(0.0, self._quiet_until.get(name, 0.0) - self._clock.monotonic())
