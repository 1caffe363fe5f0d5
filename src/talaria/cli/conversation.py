"""A conversation at the terminal: handles line after line, runs turns, and switches to other conversations.

The `UserInterface` it talks to is the screen, or plain lines.
"""

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from talaria import __version__
from talaria.app.build import Application, open_application, with_model
from talaria.app.settings import Settings
from talaria.cli import command_name, exits
from talaria.cli.context import sandbox_warning, user_warning
from talaria.cli.options import CliOptions
from talaria.cli.references import list_references, read_image, with_references
from talaria.cli.safe import visible
from talaria.cli.tool_outcomes import is_unasked
from talaria.core.aio import complete, in_thread
from talaria.core.entries import Recorded
from talaria.core.errors import BadInput, SessionBusy, TalariaError, UnknownSession
from talaria.core.events import Event, ToolEnded, TurnBegan
from talaria.core.ids import SessionId, TurnId
from talaria.core.messages import Image, Text, User, user
from talaria.runtime.chat import Chat, Reason
from talaria.runtime.commands import Ask, Leave, ParsedLine, Say, run_command
from talaria.runtime.lease import Observer
from talaria.runtime.session import LiveSession
from talaria.runtime.transcript import read_latest_turns
from talaria.runtime.turn_runner import Report
from talaria.store.base import Session
from talaria.store.signal_port import Signal
from talaria.tools.person import Person
from talaria.tools.sandbox.base import Sandbox


class UserInterface(Protocol):
    @property
    def person(self) -> Person | None:
        """None if nobody can be asked."""
        ...

    def say(self, text: str) -> None: ...
    def show_error(self, error: TalariaError) -> None:
        """A line that failed, or a turn that could not start."""
        ...

    def observer(self) -> Observer:
        """For the turn that is about to start."""
        ...

    def on_switch(self, reason: Reason) -> None:
        """Called after a switch to another conversation."""
        ...

    async def repaint(self, row: Session, entries: Sequence[Recorded]) -> bool:
        """Show the end of a conversation that is resumed. Returns False if this interface cannot; then a short
        summary is shown."""
        ...

    def show_report(self, report: Report) -> None:
        """Called after the observed turn."""
        ...


class TypedLine(NamedTuple):
    text: str
    parsed: ParsedLine


MAX_INJECTED = 20
INTERRUPTED = "Interrupted."


@asynccontextmanager
async def open_conversation(
    settings: Settings, options: CliOptions, ui: UserInterface
) -> "AsyncGenerator[Conversation]":
    async with open_application(settings, model=options.model, program=command_name.name()) as app:
        row: Session | None = None
        if options.resume is not None:
            row = await app.store.sessions.find(options.resume)
        elif options.is_continuing and (row := await app.store.sessions.latest("terminal")) is None:
            raise UnknownSession("There is no conversation to continue yet.")
        conversation = Conversation(app, options, ui, row)
        try:
            yield conversation
        finally:
            await conversation.close()


