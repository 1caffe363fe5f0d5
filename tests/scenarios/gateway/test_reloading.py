"""New settings while the gateway runs."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import msgspec

from talaria.app.gateway_app import load_wanted
from talaria.platforms.base import Platform, Sender
from talaria.testing.harness import Harness


async def test_after_a_reload_a_platform_is_opened_again_only_when_it_is_closed(harness: Harness) -> None:
    """Until then the account is still in use: a second connection would be refused, and tried again a minute later."""
    happened: list[str] = []
    is_closing, may_close = asyncio.Event(), asyncio.Event()
    async with harness.serve() as gateway_app:
        (door,) = load_wanted(gateway_app.app.settings, gateway_app.app.clock).specs

        @asynccontextmanager
        async def opened(is_allowed: Callable[[Sender], bool]) -> AsyncGenerator[Platform]:
            happened.append("opened")
            try:
                async with door.open(is_allowed) as platform:
                    yield platform
            finally:
                is_closing.set()
                await may_close.wait()
                happened.append("closed")

        async def reload(home_channel: str) -> None:
            settings = msgspec.structs.replace(door.settings, home_channel=home_channel)
            slow = msgspec.structs.replace(door, settings=settings, open=opened)
            await gateway_app.gateway.reload(gateway_app.app, gateway_app.app.settings.config.gateway, [slow])

        await reload("1")
        await harness.until(lambda: bool(gateway_app.gateway.health[0].heard_at))
        await reload("2")
        await is_closing.wait()
        for _ in range(20):  # a connection that does not wait is opened by now
            await asyncio.sleep(0)
        assert happened == ["opened"]
        may_close.set()
        await harness.telegram.say("are you there?")
        harness.model.say("Here.")
        await harness.wait_for_messages(1)
        assert happened == ["opened", "closed", "opened"]
