"""The chat on the screen: handles one line after another. Meanwhile the person can stop or steer the turn, queue
lines, or ask in a background conversation."""

import asyncio
import shlex
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Literal

from talaria.cli import context, exits
from talaria.cli.conversation import INTERRUPTED, Conversation, TypedLine, open_conversation
from talaria.cli.options import CliOptions
from talaria.cli.safe import readable, visible
from talaria.cli.screen.line_input import InputHistory, LineCompleter, Suggestion
from talaria.cli.screen.menu import Menu, MenuItem
from talaria.cli.screen.other_turns import OtherTurns
from talaria.cli.screen.painting import BOLD, DIM, RED, render_document, style, warm_up
from talaria.cli.screen.queued_lines import QueuedLines
from talaria.cli.screen.screen import Screen
from talaria.cli.screen.screen_interface import ScreenInterface
from talaria.core.aio import in_thread
from talaria.core.clock import SystemClock
from talaria.core.errors import BadInput, TalariaError
from talaria.core.messages import user
from talaria.core.text import show_time
from talaria.runtime.accounts import cost_phrase, total
from talaria.runtime.chat import Chat, Reason
from talaria.runtime.commands import SCREEN_COMMANDS, Command, GivenCommand, Outcome, PlainMessage, Say
from talaria.runtime.session import LiveSession
from talaria.runtime.turn_runner import Report
from talaria.runtime.turn_signals import SENDER_FIRST_S
from talaria.store.signal_port import Signal

MAX_SESSIONS = 200
LEAVE_TIMEOUT_S = 5.0
REPEAT_S = 2.0
"""A second Ctrl-C within this time quits."""
URGENT = frozenset(
    {"stop", "steer", "queue", "status", "usage", "help", "tools", "background", "approve", "deny", "details", "quit"}
    | {"sandbox"}  # revoking a permission also affects running commands
    | {"handoff"}  # says that it is not possible now
)
"""Commands that run at once, also during a turn."""
_NAME_CHARS = 50


