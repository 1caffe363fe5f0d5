"""That somebody types is shown on a platform that is open, and on no other."""

import asyncio
from typing import Any, cast

from talaria.core.ids import SessionId
from talaria.gateway.gateway_state import PlatformLinks
from talaria.gateway.preview import SHOWN_AFTER_S, TICK_S, PreviewUpdater
from talaria.platforms.base import Address, Capabilities, Platform
from talaria.store.memory import MemoryStore
from talaria.testing import ManualClock
from talaria.testing.patience import PATIENCE_S


class Typist:
    """A platform that breaks when it is used after it was closed, as HTTP clients do."""

    name = "some"
    capabilities = Capabilities(max_chars=100, can_type=True)

    def __init__(self) -> None:
        self.is_open = True
        self.is_typing = asyncio.Event()
        self.may_end = asyncio.Event()
        self.has_typed_on_a_closed_one: bool | None = None

    async def show_typing(self, where: Address) -> None:
        self.is_typing.set()
        await self.may_end.wait()
        self.has_typed_on_a_closed_one = not self.is_open


async def test_a_platform_is_not_closed_while_it_shows_that_somebody_types() -> None:
    clock, typist = ManualClock(), Typist()
    platform = cast("Platform", typist)
    async with MemoryStore(clock) as store:
        links = PlatformLinks(clock, store.inbox)
        await links.add(platform)
        presenter = PreviewUpdater(cast("Any", None), links, clock)
        presenter.begin(Address("some", "1"), SessionId("s1"), "")
        running = asyncio.create_task(presenter.run())
        await asyncio.sleep(0)
        clock.advance(SHOWN_AFTER_S + TICK_S)
        async with asyncio.timeout(PATIENCE_S):
            await typist.is_typing.wait()

        async def close() -> None:
            await links.remove(platform)
            typist.is_open = False

        closing = asyncio.create_task(close())
        for _ in range(5):
            await asyncio.sleep(0)
        typist.may_end.set()
        await closing
        assert typist.has_typed_on_a_closed_one is False
        running.cancel()
