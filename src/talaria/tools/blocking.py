"""Contexts that block when they are entered and left: both happen in a thread, and what was entered is always left."""

from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from typing import TypeVar

from talaria.core.aio import completed, in_thread

T = TypeVar("T")


@asynccontextmanager
async def in_threads(context: AbstractContextManager[T]) -> AsyncGenerator[T]:
    with ExitStack() as entering:
        entered = await completed(in_thread(lambda: entering.enter_context(context)))
        leaving = entering.pop_all()
    try:
        yield entered
    finally:
        await completed(in_thread(leaving.close))
