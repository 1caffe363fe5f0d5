"""Calls foreign code from our event loop: in a thread, one call at a time, with a time limit, and with no more
arguments than it accepts. Whatever it does comes back as a value or as `PluginError`."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from talaria.core.aio import in_thread
from talaria.core.clock import Clock
from talaria.core.text import as_text

T = TypeVar("T")

MAX_SAID_CHARS = 500
GRACE_S = 2.0
"""How long the next call waits for one that should have ended."""


class PluginError(Exception):
    """`str()` of it continues a sentence that starts with a name: "raised ValueError: no"."""

    def __init__(self, sentence: str, *, has_hung: bool = False) -> None:
        super().__init__(sentence)
        self.has_hung = has_hung


class SerialExecutor:
    """Runs the calls into one foreign object one after the other, each in a daemon thread of its
    own, so that code which calls back into us takes no thread that somebody waits for.

    A call that outlives its time limit, or whose caller was cancelled, blocks further calls until
    it ends: its thread may still be changing the object.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turn = asyncio.Lock()
        self._is_free = asyncio.Event()
        self._is_free.set()

    @property
    def is_blocked(self) -> bool:
        return not self._is_free.is_set()

    async def call(self, work: Callable[[], T], seconds: float) -> T:
        """Raises `PluginError`. A cancelled caller leaves at once."""
        if self.is_blocked and not await wait_for_event(self._is_free, GRACE_S, self._clock):
            raise PluginError("is still busy with an earlier call", has_hung=True)
        task = asyncio.ensure_future(self._in_turn(work, seconds))
        task.add_done_callback(ignore_failure)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self._is_free.clear()
                task.add_done_callback(lambda _: self._is_free.set())
            raise

    async def _in_turn(self, work: Callable[[], T], seconds: float) -> T:
        async with self._turn:
            try:
                return await run_within(work, seconds, self._clock, self._is_free.set)
            except PluginError as fault:
                if fault.has_hung:
                    self._is_free.clear()
                raise


@dataclass(frozen=True, slots=True)
class LateArgument:
    """An argument that takes long to make, so it is made in the thread."""

    make: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class HostedPlugin(Generic[T]):
    """A foreign object and the executor of its calls."""

    instance: T
    executor: SerialExecutor
    is_shared: bool = False
    """Other conversations use it, too, with the same executor."""

    async def call(
        self,
        method: str,
        *args: object,
        seconds: float,
        opaque: Collection[str] = (),
        read: Callable[[Any], Any] | None = None,
        **keywords: Any,
    ) -> Any:
        """None if it lacks the method. Raises `PluginError`. `read` looks at the answer, which may
        run their code."""

        def work() -> Any:
            function = getattr(self.instance, method, None)
            answer = None
            if function is not None:
                given = {name: _evaluate(value) for name, value in keywords.items()}
                answer = function(*map(_evaluate, args), **select_keywords(function, given, opaque))
            return answer if read is None else read(answer)

        return await self.executor.call(work, seconds)


def _evaluate(argument: object) -> Any:
    return argument.make() if isinstance(argument, LateArgument) else argument


def ignore_failure(task: "asyncio.Future[Any]") -> None:
    """Keeps asyncio from complaining about a failure whose caller has left."""
    if not task.cancelled():
        task.exception()


async def wait_for_end(task: "asyncio.Future[Any]", seconds: float, clock: Clock) -> bool:
    """Whether the task ends in time; if not, it continues."""
    limit = asyncio.ensure_future(clock.expire(seconds))
    try:
        await asyncio.wait([task, limit], return_when=asyncio.FIRST_COMPLETED)
    finally:
        limit.cancel()
    return task.done()


async def wait_for_event(event: asyncio.Event, seconds: float, clock: Clock) -> bool:
    """Whether the event is set in time."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await wait_for_end(waiting, seconds, clock)
    finally:
        waiting.cancel()
    return event.is_set()


async def run_within(
    work: Callable[[], T], seconds: float, clock: Clock, when_late: Callable[[], None] | None = None
) -> T:
    """In a daemon thread, which is left alone when the time is up. Raises `PluginError`.

    `when_late` is called when it ends after all.
    """
    running = asyncio.ensure_future(in_thread(lambda: contain(work)))
    try:
        if await wait_for_end(running, seconds, clock):
            return running.result()
    except asyncio.CancelledError:
        running.cancel()
        raise
    running.add_done_callback(ignore_failure)
    if when_late is not None:
        running.add_done_callback(lambda _: when_late())
    raise PluginError(f"did not return within {seconds:.0f} seconds", has_hung=True)


def contain(work: Callable[[], T]) -> T:
    """Raises `PluginError`, and nothing else: foreign code may not exit the process either."""
    try:
        return work()
    except PluginError:
        raise
    except BaseException as fault:
        raise plugin_error(fault) from fault


def plugin_error(fault: BaseException) -> PluginError:
    try:
        said = " ".join(as_text(fault).split())[:MAX_SAID_CHARS]
    except Exception:  # noqa: BLE001  (somebody's `__str__`)
        said = "(no message)"
    return PluginError(f"raised {type(fault).__name__}: {said}")


class BackgroundLoop:
    """An event loop in a daemon thread, for foreign async code that expects the same loop each time. Started by the
    first use."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()

    def result(self, awaitable: Any) -> Any:
        """From another thread, which waits."""

        async def run() -> Any:
            return await awaitable

        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run, args=(self._loop,), name="plugin loop", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def close(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(_stop, self._loop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    ending = asyncio.gather(*tasks, return_exceptions=True)
    ending.add_done_callback(lambda _: loop.call_soon(loop.stop))


def call_or_await(work: Callable[[], Any], background: BackgroundLoop) -> Any:
    """Returns its result, awaited in the background if it is async. Called from a thread."""
    result = work()
    return background.result(result) if inspect.isawaitable(result) else result


def select_keywords(
    function: Callable[..., Any], keywords: Mapping[str, Any], opaque: Collection[str] = ()
) -> dict[str, Any]:
    """Those of `keywords` that the function accepts; if its signature cannot be read, those in `opaque`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {name: value for name, value in keywords.items() if name in opaque}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(keywords)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = {parameter.name for parameter in parameters if parameter.kind in named}
    return {name: value for name, value in keywords.items() if name in known}
