"""Code of others: one call at a time, off the loop, with a limit, and with the arguments that it asks for."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

import pytest

from talaria.core.clock import SystemClock
from talaria.core.plugin_calls import (
    Background,
    HostedPlugin,
    Late,
    PluginError,
    SerialExecutor,
    fitting,
    returned,
    within,
)
from talaria.testing.manual_clock import ManualClock


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(30_000):
        if holds():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it did not come to that")


async def test_calls_into_one_object_never_overlap() -> None:
    lane, inside, most = SerialExecutor(SystemClock()), 0, 0
    begun = threading.Barrier(2, timeout=0.2)

    def work() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        with suppress(threading.BrokenBarrierError):
            begun.wait()  # passes only if two are inside
        inside -= 1

    await asyncio.gather(*(lane.call(work, 30) for _ in range(3)))
    assert most == 1


async def test_a_call_goes_on_when_its_caller_leaves_and_the_next_waits_for_it() -> None:
    lane, gate, order = SerialExecutor(SystemClock()), threading.Event(), list[str]()

    def slow() -> None:
        order.append("begins")
        gate.wait(10)
        order.append("ends")

    calling = asyncio.create_task(lane.call(slow, 30))
    await until(lambda: bool(order))
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert lane.is_blocked
    following = asyncio.create_task(lane.call(lambda: order.append("next"), 30))
    await asyncio.sleep(0)
    gate.set()
    await following
    assert (order, lane.is_blocked) == (["begins", "ends", "next"], False)


async def test_a_call_that_does_not_end_blocks_the_lane_until_it_does() -> None:
    clock, gate = ManualClock(), threading.Event()
    lane = SerialExecutor(clock)
    began = threading.Event()

    def hang() -> None:
        began.set()
        gate.wait(10)

    calling = asyncio.create_task(lane.call(hang, 30))
    await until(began.is_set)
    clock.advance(31)
    with pytest.raises(PluginError, match="did not return within 30 seconds") as told:
        await calling
    assert told.value.has_hung
    waiting = asyncio.create_task(lane.call(lambda: 1, 30))
    await asyncio.sleep(0.01)
    clock.advance(3)
    with pytest.raises(PluginError, match="still busy"):
        await waiting
    gate.set()
    await until(lambda: not lane.is_blocked)
    assert await lane.call(lambda: 1, 30) == 1


@pytest.mark.parametrize("fault", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), StopIteration()])
async def test_whatever_is_raised_is_told_as_one_kind(fault: BaseException) -> None:
    def work() -> None:
        raise fault

    with pytest.raises(PluginError, match=f"raised {type(fault).__name__}"):
        await within(work, 30, SystemClock())


async def test_an_exception_that_cannot_be_told_is_told_of() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def work() -> None:
        raise Mute

    with pytest.raises(PluginError, match="raised Mute: "):
        await within(work, 30, SystemClock())


async def test_a_method_gets_what_it_asks_for_and_one_that_is_not_there_is_skipped() -> None:
    class Guest:
        def meet(self, who: str, *, where: str = "") -> str:
            return f"{who} {where}"

    hosted = HostedPlugin(Guest(), SerialExecutor(SystemClock()))
    assert await hosted.call("meet", "Ann", seconds=5, where="here", when="now") == "Ann here"
    assert await hosted.call("leave", seconds=5) is None


async def test_a_late_argument_is_made_in_the_thread() -> None:
    class Guest:
        def take(self, one: Any, other: Any = None) -> Any:
            return one, other

    hosted, here = HostedPlugin(Guest(), SerialExecutor(SystemClock())), threading.get_ident()
    one, other = await hosted.call("take", Late(threading.get_ident), seconds=5, other=Late(threading.get_ident))
    assert isinstance(one, int)
    assert one == other != here


def test_arguments_are_filtered_by_the_signature() -> None:
    def narrow(a: int, b: int = 0) -> None: ...
    def wide(**all_of_it: int) -> None: ...

    given = {"a": 1, "b": 2, "c": 3}
    assert fitting(narrow, given) == {"a": 1, "b": 2}
    assert fitting(wide, given) == given
    assert fitting(_Opaque(), given, opaque=("c",)) == {"c": 3}


class _Opaque:
    __signature__ = "none that can be read"

    def __call__(self, **_: int) -> None: ...


def test_async_code_finds_its_loop_again() -> None:
    background = Background()

    async def which() -> int:
        return id(asyncio.get_running_loop())

    assert returned(which, background) == returned(which, background)
    assert returned(lambda: 7, background) == 7
    background.close()


def test_closing_ends_what_still_runs() -> None:
    background, began, ended = Background(), threading.Event(), threading.Event()

    async def forever() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def wait() -> None:
        with pytest.raises(CancelledError):
            returned(forever, background)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert began.wait(10)
    background.close()
    waiting.join(10)
    assert ended.wait(10)
    assert not waiting.is_alive()