class Conversation(Chat):
    """Also the `Chat` that slash commands work on."""

    surface = "terminal"

    def __init__(self, app: Application, options: CliOptions, ui: UserInterface, row: Session | None) -> None:
        """`row` is the conversation to resume; None starts a new one."""
        super().__init__(app)
        self.app = app
        self._options = options
        self._ui = ui
        self._injected: deque[str] = deque()
        self._images: list[Image] = []
        """For the person's next message."""
        self._row = row
        self.shown_seq = 0
        """The last entry that the interface has shown, of a conversation that was resumed."""
        self._own_turns: set[TurnId] = set()
        self._live = self._new_session(row)
        if app.extensions is not None:
            app.extensions.services.inject_into = self._inject
        if app.builtin is not None and not options.is_interactive:  # otherwise `mention_sandbox` is called
            app.builtin.workspaces.on_sandbox_chosen(self._warn_about_sandbox)

    async def close(self) -> None:
        await self._live.close()

    def _inject(self, content: str, role: str) -> bool:
        """A plugin's message, from any thread. Steers the running turn, or else is queued as a message.

        Returns False if it will not be read.
        """
        text = content if role == "user" else f"[{role}] {content}"
        if self._live.running is not None and self._live.running.steer(text):
            return True
        if self._options.is_one_shot or len(self._injected) >= MAX_INJECTED:
            return False
        self._injected.append(text)
        return True

    # Lines

    def parse(self, text: str) -> TypedLine:
        return TypedLine(text, self.app.commands.parse(text, "terminal"))

    async def handle_line(self, line: TypedLine) -> int | None:
        """Return the exit code; None means that the person wants to leave."""
        row = self._row
        try:
            with self._live.as_current():
                outcome = await run_command(line.parsed, self)
        except TalariaError as error:
            self._ui.show_error(error)
            return exits.DONE
        match outcome:
            case Ask(text):
                images, self._images = tuple(self._images), []
                return await self._ask_text(text, images)
            case Leave(text):
                if text:
                    self._ui.say(text)
                return None
            case Say(text):
                self._ui.say(text)
            case None:
                pass
        return exits.DONE if self._row is row else await self.finish_interrupted()

    async def ask_queued(self, line: Signal) -> int:
        """`DONE` without a turn if it was asked or taken back elsewhere, or if the conversation is in use.

        A turn that was left open is finished first: the line is for what comes after it.
        """
        if await self.has_open_turn():
            self._ui.say("The last turn was interrupted; finishing it.")
            if code := await self._run_turn(self._live.resume):
                return code
        return await self._ask_text(line.text, queued=line)

    async def _ask_text(self, text: str, images: Sequence[Image] = (), queued: Signal | None = None) -> int:
        """With what the text refers to."""
        try:
            if named := await in_thread(lambda: list_references(text, Path.cwd())):
                self._ui.say(f"Attached: {', '.join(map(visible, named))}")
            message = await in_thread(lambda: with_references(User((*images, Text(text))), Path.cwd()))
        except BadInput as error:
            self._ui.show_error(error)
            return exits.BAD_INPUT
        if queued is None:
            return await self.ask(message)

        async def ask_unless_busy(show: Observer) -> Report | None:
            with suppress(SessionBusy):
                return await self._live.ask_queued(queued, message, show)
            return None

        return await self._run_turn(ask_unless_busy)

    async def run_injected(self) -> int:
        """Run the messages that plugins have queued so far. Any that these lead to wait for the person's next line."""
        code = exits.DONE
        for _ in range(len(self._injected)):
            code = exits.of_all(code, await self.ask(user(self._injected.popleft())))
        return code

    def complete_command(self, start: str) -> list[str]:
        if not start.startswith("/") or " " in start:
            return []
        return [f"/{word} " for word, _ in self.app.commands.completions(start)]

    # Turns

    async def ask(self, message: User) -> int:
        return await self._run_turn(lambda show: self._live.ask(message, show))

    async def finish_interrupted(self) -> int:
        """Finish what a crash or a kill left open in the resumed conversation, unless another process is at it."""
        if self._row is None or await self.app.store.journal.holder(self._row.id) not in (None, self.app.owner):
            return exits.DONE
        if self._row.open_turn is not None:
            self._ui.say("The last turn was interrupted; finishing it.")
        return await self._run_turn(self._live.resume)

    def runs_itself(self, turn: TurnId) -> bool:
        """Whether this is, or was, a turn of this process."""
        return self._live.is_busy or turn in self._own_turns

    def interrupt(self) -> bool:
        """Returns False if no turn is running."""
        return self._live.running is not None and self._live.running.interrupt()

    async def _run_turn(self, turn: Callable[[Observer], Awaitable[Report | None]]) -> int:
        """Returns the exit code. A turn that cannot start (busy elsewhere, store unavailable) does not end the chat."""
        observe = self._ui.observer()
        has_refused = False

        def show(event: Event) -> None:
            nonlocal has_refused
            if isinstance(event, TurnBegan):
                self._own_turns.add(event.turn)
            has_refused = has_refused or (isinstance(event, ToolEnded) and is_unasked(event.result))
            observe(event)

        try:
            report = await turn(show)
        except TalariaError as error:
            self._ui.show_error(error)
            return exits.code_for(error)
        if report is None:
            return exits.DONE
        self._ui.show_report(report)
        if report.outcome == "completed":
            return exits.REFUSED if has_refused else exits.DONE
        return exits.INTERRUPTED if report.error is None else exits.code_for(report.error)

    async def has_open_turn(self) -> bool:
        row = await self.app.store.sessions.get(self.session)
        return row is not None and row.open_turn is not None

    async def is_free(self) -> bool:
        """Nothing runs, here or in another process."""
        holder = await self.app.store.journal.holder(self.session)
        return not self._live.is_busy and holder in (None, self.app.owner)

    # As `Chat`

    @property
    def has_attachments(self) -> bool:
        return bool(self._images)

    @property
    def live(self) -> LiveSession:
        return self._live

    def observer(self) -> Observer:
        return self._ui.observer()

    async def attach(self, path: str) -> str:
        image = await in_thread(lambda: read_image(Path(path).expanduser()))
        self._images.append(image)
        return f"{path} will be sent with your next message."

    async def hand_off(self, platform: str) -> None:
        from talaria.gateway.claims import find_holder, gateway_file  # noqa: PLC0415  (rarely needed)
        from talaria.gateway.handoffs import hand_off  # noqa: PLC0415

        if self._live.is_busy:
            raise BadInput("This conversation is still working on an answer; hand it off when that is done.")
        await self.read_row()
        await self.app.check_handoff(platform)
        if await in_thread(lambda: find_holder(gateway_file(self.app.home))) is None:
            raise BadInput("No gateway is running: start one with `talaria gateway start`.")
        self._ui.say(f"Waiting for the gateway to move this conversation to {platform} …")
        await hand_off(self.app.store, self.app.clock, self.session, platform)

    async def switch_to(self, row: Session | None, reason: Reason) -> None:
        live = self._new_session(row)
        await complete(self._live.leave_for(live, carry_over=reason == "branch"))
        self._row, self._live, self.shown_seq = row, live, 0
        self._ui.on_switch(reason)

    async def recap(self) -> str:
        """Empty if the interface could repaint the conversation."""
        row = await self.read_row()
        entries = await read_latest_turns(self.app.store.journal, self.session)
        self.shown_seq = entries[-1].seq if entries else 0
        return "" if await self._ui.repaint(row, entries) else await super().recap()

    async def use_model(self, name: str) -> None:
        self._live.check_idle()
        app = with_model(self.app, name)
        row = await app.store.sessions.get(self.session)
        self.app = self.host = app
        live = self._new_session(row, id=self._live.id)
        live.take_over(self._live)
        self._row, self._live = row or self._row, live

    async def export(self, file: str) -> str:
        from talaria.cli.sessions import export  # noqa: PLC0415  (rarely needed)

        row = await self.read_row()
        entries = await self.app.store.journal.entries(row.id)
        path = await in_thread(lambda: export.write_as_named(file, row, entries))
        return f"Written to {path}."

    def new_background_session(self) -> LiveSession:
        return self._new_session(None)

    def _new_session(self, row: Session | None, id: SessionId | None = None) -> LiveSession:
        return self.app.session(
            row,
            id=id,
            cwd=Path.cwd(),
            origin="terminal",
            person=self._ui.person,
            is_asking=not self._options.yolo,
            max_rounds=self._options.max_turns,
        )

    # Notices at the start

    async def greet(self) -> None:
        self.mention_root()
        self.mention_model()
        if self._options.is_interactive:
            self._ui.say(f"Talaria {__version__} · {self.model} · session {self.session} · /help")
            if self._row is not None and (recalled := await self.recap()):
                self._ui.say(recalled)
        await self.mention_interrupted()

    def mention_root(self) -> None:
        if warning := user_warning():
            self._ui.say(warning)

    async def mention_sandbox(self) -> None:
        """Choosing the sandbox tries it out, which takes a while, so call this once the person can type."""
        if self._options.is_interactive and (builtin := self.app.builtin) is not None:
            self._warn_about_sandbox(await in_thread(lambda: builtin.workspaces.sandbox))

    def _warn_about_sandbox(self, sandbox: Sandbox) -> None:
        if warning := sandbox_warning(self.app.settings.config.terminal, sandbox):
            self._ui.say(warning)

    def mention_model(self) -> None:
        if self.app.is_stand_in:
            self._ui.say(
                "No API key and no local model server found: using the demo model, a scripted stand-in."
                " Run `talaria setup` to choose a real model."
            )
        for sentence in self.app.left_out:
            self._ui.say(sentence)

    async def mention_interrupted(self) -> None:
        """In a new conversation, mention other ones that were interrupted."""
        waiting = () if self._row is not None else await self.app.store.journal.list_interrupted()
        if waiting:
            what = "conversation was" if len(waiting) == 1 else "conversations were"
            self._ui.say(f"{len(waiting)} {what} interrupted: finish one with `talaria -r {waiting[0]}`.")
