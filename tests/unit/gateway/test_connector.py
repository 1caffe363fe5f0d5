"""How long it is until a platform is opened again."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import pytest

from talaria.gateway.connector import Connector
from talaria.platforms.base import NotTaken, Platform, PlatformFailure, Refused
from talaria.testing import ManualClock

ATTEMPTS = 12


async def waits(failure: Callable[[], PlatformFailure]) -> list[float]:
    """Between attempts that all fail so."""
    clock, attempts = ManualClock(auto=True), 0

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Platform]:
        nonlocal attempts
        attempts += 1
        if attempts > ATTEMPTS:
            raise asyncio.CancelledError
        raise failure()
        yield  # pyright: ignore[reportUnreachable]  (it is a context)

    nothing = cast("Any", None)  # of all this nothing is used before a platform is open
    open_: Callable[[], AbstractAsyncContextManager[Platform]] = opened
    connector = Connector("some", open_, ingress=nothing, links=nothing, inbox=nothing, clock=clock, menu=nothing)
    with pytest.raises(asyncio.CancelledError):
        await connector.run()
    assert connector.health.failures == ATTEMPTS
    return clock.slept


async def test_a_service_that_answers_again_is_heard_within_ten_seconds_however_long_it_was_away() -> None:
    slept = await waits(lambda: NotTaken("It cannot be reached."))
    assert len(slept) == ATTEMPTS
    assert max(slept) <= 10
    assert min(slept[3:]) >= 5, "it is not hammered either"
    assert len(set(slept[3:])) > 1, "those who lost it together do not come back together"


async def test_a_service_that_asks_for_time_gets_it() -> None:
    assert set(await waits(lambda: NotTaken("Slow down.", retry_after_s=90))) == {90}


async def test_where_somebody_must_act_it_is_tried_once_a_minute() -> None:
    assert set(await waits(lambda: Refused("The token is wrong."))) == {60}