class ChatScreen(ScreenInterface):
    def __init__(
        self, screen: Screen, completer: LineCompleter, history: InputHistory, profile: str | None, options: CliOptions
    ) -> None:
        super().__init__(screen, SystemClock())
        self._completer = completer
        self._history = history
        self._profile = profile
        self._options = options
        self.resume_hint = ""
        """Printed after the screen is closed."""
        self._has_line = asyncio.Event()
        self._conversation: Conversation | None = None
        self.background = BackgroundSessions(screen, self._show_counts)
        self._stops = 0
        self._stopped_at = -REPEAT_S
        self._is_leaving = False
        self._is_clearing = False
        """Whether the current line is /clear."""
        self._busy_mode: Literal["queue", "steer", "interrupt"] = "queue"
        self._working: asyncio.Task[int | None] | None = None
        self._suggestions: ArgumentSuggestions | None = None
        self._side_tasks: set[asyncio.Task[None]] = set()
        self._others: OtherTurns | None = None
        self._queued: QueuedLines | None = None
        self._is_last_runner = True
        """No other process has run a turn of the conversation since this one did, as far as was seen."""
        self._following: asyncio.Task[None] | None = None

    async def run(self, on_open: "Callable[[ChatScreen], None]") -> int:
        """Runs until the person leaves. Returns the exit code."""
        settings = await in_thread(lambda: context.settings_of(self._profile))
        self._history.redact = settings.redactor.text
        self._busy_mode = settings.config.display.busy_mode
        self._screen.use_theme(settings.config.display.theme)
        self._screen.set_steer_key(settings.config.display.steer_key)
        async with open_conversation(settings, self._options, self) as conversation:
            self._conversation = conversation
            commands = conversation.app.commands
            for command in ScreenCommands(self).commands():
                commands.add(command)
            self._suggestions = ArgumentSuggestions(conversation)
            self._completer.commands = lambda start: [
                Suggestion(f"/{word} ", about) for word, about in commands.completions(start)
            ]
            self._completer.arguments = self._suggestions.suggest
            ticking = asyncio.create_task(self.tick(), name="tick")
            try:
                on_open(self)  # before the greeting: once people see it, they may press any key
                await conversation.greet()
                self._screen.print("")
                await self._update_status()
                await conversation.mention_sandbox()
                await in_thread(warm_up)
                if not self._is_leaving:
                    await self._run_interruptible(conversation.finish_interrupted())
                await self._follow_others(conversation)
                await self._handle_lines(conversation)
                return exits.DONE
            finally:
                ticking.cancel()
                if self._following is not None:
                    self._following.cancel()
                self._screen.close()
                row = await conversation.app.store.sessions.get(conversation.session)
                if row is not None:
                    can_be_typed = row.title is not None and visible(row.title) == row.title
                    name = (row.title if can_be_typed else None) or row.id
                    self.resume_hint = f"To resume: talaria -r {shlex.quote(name)}"
                await in_thread(self._history.trim)
                await self.background.close()

    async def _handle_lines(self, conversation: Conversation) -> None:
        is_due = False
        while not self._is_leaving:
            self._has_line.clear()
            line = await self._take_line(conversation, is_due=is_due)
            is_due = False
            if self._is_leaving:
                break
            if line is None:
                is_due = not await self._wait_for_line()
                continue
            if isinstance(line, Signal):
                await self._ask_queued(conversation, line)
                await self._update_status()
                continue
            self._show_counts()
            chosen = await pick_argument(line, conversation, self._screen)
            if chosen is not None:
                self.echo(chosen.text)
                if await self._run_interruptible(self._handle_line(conversation, chosen)) is None:
                    break
                if self._others is not None and self._others.session != conversation.session:
                    await self._follow_others(conversation)
            await self._update_status()

    async def _take_line(self, conversation: Conversation, *, is_due: bool) -> TypedLine | Signal | None:
        """What to do next; None: wait. `is_due`: nobody else has asked what is queued, or has finished the turn that a
        killed process left open."""
        if self._is_other_running:
            return None
        if (queued := self._queued) is not None:
            with suppress(TalariaError):
                rows = await queued.read()
                if rows and (is_due or (rows[0] in queued.own and not await conversation.has_open_turn())):
                    return rows[0] if await conversation.is_free() else None
            if queued.own:
                return None
        return self._queue.popleft() if self._queue else None

    async def _wait_for_line(self) -> bool:
        """False: nothing has changed for a while, though others have queued lines. Whoever ran the last turn comes
        after their senders, and before other terminals."""
        is_waiting = self._queued is not None and self._queued.rows and not self._is_other_running
        patience_s = SENDER_FIRST_S if self._is_last_runner else 2 * SENDER_FIRST_S
        try:
            async with asyncio.timeout(patience_s if is_waiting else None):
                await self._has_line.wait()
        except TimeoutError:
            return False
        return True

    async def _ask_queued(self, conversation: Conversation, line: Signal) -> None:
        queued = self._queued
        assert queued is not None  # noqa: S101  (it is one of its lines)

        async def ask() -> int:
            return await conversation.ask_queued(line) or await conversation.run_injected()

        self.echo(line.text)
        queued.ignore([line])
        code = await self._run_interruptible(ask())
        if not await queued.restore(line) or code == exits.DONE:  # it was asked, or has to wait
            return
        queued.ignore([line])
        if code != exits.INTERRUPTED:
            self.say("The line stays queued, for whoever opens the conversation next.")
        else:
            await self._settle([line])

    async def _handle_line(self, conversation: Conversation, line: TypedLine) -> int | None:
        model = conversation.model
        self._is_clearing = isinstance(line.parsed, GivenCommand) and line.parsed.command.name == "clear"
        code = await conversation.handle_line(line)
        if conversation.model != model:
            self._start_task(self._warn_if_unlisted(conversation.model))
        return code if code is None else await conversation.run_injected() or code

    async def _follow_others(self, conversation: Conversation) -> None:
        """Show what other processes do in this conversation from now on."""
        if self._following is not None:
            self._following.cancel()
        shown = max(conversation.shown_seq, conversation.live.last_seq)
        if not shown and (latest := await conversation.app.store.journal.latest(conversation.session, 1)):
            shown = latest[0].seq  # a copy of what is on the screen
        others = self._others = OtherTurns(conversation, self, self._on_other_end)
        queued = self._queued = QueuedLines(conversation, self._on_queue_change)

        async def follow() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(others.follow(shown), name="other turns")
                group.create_task(queued.follow(), name="queued lines")

        self._following = asyncio.create_task(follow(), name="other processes")

    def _on_other_end(self) -> None:
        self._is_last_runner = False
        self._has_line.set()

    @property
    def _is_other_running(self) -> bool:
        return self._others is not None and self._others.is_running

    def show_report(self, report: Report) -> None:
        super().show_report(report)
        self._is_last_runner = True

    def on_switch(self, reason: Reason) -> None:
        super().on_switch(reason)
        if self._is_clearing:
            self._screen.clear()

    async def _warn_if_unlisted(self, model: str) -> None:
        """Only a warning: not every endpoint lists all its models."""
        from talaria.cli.model_status import models  # noqa: PLC0415  (asks every endpoint that has a key)

        provider, _, name = model.partition(":")
        try:
            found = await models(provider, self.conversation.app.settings, is_live=True)
        except TalariaError:
            return
        if found.problem is None and not any(one.name == name and one.is_listed for one in found.models):
            self.say(f"{model} is not in its endpoint's list of models; run `/model` to choose from that list.")

    async def _run_interruptible(self, work: Coroutine[Any, Any, int | None]) -> int | None:
        """Returns when the work is done or stopped."""
        self._stops = 0
        self._working = task = asyncio.create_task(work, name="line")
        try:
            await asyncio.wait([task])
        finally:
            self._working = None
            self.end_view()
        if task.cancelled():
            self.say(INTERRUPTED)
            return exits.INTERRUPTED
        return task.result()

    # What the person does

    def submit(self, text: str) -> None:
        line = self.conversation.parse(text)

        async def handle_now() -> None:
            self.echo(text)
            if await self.conversation.handle_line(line) is None:
                self.leave()

        if isinstance(line.parsed, GivenCommand) and line.parsed.command.name in URGENT and self._is_busy:
            self._start_task(handle_now())
        elif self._busy_mode == "steer" and not text.startswith("/"):
            self.steer(text)
        else:
            if self._busy_mode == "interrupt" and self._is_busy:
                self.stop()
            self._enqueue(line)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the line that is being handled."""
        task = asyncio.create_task(work, name="command")
        self._side_tasks.add(task)
        task.add_done_callback(self._side_tasks.discard)

    def queue(self, text: str) -> None:
        self._enqueue(self.conversation.parse(text))

    def _enqueue(self, line: TypedLine) -> None:
        """While a turn runs, a message goes into the store. What comes after a command, or takes an attachment along,
        waits here."""
        queued, conversation = self._queued, self.conversation
        is_waiting = queued is not None and (
            bool(queued.rows) or self._is_other_running or conversation.live.running is not None
        )
        match line.parsed:
            case PlainMessage(text) if (
                queued is not None
                and queued.session == conversation.session
                and is_waiting
                and not self._queue
                and not conversation.has_attachments
            ):
                self._start_task(self._send(queued, line, text))
            case _:
                self._queue.append(line)
                self._on_queue_change()

    async def _send(self, queued: QueuedLines, line: TypedLine, text: str) -> None:
        try:
            await queued.send(text)
        except TalariaError as fault:
            self.say_failure(f"{fault} This line is lost if the terminal is closed: {line.text}")
            self._queue.append(line)
            self._on_queue_change()

    def _on_queue_change(self) -> None:
        self._has_line.set()
        self._show_counts()

    @property
    def queued_labels(self) -> Sequence[str]:
        return [*(self._queued.labels if self._queued else ()), *super().queued_labels]

    def steer(self, text: str) -> None:
        running = self.conversation.live.running
        if running is not None and running.steer(text):
            if self._others is None:
                self.show_note(text)
            else:
                self._others.show_own_note(text)
        elif self._others is not None and self._others.is_running:
            self._start_task(self._others.steer(text))
        else:
            self.queue(text)

    def interrupt(self) -> None:
        """Ctrl-C: the first stops the turn and puts messages queued here back on the input line, the second leaves. It
        does not stop a turn of another process: there, it first takes those messages back."""
        now = self._clock.monotonic()
        is_again = now - self._stopped_at < REPEAT_S
        self._stopped_at = now
        if not self._is_busy or self._is_other_running:
            if is_again:
                self.leave()
            elif self._queue or (self._queued and self._queued.own):
                self._take_back()
            else:
                others = "This turn runs in another process; /stop stops it. " if self._is_other_running else ""
                self.say(f"{others}Press Ctrl-C again, or Ctrl-D, to quit.")
            return
        self._stops += 1
        if self._stops > 1:
            self.leave()
            return
        self._take_back()
        self.stop()

    def _take_back(self) -> None:
        """What was queued here comes back to the input line."""
        rows = self._queued.own if self._queued else ()
        lines = self._empty_queue(rows)
        messages = [line for line, parsed in lines if isinstance(parsed, PlainMessage)]
        if commands := [line for line, parsed in lines if not isinstance(parsed, PlainMessage)]:
            self.say(f"Dropped: {', '.join(commands)}")

        async def put_back() -> None:
            taken = [f"/{one.text}" if one.text.startswith("/") else one.text for one in await self._settle(rows)]
            if taken or messages:
                self._screen.prepend("\n".join([*taken, *messages]))

        self._start_task(put_back())

    def _empty_queue(self, rows: Sequence[Signal]) -> Sequence[TypedLine]:
        """From now on, nothing of it is asked here. Returns what was not in the store; `_settle` is for the rows."""
        lines = list(self._queue)
        self._queue.clear()
        if self._queued is not None:
            self._queued.ignore(rows)
        self._show_counts()
        return lines

    async def _settle(self, rows: Sequence[Signal]) -> Sequence[Signal]:
        """Those of them that nobody has asked, and nobody will."""
        try:
            return await self._queued.take_back(rows) if self._queued else ()
        except TalariaError as fault:
            self.say_failure(f"{fault} What was queued may still be asked.")
            return ()

    async def stop_all(self) -> tuple[bool, int]:
        """Stop the turn, and take back all that is queued in the conversation; whether one ran, and how many lines."""
        rows = self._queued.rows if self._queued else ()
        lines = self._empty_queue(rows)
        is_stopping = self.stop()
        return is_stopping, len(lines) + len(await self._settle(rows))

    def stop(self) -> bool:
        """Returns False if nothing is running."""
        running = self.conversation.live.running
        if running is not None and running.interrupt():
            return True
        if self._others is not None and self._others.is_running:
            self._start_task(self._others.stop())
            return True
        working = self._working
        return working is not None and working is not asyncio.current_task() and working.cancel()

    def leave(self) -> None:
        self._is_leaving = True
        self._queue.clear()
        self._has_line.set()
        if self._is_busy and not self._is_other_running:
            self.stop()
            self.end_view()

            def abandon() -> None:
                if (running := self.conversation.live.running) is not None:
                    running.abandon()

            asyncio.get_running_loop().call_later(LEAVE_TIMEOUT_S, abandon)
        self._screen.close()

    # The status line

    @property
    def conversation(self) -> Conversation:
        assert self._conversation is not None  # noqa: S101  (only used once it is open)
        return self._conversation

    @property
    def _is_busy(self) -> bool:
        return self._working is not None or self.is_turn_shown

    def _show_counts(self) -> None:
        self._screen.status = self._screen.status._replace(
            waiting=len(self.queued_labels), background=self.background.running
        )
        self._screen.redraw()

    async def _update_status(self) -> None:
        if self._suggestions is not None:
            await self._suggestions.refresh()
        conversation = self.conversation
        row = await conversation.app.store.sessions.get(conversation.session)
        spent = total(
            [one for one in await conversation.app.store.spending.usage("session") if one.key == conversation.session]
        )
        self._screen.status = self._screen.status._replace(
            model=conversation.model,
            title=readable(row.title or "") if row else "",
            session=str(conversation.session),
            cost=cost_phrase(spent) if spent.calls and spent.unpriced_calls < spent.calls else "",
            sandbox=await in_thread(conversation.app.sandbox_level),
        )
        self._show_counts()


class BackgroundSessions:
    """Side conversations. Each is asked one question, and its answer is printed when it is done."""

    def __init__(self, screen: Screen, on_change: Callable[[], None]) -> None:
        self._screen = screen
        self._on_change = on_change
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._count = 0

    @property
    def running(self) -> int:
        return len(self._tasks)

    def start(self, live: LiveSession, text: str) -> int:
        """Returns its number."""
        self._count += 1
        number = self._count
        self._tasks[number] = asyncio.create_task(self._run(number, live, text), name=f"background {number}")
        self._on_change()
        return number

    async def close(self) -> None:
        """Stop all of them; they can be resumed."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def _run(self, number: int, live: LiveSession, text: str) -> None:
        try:
            report = await live.ask(user(text))
            name = " ".join(readable(text).split())[:_NAME_CHARS]
            head = style(f"Background #{number}: {name}", BOLD) + style(f"  /resume {live.id} opens it", DIM)
            failure = style(readable(str(report.error or "It was stopped.")), RED)
            body = render_document(report.text, self._screen.columns) if report.text else failure
            self._screen.print(f"\n{head}\n\n{body}\n")
        except TalariaError as error:
            self._screen.print(style(f"Background #{number}: {readable(str(error))}", RED))
        finally:
            del self._tasks[number]
            self._on_change()
            await live.close()


