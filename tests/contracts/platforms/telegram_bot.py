"""A bot on a Telegram on loopback: how it is opened, and what it says and hears."""

from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import Any

from talaria.core.clock import SystemClock
from talaria.core.secret import Secret
from talaria.platforms.base import Address, Arrival, Batch, Kit, Outbound, Platform
from talaria.platforms.telegram import platform as telegram
from talaria.platforms.telegram.config import TelegramSettings
from talaria.testing.servers.telegram_server import TelegramServer

GROUP = "-1005550001"
DM = Address("telegram", "1001")


def opened(server: TelegramServer, home: Path, **settings: Any) -> AbstractAsyncContextManager[Platform]:
    kit = Kit(home, SystemClock(), lambda _: True)
    return telegram.open(TelegramSettings(token=Secret(server.token), base_url=server.base_url, **settings), kit)


def words(text: str, where: Address = DM, **more: Any) -> Outbound:
    return Outbound(where, text, key="k", **more)


async def next_batch(bot: Platform, cursor: str | None = None) -> Batch:
    async with aclosing(bot.receive(cursor)) as batches:
        batch = await anext(batches)
        await bot.acknowledge(batch)
        return batch


async def next_arrival(bot: Platform) -> Arrival:
    [arrival] = (await next_batch(bot)).items
    assert isinstance(arrival, Arrival)
    return arrival
