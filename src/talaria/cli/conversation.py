"""A conversation at the terminal: opens the session, runs its turns, and lets Ctrl-C stop one."""

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Generator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from talaria import __version__
from talaria.cli import exits
from talaria.cli.ask_person import AskingGate
from talaria.cli.lines import lines
from talaria.cli.notices import complain, say
from talaria.cli.render import Format, print_failure, view_for
from talaria.cli.slash import obey
from talaria.cli.usage import summary
from talaria.compose import Application, Settings, open_application
from talaria.model.entries import MessageAdded
from talaria.model.errors import BadInput, TalariaError, UnknownSession
from talaria.model.messages import Assistant, User, user
from talaria.runtime.recorder import Observer
from talaria.runtime.session import LiveSession
from talaria.runtime.titles import title_for
from talaria.runtime.turn import Report
from talaria.store.base import Session, Sessions

RECALLED_CHARS = 300

Work = Callable[[Observer], Coroutine[Any, Any, Report | None]]


@dataclass(frozen=True, slots=True)
class Options:
    format: Format
    is_one_shot: bool
    model: str | None
    resume: str | None
    is_continuing: bool
    max_turns: int | None
    yolo: bool

    @property
    def is_interactive(self) -> bool:
        return not self.is_one_shot and sys.stdin is not None and sys.stdin.isatty()


@contextmanager
def open_conversation(settings: Settings, options: Options) -> "Generator[Conversation]":
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            app = runner.run(stack.enter_async_context(open_application(settings, model=options.model)))
            yield Conversation(app, options, runner, runner.run(_chosen_row(app.store.sessions, options)))
        finally:
            runner.run(stack.aclose())


async def _chosen_row(sessions: Sessions, options: Options) -> Session | None:
    if options.resume is not None:
        return await sessions.find(options.resume)
    if not options.is_continuing:
        return None
    row = await sessions.latest("terminal")
    if row is None:
        raise UnknownSession("There is no conversation to continue yet.")
    return row


def _short(folder: str) -> str:
    """As people write it."""
    home = str(Path.home())
    return f"~{folder.removeprefix(home)}" if folder == home or folder.startswith(f"{home}/") else folder


def _gate(options: Options) -> AskingGate | None:
    return AskingGate() if options.is_interactive and not options.yolo else None


class Conversation:
    def __init__(self, app: Application, options: Options, runner: asyncio.Runner, row: Session | None) -> None:
        """`row` is that of the conversation to go on with; None begins one."""
        self._app = app
        self._options = options
        self._runner = runner
        self._row = row
        self._gate = _gate(options)
        self._live = self._session(row)

    def once(self, message: User) -> int:
        """One question: an interrupted turn of the session is closed, others are only mentioned."""
        self._mention_model()
        self._mention_interrupted()
        return self._show(lambda show: self._live.ask(message, show))

    def converse(self) -> int:
        """Turn after turn until the input ends; the code of the last one that failed."""
        is_interactive = self._options.is_interactive
        self._greet()
        code = self._finish_interrupted()
        for line in lines(is_interactive=is_interactive):
            if not line.startswith("/"):
                code = self._turn(line) or code
            elif not obey(line, self):
                break
        return exits.DONE if is_interactive else code

    @property
    def status(self) -> str:
        return f"Session {self._live.id} · model {self._app.route.primary.label}"

    def usage(self) -> str:
        return self._runner.run(summary(self._app.store.spending, self._live.id, self._app.clock.now()))

    def begin_anew(self) -> None:
        """Also what was allowed once for all is asked again."""
        self._row = None
        self._gate = _gate(self._options)
        self._live = self._session(None)

    def undo(self) -> str | None:
        return self._runner.run(self._live.undo())

    def ask(self, text: str) -> None:
        self._turn(text)

    def compress(self, focus: str, keep_last: int | None) -> bool:
        view = view_for(self._options.format)
        return self._runner.run(self._live.compact(view.show, focus=focus, keep_last=keep_last))

    def rename(self, title: str) -> None:
        sessions = self._app.store.sessions
        if self._runner.run(sessions.get(self._live.id)) is None:
            raise BadInput("Say something first: a conversation without a message is not kept.")
        self._runner.run(sessions.rename(self._live.id, title))

    def proposed_title(self) -> str:
        """By the model that is set for titles."""
        entries = self._runner.run(self._app.store.journal.entries(self._live.id))
        messages = [one.entry.message for one in entries if isinstance(one.entry, MessageAdded)]
        return self._runner.run(title_for(self._live.id, messages, self._app.auxiliary("title")))

    def _session(self, row: Session | None) -> LiveSession:
        return self._app.session(
            row, cwd=Path.cwd(), origin="terminal", gate=self._gate, max_rounds=self._options.max_turns
        )

    def _turn(self, line: str) -> int:
        try:
            return self._show(lambda show: self._live.ask(user(line), show))
        except TalariaError as error:  # the message was not taken (busy elsewhere, store away): the chat goes on
            if self._options.format != "text":
                print_failure(error)
            complain(str(error))
            return exits.code_for(error)

    def _finish_interrupted(self) -> int:
        """What a crash or a kill left open in the conversation that is gone on with."""
        if self._row is None:
            return exits.DONE
        if self._row.open_turn is not None:
            say("The last turn was interrupted; finishing it.")
        return self._show(self._live.resume)

    def _show(self, work: Work) -> int:
        view = view_for(self._options.format)
        try:
            report = self._runner.run(self._interruptible(work(view.show)))
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

    async def _interruptible(self, work: Coroutine[Any, Any, Report | None]) -> Report | None:
        """The first Ctrl-C stops the turn, which still ends well on the disk; a second one leaves at once."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop() -> None:
            loop.remove_signal_handler(signal.SIGINT)
            if not self._live.interrupt() and task is not None:  # the turn has not begun: nothing is taken yet
                task.cancel()

        loop.add_signal_handler(signal.SIGINT, stop)
        try:
            return await work
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    def _greet(self) -> None:
        self._mention_model()
        if self._options.is_interactive:
            label = self._app.route.primary.label
            say(f"Talaria {__version__} · {label} · session {self._live.id} · /help")
            self._recall()
        self._mention_interrupted()

    def _recall(self) -> None:
        """Where the conversation stood, for one who comes back to it."""
        if self._row is None:
            return
        entries = self._runner.run(self._app.store.journal.entries(self._row.id))
        said = [one.entry.message for one in entries if isinstance(one.entry, MessageAdded)]
        say(f"{self._row.title or '(untitled)'} · {self._row.message_count} messages · in {_short(self._row.cwd)}")
        for message in [one for one in said if isinstance(one, User | Assistant) and one.text][-2:]:
            mark = "› " if isinstance(message, User) else "  "
            say(mark + shorten(message.text, RECALLED_CHARS, placeholder=" …"))

    def _mention_model(self) -> None:
        if self._app.is_stand_in:
            say("No API key and no local model server found: using the demo model, a scripted stand-in.")
        for sentence in self._app.left_out:
            say(sentence)

    def _mention_interrupted(self) -> None:
        """Of other conversations, to one who begins a new one."""
        waiting = () if self._row is not None else self._runner.run(self._app.store.journal.interrupted())
        if waiting:
            say(f"{len(waiting)} interrupted conversation(s) wait: finish one with `talaria -r {waiting[0]}`.")
