"""Keeps the search index close behind the journal. If it dies, searching still works: a search catches up itself."""

import asyncio
import logging
from typing import Self

from talaria.core.clock import Clock
from talaria.core.errors import TalariaError
from talaria.store.sqlite.search import Search

QUIET_S = 1.0

log = logging.getLogger(__name__)


class Feeder:
    def __init__(self, search: Search, clock: Clock) -> None:
        self._search = search
        self._clock = clock
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="search feeder")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        self._woken.set()

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            await self._clock.sleep(QUIET_S)
            self._woken.clear()
            try:
                await self._search.catch_up()
            except TalariaError as fault:
                log.warning("search index not fed: %s", fault)
