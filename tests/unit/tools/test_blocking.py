import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from talaria.core.aio import in_threads


async def test_a_context_is_entered_and_left_off_the_event_loop() -> None:
    seen: list[threading.Thread] = []

    @contextmanager
    def context() -> Generator[int]:
        seen.append(threading.current_thread())
        yield 7
        seen.append(threading.current_thread())

    async with in_threads(context()) as entered:
        assert (entered, len(seen)) == (7, 1)
    assert len(seen) == 2
    assert threading.main_thread() not in seen


async def test_what_was_entered_is_left_also_by_who_was_cancelled_meanwhile() -> None:
    entering, may_enter, left = (threading.Event() for _ in range(3))

    @contextmanager
    def context() -> Generator[None]:
        entering.set()
        may_enter.wait()
        try:
            yield
        finally:
            left.set()

    async def use() -> None:
        async with in_threads(context()):
            raise AssertionError

    using = asyncio.create_task(use())
    await asyncio.to_thread(entering.wait)
    using.cancel()
    may_enter.set()
    with pytest.raises(asyncio.CancelledError):
        await using
    assert left.is_set()
