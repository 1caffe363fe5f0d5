"""Arrivals on their way from a request to our disk. A request waits until its own is there."""

import asyncio
import math
from dataclasses import dataclass

from talaria.core.clock import Clock
from talaria.net.stall import StallWatch
from talaria.platforms.base import Arrival, Batch

MOST_WAITING = 256
MOST_AT_ONCE = 32
DURABLE_S = 20.0
PULSE_S = 30.0


@dataclass(frozen=True, slots=True)
class _Pending:
    arrival: Arrival
    is_durable: asyncio.Future[bool]


class Intake:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: asyncio.Queue[_Pending] = asyncio.Queue(MOST_WAITING)
        self._handed: dict[str, tuple[_Pending, ...]] = {}
        self._batches = 0
        self._is_open = True

    async def take(self, arrival: Arrival) -> bool:
        """True once it is on our disk. False: nobody knows; it may be sent again."""
        if not self._is_open or self._waiting.full():
            return False
        pending = _Pending(arrival, asyncio.get_running_loop().create_future())
        self._waiting.put_nowait(pending)
        try:
            async with StallWatch(self._clock, DURABLE_S) as watch, watch.waiting(DURABLE_S):
                return await pending.is_durable
        except TimeoutError:
            return False

    async def batch(self) -> Batch | None:
        """What has gathered. None: nothing came for a while."""
        try:
            async with StallWatch(self._clock, math.inf) as watch, watch.waiting(PULSE_S):
                gathered = [await self._waiting.get()]
        except TimeoutError:
            return None
        while len(gathered) < MOST_AT_ONCE and not self._waiting.empty():
            gathered.append(self._waiting.get_nowait())
        return self._hand([pending for pending in gathered if not pending.is_durable.done()])

    def acknowledge(self, batch: Batch) -> None:
        self._settle(self._handed.pop(batch.token, ()), is_durable=True)

    def close(self) -> None:
        self._is_open = False
        while not self._waiting.empty():
            self._settle((self._waiting.get_nowait(),), is_durable=False)
        while self._handed:
            self._settle(self._handed.popitem()[1], is_durable=False)

    def _hand(self, gathered: list[_Pending]) -> Batch:
        self._handed = {token: batch for token, batch in self._handed.items() if not _is_over(batch)}
        self._batches += 1
        self._handed[str(self._batches)] = tuple(gathered)
        return Batch(tuple(pending.arrival for pending in gathered), token=str(self._batches))

    def _settle(self, batch: tuple[_Pending, ...], *, is_durable: bool) -> None:
        for pending in batch:
            if not pending.is_durable.done():
                pending.is_durable.set_result(is_durable)


def _is_over(batch: tuple[_Pending, ...]) -> bool:
    return all(pending.is_durable.done() for pending in batch)