class ScreenCommands:
    """The slash commands that only the screen has."""

    def __init__(self, chat: ChatScreen) -> None:
        self._chat = chat

    def commands(self) -> tuple[Command, ...]:
        return tuple(spec.command(getattr(self, f"_{spec.name}")) for spec in SCREEN_COMMANDS)

    async def _stop(self, _: Chat, __: str) -> Outcome:
        is_stopping, dropped = await self._chat.stop_all()
        queued = f" Dropped {dropped} queued message{'' if dropped == 1 else 's'}." if dropped else ""
        return Say(f"{'Stopping.' if is_stopping else 'Nothing is running.'}{queued}")

    async def _queue(self, _: Chat, text: str) -> Outcome:
        self._chat.queue(_require(text, "queue"))
        return None

    async def _steer(self, _: Chat, text: str) -> Outcome:
        self._chat.steer(_require(text, "steer"))
        return None

    async def _background(self, _: Chat, text: str) -> Outcome:
        question = _require(text, "background")
        number = self._chat.background.start(self._chat.conversation.new_background_session(), question)
        return Say(f"Background #{number} started.")

    async def _export(self, _: Chat, file: str) -> Outcome:
        return Say(await self._chat.conversation.export(file))

    async def _details(self, _: Chat, __: str) -> Outcome:
        self._chat.show_details()
        return None

    async def _approve(self, _: Chat, __: str) -> Outcome:
        return Say("Answer a question where it is shown: choose with ↑↓ or a letter, then press Enter.")

    async def _deny(self, chat: Chat, text: str) -> Outcome:
        return await self._approve(chat, text)

    async def _sethome(self, _: Chat, __: str) -> Outcome:
        return Say("Send /sethome in the chat that should be your home chat, for example on Telegram.")


