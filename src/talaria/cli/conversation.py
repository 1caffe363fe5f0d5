"""A conversation at the terminal: opens the session, heeds line after line, and goes over to another one."""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import msgspec

from talaria import __version__
from talaria.cli import exits
from talaria.cli.ask_person import TerminalPerson
from talaria.cli.foreground import Foreground
from talaria.cli.lines import lines
from talaria.cli.notices import complain, say
from talaria.cli.pictures import read_image
from talaria.cli.render import Format, print_failure
from talaria.compose import Application, Settings, open_application
from talaria.model.errors import TalariaError, UnknownSession
from talaria.model.messages import Image, Text, User, user
from talaria.runtime.chat import Ask, Leave, Outcome, Say
from talaria.runtime.commands import obey
from talaria.runtime.handoff import hand_off
from talaria.runtime.open_chat import OpenChat, Reason
from talaria.runtime.recorder import Observer
from talaria.runtime.session import LiveSession
from talaria.store.base import Session, Sessions
from talaria.waiting import completed, in_thread

MAX_INJECTED = 20


class Options(msgspec.Struct, frozen=True):
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
            conversation = Conversation(app, options, runner, runner.run(_chosen_row(app.store.sessions, options)))
            try:
                yield conversation
            finally:
                conversation.close()
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


class Conversation(OpenChat):
    """Also the `Chat` that slash commands act on."""

    surface = "terminal"

    def __init__(self, app: Application, options: Options, runner: asyncio.Runner, row: Session | None) -> None:
        """`row` is that of the conversation to go on with; None begins one."""
        super().__init__(app)
        self._app = app
        self._options = options
        self._runner = runner
        self._foreground = Foreground(runner, options.format)
        self._commands = app.commands
        self._injected: deque[str] = deque()
        self._images: list[Image] = []
        """To go with the person's next message."""
        self._row = row
        self._person = TerminalPerson() if options.is_interactive else None
        self._live = self._session(row)
        if app.extensions is not None:
            app.extensions.services.inject_into = self._inject

    def close(self) -> None:
        self._runner.run(self._live.close())

    def _inject(self, content: str, role: str) -> bool:
        """By a plugin, from any thread: a note in the turn that runs, or else a message when it is our turn again.

        False: nobody would read it.
        """
        text = content if role == "user" else f"[{role}] {content}"
        if self._live.steer(text):
            return True
        if self._options.is_one_shot or len(self._injected) >= MAX_INJECTED:
            return False
        self._injected.append(text)
        return True

    def once(self, message: User) -> int:
        """One question: an interrupted turn of the session is closed, others are only mentioned."""
        self._mention_model()
        self._mention_interrupted()
        return self._ask(message)

    def converse(self) -> int:
        """Turn after turn until the input ends; the code of the last one that failed."""
        self._greet()
        code = self._finish_interrupted()
        for line in lines(is_interactive=self._options.is_interactive, complete=self._completions):
            ended = self._heed(line)
            if ended is None:
                break
            code = self._heed_injected() or ended or code
        return exits.DONE if self._options.is_interactive else code

    def _completions(self, begun: str) -> list[str]:
        if not begun.startswith("/") or " " in begun:
            return []
        return [f"/{word} " for word, _ in self._commands.completions(begun)]

    async def attach(self, path: str) -> str:
        image = await in_thread(lambda: read_image(Path(path).expanduser()))
        self._images.append(image)
        return f"{path} goes with your next message."

    def _with_images(self, text: str) -> User:
        images, self._images = tuple(self._images), []
        return User((*images, Text(text)))

    @property
    def live(self) -> LiveSession:
        return self._live

    def observer(self) -> Observer:
        return self._foreground.observer()

    async def hand_off(self, platform: str) -> None:
        await self._kept()
        await self._app.check_handoff(platform)
        say(f"Waiting for the gateway to take this conversation to {platform} ...")
        await hand_off(self._app.store, self._app.clock, self.session, platform)

    async def switch_to(self, row: Session | None, reason: Reason) -> None:
        live = self._session(row)
        await completed(self._live.hand_over(live, carry_over=reason == "branch"))
        self._row, self._live = row, live

    def _session(self, row: Session | None) -> LiveSession:
        return self._app.session(
            row,
            cwd=Path.cwd(),
            origin="terminal",
            person=self._person,
            is_asking=not self._options.yolo,
            max_rounds=self._options.max_turns,
        )

    def _heed_injected(self) -> int:
        """Those that are there by now: what they bring about in turn waits for the person's next word."""
        code = exits.DONE
        for _ in range(len(self._injected)):
            message = user(self._injected.popleft())
            code = self._attempt(lambda message=message: self._ask(message)) or code
        return code

    def _heed(self, line: str) -> int | None:
        """The exit code of what a line brought about; None to leave."""
        row = self._row
        try:
            outcome = self._foreground.run(self._obeyed(line), self._live.interrupt)
        except asyncio.CancelledError:
            say("Interrupted.")
            return exits.INTERRUPTED
        except TalariaError as error:
            complain(str(error))
            return exits.DONE
        match outcome:
            case Ask(text):
                message = self._with_images(text)
                return self._attempt(lambda: self._ask(message))
            case Leave(text):
                if text:
                    say(text)
                return None
            case Say(text):
                say(text)
            case None:
                pass
        return exits.DONE if self._row is row else self._attempt(self._finish_interrupted)

    async def _obeyed(self, line: str) -> Outcome:
        with self._live.serving():
            return await obey(line, self, self._commands, "terminal")

    def _attempt(self, turn: Callable[[], int]) -> int:
        """A turn that is not taken (busy elsewhere, store away) does not end the chat."""
        try:
            return turn()
        except TalariaError as error:
            if self._options.format != "text":
                print_failure(error)
            complain(str(error))
            return exits.code_for(error)

    def _ask(self, message: User) -> int:
        return self._foreground.show(lambda show: self._live.ask(message, show), self._live.interrupt)

    def _finish_interrupted(self) -> int:
        """What a crash or a kill left open in the conversation that is gone on with."""
        if self._row is None:
            return exits.DONE
        if self._row.open_turn is not None:
            say("The last turn was interrupted; finishing it.")
        return self._foreground.show(self._live.resume, self._live.interrupt)

    def _greet(self) -> None:
        self._mention_model()
        if self._options.is_interactive:
            say(f"Talaria {__version__} · {self.model} · session {self.session} · /help")
            if self._row is not None:
                say(self._runner.run(self.recall()))
        self._mention_interrupted()

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
