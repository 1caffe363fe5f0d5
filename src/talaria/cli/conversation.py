"""A conversation at the terminal: heeds line after line, runs turns, and goes over to another one.

Where the person of a conversation at the terminal is: a screen, or lines.
"""

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from talaria import __version__
from talaria.app.build import Application, open_application, with_model
from talaria.app.settings import Settings
from talaria.cli import command_name, exits, risks
from talaria.cli.options import CliOptions
from talaria.cli.references import read_image, references, with_references
from talaria.cli.safe import visible
from talaria.cli.tool_outcomes import is_unasked
from talaria.core.aio import completed, in_thread
from talaria.core.entries import Recorded
from talaria.core.errors import BadInput, TalariaError, UnknownSession
from talaria.core.events import Event, ToolEnded
from talaria.core.ids import SessionId
from talaria.core.messages import Image, Text, User, user
from talaria.runtime.chat import Chat, Reason
from talaria.runtime.commands import Ask, Leave, Outcome, Say, run_command
from talaria.runtime.handoff import hand_off
from talaria.runtime.lease import Observer
from talaria.runtime.session import LiveSession
from talaria.runtime.transcript import read_latest_turns
from talaria.runtime.turn_runner import Report
from talaria.store.base import Session, Sessions
from talaria.tools.person import Person
from talaria.tools.sandbox.base import Sandbox


class UserInterface(Protocol):
    @property
    def person(self) -> Person | None:
        """None: nobody can be asked."""
        ...

    def say(self, text: str) -> None: ...
    def failed(self, error: TalariaError) -> None:
        """A line could not be heeded, or a turn not be taken."""
        ...

    def observer(self) -> Observer:
        """Of the turn that begins."""
        ...

    def switched(self, reason: Reason) -> None:
        """The conversation is another one from now on."""
        ...

    async def repaint(self, row: Session, entries: Sequence[Recorded]) -> bool:
        """Show the end of a conversation that somebody comes back to. False: nothing is painted here; a few words must
        do."""
        ...

    def ended(self, report: Report) -> None:
        """So did the turn that was observed."""
        ...


MAX_INJECTED = 20
INTERRUPTED = "Interrupted."


@asynccontextmanager
async def open_conversation(
    settings: Settings, options: CliOptions, front: UserInterface
) -> "AsyncGenerator[Conversation]":
    async with open_application(settings, model=options.model, program=command_name.name()) as app:
        conversation = Conversation(app, options, front, await _chosen_row(app.store.sessions, options))
        try:
            yield conversation
        finally:
            await conversation.close()


async def _chosen_row(sessions: Sessions, options: CliOptions) -> Session | None:
    if options.resume is not None:
        return await sessions.find(options.resume)
    if not options.is_continuing:
        return None
    row = await sessions.latest("terminal")
    if row is None:
        raise UnknownSession("There is no conversation to continue yet.")
    return row


