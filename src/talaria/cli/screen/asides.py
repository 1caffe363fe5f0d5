"""Conversations beside the one on the screen: each is asked once, and reports when it is done."""

import asyncio
from collections.abc import Callable

from talaria.cli.safe import readable
from talaria.cli.screen.painting import BOLD, DIM, RED, document, styled
from talaria.cli.screen.screen import Screen
from talaria.core.errors import TalariaError
from talaria.core.messages import user
from talaria.runtime.session import LiveSession

_NAME_CHARS = 50


class Asides:
    def __init__(self, screen: Screen, changed: Callable[[], None]) -> None:
        self._screen = screen
        self._changed = changed
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._count = 0

    @property
    def running(self) -> int:
        return len(self._tasks)

    def begin(self, live: LiveSession, text: str) -> int:
        """Its number."""
        self._count += 1
        number = self._count
        self._tasks[number] = asyncio.create_task(self._run(number, live, text), name=f"background {number}")
        self._changed()
        return number

    async def close(self) -> None:
        """What runs is stopped; it can be gone on with."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def _run(self, number: int, live: LiveSession, text: str) -> None:
        try:
            report = await live.ask(user(text))
            name = " ".join(readable(text).split())[:_NAME_CHARS]
            head = styled(f"Background #{number}: {name}", BOLD) + styled(f"  /resume {live.id} goes on with it", DIM)
            failure = styled(readable(str(report.error or "It was stopped.")), RED)
            told = document(report.text, self._screen.columns) if report.text else failure
            self._screen.print(f"\n{head}\n\n{told}\n")
        except TalariaError as error:
            self._screen.print(styled(f"Background #{number}: {readable(str(error))}", RED))
        finally:
            del self._tasks[number]
            self._changed()
            await live.close()
