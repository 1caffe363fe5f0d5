"""Waiting for blocking work, and for work that must not be torn."""

import asyncio
import contextvars
import os
import threading

import pytest

from talaria.core.aio import UncancellableFuture, complete, in_thread

name: contextvars.ContextVar[str] = contextvars.ContextVar("name")


async def test_work_after_work_is_done_in_the_same_thread() -> None:
    threads = [await in_thread(threading.get_ident) for _ in range(5)]
    assert threading.get_ident() not in threads
    assert len(set(threads)) < 5


async def test_work_that_hangs_holds_up_no_other() -> None:
    free = threading.Event()
    hanging = [asyncio.create_task(in_thread(free.wait)) for _ in range(3)]
    await asyncio.sleep(0)
    assert await asyncio.gather(*(in_thread(lambda number=number: number) for number in range(3))) == [0, 1, 2]
    assert not any(task.done() for task in hanging)
    free.set()
    await asyncio.gather(*hanging)


async def test_work_knows_for_whom_it_is_done_and_leaves_nothing_of_it() -> None:
    name.set("ada")
    assert await in_thread(name.get) == "ada"
    await in_thread(lambda: name.set("eve"))
    assert await in_thread(name.get) == "ada"


async def test_a_failure_is_told_to_whoever_waits() -> None:
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)
    assert await in_thread(lambda: 1) == 1


async def test_a_forked_process_does_not_wait_for_threads_that_it_does_not_have() -> None:
    await in_thread(int)
    child = os.fork()
    if not child:
        os._exit(asyncio.new_event_loop().run_until_complete(in_thread(lambda: 7)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


async def test_whoever_is_cancelled_still_sees_the_work_done() -> None:
    done: list[str] = []
    may_end = asyncio.Event()

    async def work() -> None:
        await may_end.wait()
        done.append("all of it")

    waiting = asyncio.create_task(complete(work()))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert done == ["all of it"]


async def test_work_inside_of_work_that_is_waited_for_is_not_protected_again() -> None:
    tasks: list[asyncio.Task[object] | None] = []

    async def inner() -> None:
        tasks.append(asyncio.current_task())

    async def outer() -> None:
        tasks.append(asyncio.current_task())
        await complete(inner())

    await complete(outer())
    assert tasks[0] is tasks[1] is not asyncio.current_task()
    await complete(inner())
    assert tasks[2] not in (tasks[0], asyncio.current_task())


async def test_a_task_that_such_work_starts_is_not_protected_with_it() -> None:
    done: list[str] = []
    may_end = asyncio.Event()

    async def work() -> None:
        await may_end.wait()
        done.append("all of it")

    async def outer() -> None:
        waiting = asyncio.create_task(complete(work()))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        may_end.set()
        await asyncio.wait([waiting])
        assert waiting.cancelled()

    await complete(outer())
    assert done == ["all of it"]


async def test_an_uncancellable_future_is_waited_for_and_then_the_cancellation_goes_on() -> None:
    done: UncancellableFuture[str] = UncancellableFuture()
    waiting = asyncio.create_task(complete(done))
    await asyncio.sleep(0)
    waiting.cancel()
    waiting.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    done.set_result("all of it")
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_the_failure_of_an_uncancellable_future_says_more_than_a_cancellation() -> None:
    done: UncancellableFuture[str] = UncancellableFuture()
    waiting = asyncio.create_task(complete(done))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    done.set_exception(OSError("full"))
    with pytest.raises(OSError, match="full"):
        await waiting


async def test_a_time_limit_around_an_uncancellable_future_ends_after_it() -> None:
    done: UncancellableFuture[str] = UncancellableFuture()
    asyncio.get_running_loop().call_later(0.02, done.set_result, "all of it")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await complete(done)
    assert done.result() == "all of it"
    assert await complete(done) == "all of it"
