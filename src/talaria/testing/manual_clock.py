"""A clock that you advance by hand."""

import asyncio


class ManualClock:
    """A sleeper wakes when `advance` passes its deadline. With `auto`, sleeping itself advances the time.

    A time limit (`expire`) never advances it: only `advance` or another sleep reaches the limit.
    """

    def __init__(self, at: float = 1_800_000_000.0, *, auto: bool = False) -> None:
        self._now = at
        self._monotonic = 1_000.0
        self.auto = auto
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []
        self.slept: list[float] = []
        """The durations of all sleeps, in the order in which they began."""

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        self._now += seconds
        self._monotonic += seconds
        due = sorted((sleeper for sleeper in self._sleepers if sleeper[0] <= self._monotonic), key=lambda s: s[0])
        for _, woken in due:
            if not woken.done():
                woken.set_result(None)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.auto:
            self.advance(max(seconds, 0))
        if self.auto or seconds <= 0:
            await asyncio.sleep(0)
            return
        await self._reach(seconds)

    async def expire(self, seconds: float) -> None:
        await self._reach(seconds)

    async def _reach(self, seconds: float) -> None:
        sleeper = (self._monotonic + seconds, asyncio.get_running_loop().create_future())
        self._sleepers.append(sleeper)
        try:
            await sleeper[1]
        finally:
            self._sleepers.remove(sleeper)
