"""Code of others, called from our event loop: off it, one call at a time, with a time limit, and with no more arguments
than it asks for. Whatever it does comes back as a value or as `Broke`."""

import asyncio
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from talaria.model.clock import Clock
from talaria.waiting import in_thread

T = TypeVar("T")

MAX_SAID_CHARS = 500


class Broke(Exception):
    """`str()` of it goes on behind a name: "raised ValueError: no"."""

    def __init__(self, sentence: str, *, has_hung: bool = False) -> None:
        super().__init__(sentence)
        self.has_hung = has_hung


class Lane:
    """Where the calls into one foreign object run: one after the other, each in a daemon thread of its own, so that
    code which calls back into us takes no thread that somebody waits for.

    A call that outlives its time limit ends the lane: its thread may still be changing the object.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turn = asyncio.Lock()
        self.is_lost = False

    async def call(self, work: Callable[[], T], seconds: float) -> T:
        """Raises `Broke`. Whoever is cancelled leaves at once; the call keeps the lane until it ends."""
        task = asyncio.ensure_future(self._in_turn(work, seconds))
        task.add_done_callback(_looked_at)
        return await asyncio.shield(task)

    async def _in_turn(self, work: Callable[[], T], seconds: float) -> T:
        async with self._turn:
            if self.is_lost:
                raise Broke("is still busy with a call that did not end", has_hung=True)
            try:
                return await within(work, seconds, self._clock)
            except Broke as fault:
                self.is_lost = fault.has_hung
                raise


def _looked_at(task: "asyncio.Future[Any]") -> None:
    """So that a failure whose caller has left is not complained about."""
    if not task.cancelled():
        task.exception()


async def within(work: Callable[[], T], seconds: float, clock: Clock) -> T:
    """In a daemon thread, which is left alone when the time is up. Raises `Broke`."""
    running = asyncio.ensure_future(in_thread(lambda: contained(work)))
    limit = asyncio.ensure_future(clock.expire(seconds))
    try:
        await asyncio.wait([running, limit], return_when=asyncio.FIRST_COMPLETED)
    finally:
        running.cancel()
        limit.cancel()
    if not running.done():
        raise Broke(f"did not return within {seconds:.0f} seconds", has_hung=True)
    return running.result()


def contained(work: Callable[[], T]) -> T:
    """Raises `Broke`, and nothing else: also leaving the process is not for others to decide."""
    try:
        return work()
    except Broke:
        raise
    except BaseException as fault:
        raise Broke(f"raised {type(fault).__name__}: {_said(fault)}") from fault


def _said(fault: BaseException) -> str:
    try:
        return " ".join(str(fault).split())[:MAX_SAID_CHARS]
    except Exception:  # noqa: BLE001  (somebody's `__str__`)
        return "(it cannot say what)"


def returned(function: Callable[..., Any], /, *args: Any, **keywords: Any) -> Any:
    """What a function returns, awaited in a loop of its own if it is async. For use in a thread."""
    result = function(*args, **keywords)
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Any) -> Any:
    return await result


def fitting(function: Callable[..., Any], keywords: Mapping[str, Any], opaque: Collection[str] = ()) -> dict[str, Any]:
    """Those of `keywords` that the function takes; of one without a readable signature, those in `opaque`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {name: value for name, value in keywords.items() if name in opaque}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(keywords)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = {parameter.name for parameter in parameters if parameter.kind in named}
    return {name: value for name, value in keywords.items() if name in known}
