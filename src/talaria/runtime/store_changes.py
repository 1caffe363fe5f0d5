"""Notices when other processes have written to the store: the number that it gives is asked for a few times a second, as
long as somebody waits for it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress

from talaria.core.clock import Clock
from talaria.core.errors import TalariaError

LOOK_S = 0.15

log = logging.getLogger(__name__)


class StoreChanges:
    def __init__(self, version: Callable[[], Awaitable[int]], clock: Clock) -> None:
        self._version = version
        self._clock = clock
        self._waiting: set[asyncio.Event] = set()
        self._looking: asyncio.Task[None] | None = None

    @contextmanager
    def subscribe(self, changed: asyncio.Event) -> Generator[None]:
        """Sets the event after each change. Clear it before you look."""
        self._waiting.add(changed)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="store changes")
        try:
            yield
        finally:
            self._waiting.discard(changed)
            if not self._waiting and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def aclose(self) -> None:
        if (looking := self._looking) is not None:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking

    async def _look(self) -> None:
        seen: int | None = None
        while True:
            try:
                version = await self._version()
                if seen is not None and version != seen:
                    for changed in self._waiting:
                        changed.set()
                seen = version
            except TalariaError as fault:
                log.debug("changes of the store cannot be seen: %s", fault)
            await self._clock.sleep(LOOK_S)
