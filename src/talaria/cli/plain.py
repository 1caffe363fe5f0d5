"""A conversation without a screen: one question, or what stands on standard input, line after line.

What the person types, or what stands on standard input: line after line.
Work in front of the person, stopped by Ctrl-C.
"""

import asyncio
import signal
import sys
import termios
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from talaria.app.settings import Settings
from talaria.cli import exits
from talaria.cli.answer_view import AnswerView, view_for
from talaria.cli.ask_person import TerminalPerson
from talaria.cli.conversation import INTERRUPTED, Conversation, open_conversation
from talaria.cli.notices import complain, discard_output, say
from talaria.cli.options import CliOptions, Format
from talaria.cli.output import print_failure
from talaria.core.entries import Recorded
from talaria.core.errors import TalariaError
from talaria.core.events import Event
from talaria.core.messages import User
from talaria.runtime.chat import Reason
from talaria.runtime.lease import Observer
from talaria.runtime.turn_runner import Report
from talaria.store.base import Session

Complete = Callable[[str], Sequence[str]]
"""What a line's beginning may become."""


def lines(*, is_interactive: bool, complete: Complete) -> Iterator[str]:
    """Without those that say nothing."""
    if is_interactive:
        _edit_with(complete)
    read = _ask if is_interactive else _read
    while (line := read()) is not None:
        if line.strip():
            yield line.strip()


def _edit_with(complete: Complete) -> None:
    """Gives `input` its line editing; the tab key completes."""
    import readline  # noqa: PLC0415  (nobody else needs a terminal's library)

    def option(_: str, number: int) -> str | None:
        options = complete(readline.get_line_buffer())
        return options[number] if number < len(options) else None

    readline.set_completer_delims("")
    readline.set_completer(option)
    readline.parse_and_bind("tab: complete")


def _read() -> str | None:
    return sys.stdin.readline() or None if sys.stdin is not None else None


def _make_sane(descriptor: int) -> None:
    """Echo and whole lines, which a chat that was killed in the middle of a line may have left switched off."""
    mode = termios.tcgetattr(descriptor)
    mode[3] |= termios.ECHO | termios.ICANON
    termios.tcsetattr(descriptor, termios.TCSANOW, mode)


def _ask() -> str | None:
    _make_sane(sys.stdin.fileno())
    is_plain = not sys.stdout.isatty()
    if is_plain:  # `input` would write its prompt among the answers
        sys.stderr.write("› ")
        sys.stderr.flush()
    try:
        return input("" if is_plain else "› ")
    except EOFError:
        sys.stderr.write("\n")
        return None
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return ""


T = TypeVar("T")
Interrupt = Callable[[], bool]
"""Stops the turn under way, which then ends by itself; False if there is none."""


async def interruptible(work: Coroutine[Any, Any, T], interrupt: Interrupt) -> T:
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


class PlainFront:
    def __init__(self, options: CliOptions) -> None:
        self.person = TerminalPerson() if options.is_interactive else None
        self._format: Format = options.format
        self._view: AnswerView | None = None
        self.has_reader = True
        """False: whoever read stdout has left, as `head` does."""
        self.stop_turn: Callable[[], object] = lambda: None

    def say(self, text: str) -> None:
        say(text)

    def failed(self, error: TalariaError) -> None:
        if self._format != "text":
            print_failure(error, is_line=self._format == "stream-json")
        complain(str(error))

    def switched(self, reason: Reason) -> None: ...

    async def repaint(self, row: Session, entries: Sequence[Recorded]) -> bool:  # noqa: ARG002  (of the port)
        return False

    def observer(self) -> Observer:
        self._view = view_for(self._format)
        return self._show

    def _show(self, event: Event) -> None:
        """Nobody reads on: the turn is stopped, and ends on the disk as it does at Ctrl-C."""
        try:
            if self._view is not None and self.has_reader:
                self._view.show(event)
        except BrokenPipeError:
            self._discard_output()
            self.stop_turn()

    def _discard_output(self) -> None:
        self.has_reader = False
        discard_output()

    def ended(self, report: Report) -> None:
        if self._view is not None and self.has_reader:
            try:
                self._view.finish(report)
            except BrokenPipeError:
                self._discard_output()
        if not self.has_reader:
            return
        if report.error is not None:
            complain(str(report.error))
        elif report.outcome != "completed":
            say(INTERRUPTED)


def converse(settings: Settings, options: CliOptions, message: User | None) -> int:
    """The exit code: of the question, or of the last line that failed."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        front = PlainFront(options)
        opened = open_conversation(settings, options, front)
        try:
            plain = Plain(runner, runner.run(stack.enter_async_context(opened)), front, options)
            return plain.once(message) if message else plain.converse()
        finally:
            runner.run(stack.aclose())


class Plain:
    """Lines are waited for outside the event loop."""

    def __init__(
        self, runner: asyncio.Runner, conversation: Conversation, front: PlainFront, options: CliOptions
    ) -> None:
        self._runner = runner
        self._conversation = conversation
        self._front = front
        front.stop_turn = self._stop
        self._is_interactive = options.is_interactive

    def once(self, message: User) -> int:
        """One question: an interrupted turn of the session is closed, others are only mentioned."""
        self._conversation.mention_risks()
        self._conversation.mention_model()
        self._runner.run(self._conversation.mention_interrupted())
        code = self._run(self._conversation.ask(message)) or exits.DONE
        return code if self._front.has_reader else exits.DONE

    def converse(self) -> int:
        """Turn after turn until the input ends; the code of the last one that failed."""
        self._runner.run(self._conversation.greet())
        self._runner.run(self._conversation.mention_sandbox())
        code = self._run(self._conversation.finish_interrupted()) or exits.DONE
        for line in lines(is_interactive=self._is_interactive, complete=self._completions):
            ended = self._run(self._conversation.heed(line))
            if ended is None:
                break
            if not self._front.has_reader:
                return exits.DONE
            code = exits.of_all(exits.of_all(code, ended), self._run(self._conversation.heed_injected()) or exits.DONE)
        return exits.DONE if self._is_interactive else code

    def _run(self, work: Coroutine[Any, Any, int | None]) -> int | None:
        """Ctrl-C stops it."""
        try:
            return self._runner.run(interruptible(work, self._stop))
        except asyncio.CancelledError:
            say(INTERRUPTED)
            return exits.INTERRUPTED

    def _stop(self) -> bool:
        running = self._conversation.live.running
        return running is not None and running.interrupt()

    def _completions(self, begun: str) -> list[str]:
        if not begun.startswith("/") or " " in begun:
            return []
        return [f"/{word} " for word, _ in self._conversation.app.commands.completions(begun)]
