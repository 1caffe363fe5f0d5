import asyncio

import pytest

from talaria.testing.manual_clock import ManualClock


async def test_sleeper_wakes_when_its_deadline_has_passed() -> None:
    clock = ManualClock()
    start, began = clock.now(), clock.monotonic()
    sleeper = asyncio.ensure_future(clock.sleep(10))
    await asyncio.sleep(0)

    clock.advance(9)
    await asyncio.sleep(0)
    assert not sleeper.done()
    clock.advance(1)
    await sleeper

    assert (clock.now() - start, clock.monotonic() - began) == (10, 10)
    assert clock.slept == [10]


async def test_sleepers_wake_in_the_order_of_their_deadlines() -> None:
    clock, woken = ManualClock(), list[float]()

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(seconds)

    async with asyncio.TaskGroup() as tasks:
        for seconds in (3, 1, 2):
            tasks.create_task(sleep(seconds))
        await asyncio.sleep(0)
        clock.advance(5)

    assert woken == [1, 2, 3]


async def test_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock()
    sleeper = asyncio.ensure_future(clock.sleep(10))
    await asyncio.sleep(0)
    sleeper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeper

    clock.advance(20)


async def test_automatic_clock_moves_with_every_sleep() -> None:
    clock = ManualClock(100.0, auto=True)

    await clock.sleep(60)
    await clock.sleep(0)

    assert clock.now() == 160.0
    assert clock.slept == [60, 0]


async def test_sleeping_for_no_time_needs_no_advance() -> None:
    await ManualClock().sleep(0)
