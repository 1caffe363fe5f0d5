"""Work in front of the person: shown as it goes, stopped by Ctrl-C, ended with an exit code."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from talaria.cli import exits
from talaria.cli.notices import complain, say
from talaria.cli.render import Format, view_for
from talaria.runtime.recorder import Observer
from talaria.runtime.turn import Report

T = TypeVar("T")
Interrupt = Callable[[], bool]
"""Stops the turn under way, which then ends by itself; False if there is none."""


class Foreground:
    def __init__(self, runner: asyncio.Runner, format: Format) -> None:
        self._runner = runner
        self._format: Format = format

    def observer(self) -> Observer:
        return view_for(self._format).show

    def run(self, work: Coroutine[Any, Any, T], interrupt: Interrupt) -> T:
        """Raises `CancelledError` if Ctrl-C stopped it and it was no turn."""
        return self._runner.run(_interruptible(work, interrupt))

    def show(self, work: Callable[[Observer], Coroutine[Any, Any, Report | None]], interrupt: Interrupt) -> int:
        """The exit code of a turn."""
        view = view_for(self._format)
        try:
            report = self.run(work(view.show), interrupt)
        except asyncio.CancelledError:
            say("Interrupted.")
            return exits.INTERRUPTED
        if report is None:
            return exits.DONE
        view.finish(report)
        if report.error is not None:
            complain(str(report.error))
        if report.outcome == "completed":
            return exits.DONE
        if report.error is not None:
            return exits.code_for(report.error)
        say("Interrupted.")
        return exits.INTERRUPTED


async def _interruptible(work: Coroutine[Any, Any, T], interrupt: Interrupt) -> T:
    """The first Ctrl-C stops it, and a turn still ends well on the disk; a second one leaves at once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def stop() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        if not interrupt() and task is not None:  # no turn has begun: nothing is taken yet
            task.cancel()

    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        return await work
    finally:
        loop.remove_signal_handler(signal.SIGINT)
