"""Waiting for what others do: another thread, process or server."""

import asyncio
from collections.abc import Callable

from talaria.testing.patience import PATIENCE_S

LOOK_S = 0.005


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(LOOK_S)
