"""A conversation at the terminal: opens the session, runs its turns, and lets Ctrl-C stop one."""

import asyncio
import importlib
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from talaria import __version__
from talaria.cli import exits
from talaria.cli.ask_person import AskingGate
from talaria.cli.render import Format, print_failure, view_for
from talaria.cli.safe import printable
from talaria.compose import Application, Settings, open_application
from talaria.config.selection import DEMO
from talaria.model.errors import BadInput, TalariaError, UnknownSession
from talaria.model.messages import User, user
from talaria.runtime.session import LiveSession
from talaria.runtime.turn import Report
from talaria.store.base import Session

_HELP = """\
/new            begin a new conversation
/title NAME     give this one a name (then: talaria -r NAME)
/status         which conversation and model this is
/help           this
/quit           leave (Ctrl-D does, too)
Ctrl-C stops an answer. Anything else is a message."""


@dataclass(frozen=True, slots=True)
class Options:
    format: Format
    is_one_shot: bool
    model: str | None
    resume: str | None
    is_continuing: bool
    max_turns: int | None
    yolo: bool


class Conversation:
    def __init__(self, settings: Settings, options: Options, runner: asyncio.Runner) -> None:
        self._settings = settings
        self._options = options
        self._runner = runner
        self._stack = AsyncExitStack()
        self._gate = AskingGate() if self._is_interactive and not options.yolo else None

    @property
    def _is_interactive(self) -> bool:
        return not self._options.is_one_shot and sys.stdin is not None and sys.stdin.isatty()

    def __enter__(self) -> Self:
        opening = open_application(self._settings, model=self._options.model)
        self._app: Application = self._runner.run(self._stack.enter_async_context(opening))
        try:
            self._live = self._begin(self._runner.run(self._chosen_row()))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._stack.aclose())

    def once(self, message: User) -> int:
        """One question: an interrupted turn of the session is closed, others are only mentioned."""
        self._mention_model()
        if not self._is_known:
            self._mention_interrupted()
        return self._show(self._live.ask, message)

    def converse(self) -> int:
        """Turn after turn until the input ends; the code of the last one that failed."""
        self._greet()
        code = exits.DONE
        if self._is_known:
            code = self._finish_interrupted() or code
        for line in self._lines():
            if line.startswith("/"):
                if self._obey(line):
                    break
            else:
                code = self._turn(line) if self._is_interactive else self._turn(line) or code
        return exits.DONE if self._is_interactive else code

    def _turn(self, line: str) -> int:
        try:
            return self._show(self._live.ask, user(line))
        except TalariaError as error:  # the message was not taken (busy elsewhere, store away): the chat goes on
            if self._options.format != "text":
                print_failure(error)
            exits.complain(str(error))
            return exits.code_for(error)

    def _finish_interrupted(self) -> int:
        """What a crash or a kill left open in the conversation that is opened."""
        if self._is_interrupted:
            exits.say("The last turn was interrupted; finishing it.")
        return self._show(self._live.resume)

    def _show(self, work: Any, *arguments: object) -> int:
        view = view_for(self._options.format)
        report: Report | None = self._runner.run(self._interruptible(work(*arguments, view.show)))
        if report is None:
            return exits.DONE
        view.finish(report, self._app.provider.endpoint.label)
        if report.error is not None:
            exits.complain(str(report.error))
        if report.outcome == "completed":
            return exits.DONE
        if report.error is not None:
            return exits.code_for(report.error)
        exits.say("Interrupted.")
        return exits.INTERRUPTED

    async def _interruptible(self, work: Coroutine[Any, Any, Report | None]) -> Report | None:
        """The first Ctrl-C stops the turn, which still ends well on the disk; a second one leaves at once."""
        loop = asyncio.get_running_loop()

        def stop() -> None:
            if self._live.interrupt():
                loop.remove_signal_handler(signal.SIGINT)

        loop.add_signal_handler(signal.SIGINT, stop)
        try:
            return await work
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    def _lines(self) -> Iterator[str]:
        while (line := self._next_line()) is not None:
            if line.strip():
                yield line.strip()

    def _next_line(self) -> str | None:
        if not self._is_interactive:
            return sys.stdin.readline() or None if sys.stdin is not None else None
        importlib.import_module("readline")  # gives `input` its line editing
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

    def _obey(self, line: str) -> bool:
        """A slash command; True to leave."""
        name, _, argument = line.partition(" ")
        match name:
            case "/quit" | "/exit":
                return True
            case "/new" | "/clear" | "/reset":
                self._live = self._begin(None)
                exits.say("A new conversation.")
            case "/title":
                self._title(argument.strip())
            case "/status":
                exits.say(f"Session {self._live.id} · model {self._app.provider.endpoint.label}")
            case "/help":
                exits.say(_HELP)
            case _:
                exits.say(f"There is no command {printable(name)}; /help lists them.")
        return False

    def _title(self, title: str) -> None:
        try:
            if not title:
                raise BadInput("Give a name: /title NAME")
            self._runner.run(self._app.store.sessions.rename(self._live.id, title))
            exits.say(f"This conversation is called {title}.")
        except TalariaError as error:
            exits.complain(str(error))

    async def _chosen_row(self) -> Session | None:
        sessions = self._app.store.sessions
        if self._options.resume is not None:
            return await sessions.find(self._options.resume)
        if not self._options.is_continuing:
            return None
        for row in await sessions.list(limit=200):
            if row.source == "terminal":
                return row
        raise UnknownSession("There is no conversation to continue yet.")

    def _begin(self, row: Session | None) -> LiveSession:
        self._is_known = row is not None
        self._is_interrupted = row is not None and row.open_turn is not None
        return self._app.session(
            row, cwd=Path.cwd(), origin="terminal", gate=self._gate, max_rounds=self._options.max_turns
        )

    def _greet(self) -> None:
        self._mention_model()
        if self._is_interactive:
            label = self._app.provider.endpoint.label
            exits.say(f"Talaria {__version__} · {label} · session {self._live.id} · /help")
        if not self._is_known:
            self._mention_interrupted()

    def _mention_model(self) -> None:
        if self._app.provider.endpoint.provider == DEMO and self._options.model != DEMO:
            exits.say("No API key and no local model server found: using the demo model, a scripted stand-in.")

    def _mention_interrupted(self) -> None:
        waiting = self._runner.run(self._app.store.journal.interrupted())
        if waiting:
            exits.say(f"{len(waiting)} interrupted conversation(s) wait: finish one with `talaria -r {waiting[0]}`.")
