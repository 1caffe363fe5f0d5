"""Notices when other processes have written to the store: its version is read a few times a second, as long as somebody
waits for a change."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

from talaria.core.errors import TalariaError

LOOK_S = 0.2
AT_ONCE = 50
"""Who are told together: a thousand who all look at the same time would hold up everybody else."""
PAUSE_S = 0.005

log = logging.getLogger(__name__)


class StoreChanges:
    def __init__(self, version: Callable[[], Awaitable[int]], look_s: float = LOOK_S) -> None:
        self._version = version
        self._look_s = look_s
        self._waiting: set[asyncio.Event] = set()
        self._looking: asyncio.Task[None] | None = None

    @contextmanager
    def subscribe(self, changed: asyncio.Event) -> Generator[None]:
        """Sets the event after each change, and perhaps without one. Clear it before you look."""
        self._waiting.add(changed)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="store changes")
        try:
            yield
        finally:
            self._waiting.discard(changed)
            if not self._waiting:
                self._stop()

    def _stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _look(self) -> None:
        seen: int | None = None
        while True:
            try:
                version = await self._version()
                if version != seen:
                    for number, changed in enumerate(tuple(self._waiting), 1):
                        changed.set()
                        if number % AT_ONCE == 0:
                            await asyncio.sleep(PAUSE_S)
                seen = version
            except TalariaError as fault:
                log.debug("changes of the store cannot be seen: %s", fault)
            await asyncio.sleep(self._look_s)
