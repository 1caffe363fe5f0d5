"""The one shield: a commit, once begun, is waited for."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def completed(work: Awaitable[T]) -> T:
    """Wait for the outcome even if cancelled meanwhile; then the cancellation goes on.

    So a cancelled caller knows that the work was done. If the work failed, its failure is raised instead.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as request:
            cancelled = request
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result