class Conversation(Chat):
    """Also the `Chat` that slash commands act on."""

    surface = "terminal"

    def __init__(self, app: Application, options: CliOptions, front: UserInterface, row: Session | None) -> None:
        """`row` is that of the conversation to go on with; None begins one."""
        super().__init__(app)
        self.app = app
        self._options = options
        self._front = front
        self._injected: deque[str] = deque()
        self._images: list[Image] = []
        """To go with the person's next message."""
        self._row = row
        self._live = self._session(row)
        if app.extensions is not None:
            app.extensions.services.inject_into = self._inject
        if app.hands is not None and not options.is_interactive:  # else it is tried at the beginning anyway
            app.hands.workspaces.when_chosen(self._mention_sandbox)

    async def close(self) -> None:
        await self._live.close()

    def _inject(self, content: str, role: str) -> bool:
        """By a plugin, from any thread: a note in the turn that runs, or else a message when it is our turn again.

        False: nobody would read it.
        """
        text = content if role == "user" else f"[{role}] {content}"
        if self._live.running is not None and self._live.running.steer(text):
            return True
        if self._options.is_one_shot or len(self._injected) >= MAX_INJECTED:
            return False
        self._injected.append(text)
        return True

    # Lines

    async def heed(self, line: str) -> int | None:
        """The exit code of what a line brought about; None to leave."""
        row = self._row
        try:
            outcome = await self._obeyed(line)
        except TalariaError as error:
            self._front.failed(error)
            return exits.DONE
        match outcome:
            case Ask(text):
                return await self._asked(text)
            case Leave(text):
                if text:
                    self._front.say(text)
                return None
            case Say(text):
                self._front.say(text)
            case None:
                pass
        return exits.DONE if self._row is row else await self.finish_interrupted()

    async def _asked(self, text: str) -> int:
        try:
            message = await self._message(text)
        except BadInput as error:
            self._front.failed(error)
            return exits.BAD_INPUT
        return await self.ask(message)

    async def _obeyed(self, line: str) -> Outcome:
        with self._live.as_current():
            return await run_command(self.app.commands.parse(line, "terminal"), self)

    async def heed_injected(self) -> int:
        """Those that are there by now: what they bring about in turn waits for the person's next word."""
        code = exits.DONE
        for _ in range(len(self._injected)):
            code = exits.of_all(code, await self.ask(user(self._injected.popleft())))
        return code

    async def _message(self, text: str) -> User:
        """With the images that were added, and the files that are named in it."""
        images, self._images = tuple(self._images), []
        message = User((*images, Text(text)))
        if taken := await in_thread(lambda: references(text, Path.cwd())):
            self._front.say(f"Taken along: {', '.join(map(visible, taken))}")
        return await in_thread(lambda: with_references(message, Path.cwd()))

    # Turns

    async def ask(self, message: User) -> int:
        return await self._shown(lambda show: self._live.ask(message, show))

    async def finish_interrupted(self) -> int:
        """What a crash or a kill left open in the conversation that is gone on with."""
        if self._row is None:
            return exits.DONE
        if self._row.open_turn is not None:
            self._front.say("The last turn was interrupted; finishing it.")
        return await self._shown(self._live.resume)

    async def _shown(self, turn: Callable[[Observer], Awaitable[Report | None]]) -> int:
        """The exit code. A turn that is not taken (busy elsewhere, store away) does not end the chat."""
        observe = self._front.observer()
        has_refused = False

        def show(event: Event) -> None:
            nonlocal has_refused
            has_refused = has_refused or (isinstance(event, ToolEnded) and is_unasked(event.result))
            observe(event)

        try:
            report = await turn(show)
        except TalariaError as error:
            self._front.failed(error)
            return exits.code_for(error)
        if report is None:
            return exits.DONE
        self._front.ended(report)
        if report.outcome == "completed":
            return exits.REFUSED if has_refused else exits.DONE
        return exits.INTERRUPTED if report.error is None else exits.code_for(report.error)

    # Of the chat

    @property
    def live(self) -> LiveSession:
        return self._live

    def observer(self) -> Observer:
        return self._front.observer()

    async def attach(self, path: str) -> str:
        image = await in_thread(lambda: read_image(Path(path).expanduser()))
        self._images.append(image)
        return f"{path} goes with your next message."

    async def hand_off(self, platform: str) -> None:
        from talaria.gateway.claims import find_holder, gateway_file  # noqa: PLC0415  (only who asks for it pays for it)

        if self._live.is_busy:
            raise BadInput("This conversation is still working on an answer; hand it over when that has ended.")
        await self._read_row()
        await self.app.check_handoff(platform)
        if await in_thread(lambda: find_holder(gateway_file(self.app.home))) is None:
            raise BadInput("No gateway is running to take it: start one with `talaria gateway start`.")
        self._front.say(f"Waiting for the gateway to take this conversation to {platform} ...")
        await hand_off(self.app.store, self.app.clock, self.session, platform)

    async def switch_to(self, row: Session | None, reason: Reason) -> None:
        live = self._session(row)
        await completed(self._live.leave_for(live, carry_over=reason == "branch"))
        self._row, self._live = row, live
        self._front.switched(reason)

    async def recap(self) -> str:
        """Painted, where that can be done; then there is nothing left to say."""
        row = await self._read_row()
        entries = await read_latest_turns(self.app.store.journal, self.session)
        return "" if await self._front.repaint(row, entries) else await super().recap()

    async def use_model(self, name: str) -> None:
        self._live.check_idle()
        app = with_model(self.app, name)
        row = await app.store.sessions.get(self.session)
        self.app = self._host = app
        live = self._session(row, id=self._live.id)
        live.take_over(self._live)
        self._row, self._live = row or self._row, live

    async def export(self, file: str) -> str:
        """Where it was written to."""
        from talaria.cli.sessions import export  # noqa: PLC0415  (only who asks for it pays for it)

        row = await self._read_row()
        entries = await self.app.store.journal.entries(row.id)
        return f"Written to {await in_thread(lambda: export.write_as_named(file, row, entries))}."

    def aside(self) -> LiveSession:
        """A conversation beside this one, with nothing said in it yet."""
        return self._session(None)

    def _session(self, row: Session | None, id: SessionId | None = None) -> LiveSession:
        return self.app.session(
            row,
            id=id,
            cwd=Path.cwd(),
            origin="terminal",
            person=self._front.person,
            is_asking=not self._options.yolo,
            max_rounds=self._options.max_turns,
        )

    # What is said at the beginning

    async def greet(self) -> None:
        self.mention_risks()
        self.mention_model()
        if self._options.is_interactive:
            self._front.say(f"Talaria {__version__} · {self.model} · session {self.session} · /help")
            if self._row is not None and (told := await self.recap()):
                self._front.say(told)
        await self.mention_interrupted()

    def mention_risks(self) -> None:
        if sentence := risks.of_user():
            self._front.say(sentence)

    async def mention_sandbox(self) -> None:
        """Which is tried out for that: not before the person can type."""
        if self._options.is_interactive and (hands := self.app.hands) is not None:
            self._mention_sandbox(await in_thread(lambda: hands.workspaces.sandbox))

    def _mention_sandbox(self, sandbox: Sandbox) -> None:
        if sentence := risks.of_sandbox(self.app.settings.config.terminal, sandbox):
            self._front.say(sentence)

    def mention_model(self) -> None:
        if self.app.is_stand_in:
            self._front.say(
                "No API key and no local model server found: using the demo model, a scripted stand-in."
                " `talaria setup` chooses a real one."
            )
        for sentence in self.app.left_out:
            self._front.say(sentence)

    async def mention_interrupted(self) -> None:
        """Of other conversations, to one who begins a new one."""
        waiting = () if self._row is not None else await self.app.store.journal.interrupted()
        if waiting:
            self._front.say(
                f"{len(waiting)} interrupted conversation(s) wait: finish one with `talaria -r {waiting[0]}`."
            )
