"""A conversation without a screen: one question, or what stands on standard input, line after line."""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

from talaria.cli import exits
from talaria.cli.ask_person import TerminalPerson
from talaria.cli.conversation import INTERRUPTED, Conversation, open_conversation
from talaria.cli.foreground import interruptible
from talaria.cli.json_output import print_failure
from talaria.cli.lines import lines
from talaria.cli.notices import complain, say
from talaria.cli.options import Format, Options
from talaria.cli.render import View, view_for
from talaria.model.errors import TalariaError
from talaria.model.messages import User
from talaria.runtime.recorder import Observer
from talaria.runtime.turn import Report
from talaria.settings import Settings


class PlainFront:
    def __init__(self, options: Options) -> None:
        self.person = TerminalPerson() if options.is_interactive else None
        self._format: Format = options.format
        self._view: View | None = None

    def say(self, text: str) -> None:
        say(text)

    def failed(self, error: TalariaError) -> None:
        if self._format != "text":
            print_failure(error, is_line=self._format == "stream-json")
        complain(str(error))

    def observer(self) -> Observer:
        self._view = view_for(self._format)
        return self._view.show

    def ended(self, report: Report) -> None:
        if self._view is not None:
            self._view.finish(report)
        if report.error is not None:
            complain(str(report.error))
        elif report.outcome != "completed":
            say(INTERRUPTED)


def converse(settings: Settings, options: Options, message: User | None) -> int:
    """The exit code: of the question, or of the last line that failed."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        opened = open_conversation(settings, options, PlainFront(options))
        try:
            plain = Plain(runner, runner.run(stack.enter_async_context(opened)), options)
            return plain.once(message) if message else plain.converse()
        finally:
            runner.run(stack.aclose())


class Plain:
    """Lines are waited for outside the event loop."""

    def __init__(self, runner: asyncio.Runner, conversation: Conversation, options: Options) -> None:
        self._runner = runner
        self._conversation = conversation
        self._is_interactive = options.is_interactive

    def once(self, message: User) -> int:
        """One question: an interrupted turn of the session is closed, others are only mentioned."""
        self._conversation.mention_risks()
        self._conversation.mention_model()
        self._runner.run(self._conversation.mention_interrupted())
        return self._run(self._conversation.ask(message)) or exits.DONE

    def converse(self) -> int:
        """Turn after turn until the input ends; the code of the last one that failed."""
        self._runner.run(self._conversation.greet())
        self._runner.run(self._conversation.mention_sandbox())
        code = self._run(self._conversation.finish_interrupted()) or exits.DONE
        for line in lines(is_interactive=self._is_interactive, complete=self._completions):
            ended = self._run(self._conversation.heed(line))
            if ended is None:
                break
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
        return self._conversation.live.interrupt()

    def _completions(self, begun: str) -> list[str]:
        if not begun.startswith("/") or " " in begun:
            return []
        return [f"/{word} " for word, _ in self._conversation.app.commands.completions(begun)]