def _require(text: str, command: str) -> str:
    if not text:
        raise BadInput(f"/{command} needs a message: /{command} TEXT")
    return text


async def pick_argument(line: TypedLine, conversation: Conversation, screen: Screen) -> TypedLine | None:
    """If a command needs an argument, let the person choose it from a list. None if they cancelled."""
    if not isinstance(line.parsed, GivenCommand) or line.parsed.argument:
        return line
    command = line.text.rstrip()
    match line.parsed.command.name:
        case "resume" | "sessions":
            title, items = "Which conversation?", list[MenuItem]()
            for row in await conversation.sessions(MAX_SESSIONS):
                name = f"{row.title or row.preview or '(empty)'}{' (interrupted)' if row.open_turn else ''}"
                label = f"{show_time(row.updated_at)}  {name}"
                about = f"{row.preview}\n{row.message_count} messages · {row.model} · {row.cwd} · {row.id}"
                if row.id != conversation.session:
                    items.append(MenuItem(str(row.id), label, about, searched=about))
            command = "/resume"
        case "model":
            title, items = f"Which model? (now {conversation.model})", await _model_items(conversation)
        case _:
            return line
    if not items:
        return conversation.parse(command)
    chosen = await screen.ask(Menu(title, items, mode="search"))
    return conversation.parse(f"{command} {chosen}") if chosen else None


async def _model_items(conversation: Conversation) -> list[MenuItem]:
    from talaria.cli.model_status import usable_models  # noqa: PLC0415  (asks every endpoint that has a key)

    names = await usable_models(conversation.app.settings)
    now = conversation.model
    return [MenuItem(name, f"{name}{'  (in use)' if name == now else ''}") for name in names]


class ArgumentSuggestions:
    """Suggests arguments of commands, as far as they are known without waiting."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._known: dict[str, list[Suggestion]] = {}
        self._asking: asyncio.Task[None] | None = None

    def suggest(self, command: str) -> Sequence[Suggestion]:
        async def add_models() -> None:
            self._known["model"] = [Suggestion(one.value) for one in await _model_items(self._conversation)]

        if command == "model" and self._asking is None:  # only asked once, when first needed
            self._asking = asyncio.get_running_loop().create_task(add_models())
        return self._known.get(command, ())

    async def refresh(self) -> None:
        rows = await self._conversation.sessions(MAX_SESSIONS)
        self._known["resume"] = [Suggestion(row.title or str(row.id), row.preview) for row in rows]
        self._known["handoff"] = [Suggestion(name) for name in self._conversation.app.settings.config.gateway.platforms]
