"""The talk on the screen: lines are heeded one after the other, and the person can step in.

Conversations beside the one on the screen: each is asked once, and reports when it is done.
The slash commands that only the screen has: what can be done while a turn runs, and beside it.
"""

import asyncio
import shlex
from collections.abc import Callable, Coroutine
from typing import Any, Literal, Protocol

from talaria.cli import context, exits
from talaria.cli.conversation import INTERRUPTED, Conversation, open_conversation
from talaria.cli.options import CliOptions
from talaria.cli.safe import readable, visible
from talaria.cli.screen import pickers
from talaria.cli.screen.completing import LineCompleter, Suggestion, Typed
from talaria.cli.screen.painting import BOLD, DIM, RED, document, styled, warm_up
from talaria.cli.screen.screen import Screen
from talaria.cli.screen.screen_interface import ScreenFront
from talaria.core.aio import in_thread
from talaria.core.clock import SystemClock
from talaria.core.errors import BadInput, TalariaError
from talaria.core.messages import user
from talaria.runtime.accounts import cost_phrase, total
from talaria.runtime.chat import Chat, Reason
from talaria.runtime.commands import SCREEN_COMMANDS, Command, GivenCommand, Outcome, PlainMessage, Say
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


class Steered(Protocol):
    """A talk, as far as one can step in."""

    @property
    def conversation(self) -> Conversation: ...
    @property
    def asides(self) -> Asides: ...
    def stop(self) -> bool:
        """False: nothing runs."""
        ...

    def forget_lines(self) -> int:
        """How many waited."""
        ...

    def enqueue(self, text: str) -> None: ...
    def steered(self, text: str) -> None: ...
    def wants_details(self) -> None: ...


class ScreenCommands:
    def __init__(self, talk: Steered) -> None:
        self._talk = talk

    def all(self) -> tuple[Command, ...]:
        return tuple(spec.command(getattr(self, f"_{spec.name}")) for spec in SCREEN_COMMANDS)

    async def _stop(self, _: Chat, __: str) -> Outcome:
        dropped = self._talk.forget_lines()
        waited = f" {dropped} waiting message(s) dropped." if dropped else ""
        return Say(f"{'Stopping.' if self._talk.stop() else 'Nothing runs.'}{waited}")

    async def _queue(self, _: Chat, text: str) -> Outcome:
        if not text:
            raise BadInput("/queue needs words.")
        self._talk.enqueue(text)
        return None

    async def _steer(self, _: Chat, text: str) -> Outcome:
        if not text:
            raise BadInput("/steer needs words.")
        self._talk.steered(text)
        return None

    async def _background(self, _: Chat, text: str) -> Outcome:
        if not text:
            raise BadInput("/background needs words.")
        number = self._talk.asides.begin(self._talk.conversation.aside(), text)
        return Say(f"Background #{number} has begun.")

    async def _export(self, _: Chat, file: str) -> Outcome:
        return Say(await self._talk.conversation.export(file))

    async def _details(self, _: Chat, __: str) -> Outcome:
        self._talk.wants_details()
        return None

    async def _approve(self, _: Chat, __: str) -> Outcome:
        return Say("A question that waits stands in place of the line: choose with ↑↓ or a letter, then Enter.")

    async def _deny(self, chat: Chat, text: str) -> Outcome:
        return await self._approve(chat, text)

    async def _sethome(self, _: Chat, __: str) -> Outcome:
        return Say("/sethome is said in the chat that should be home, such as on Telegram.")


LEAVING_S = 5.0
AGAIN_S = 2.0
URGENT = frozenset(
    {"stop", "steer", "queue", "status", "usage", "help", "tools", "background", "approve", "deny", "details", "quit"}
    | {"sandbox"}  # what is revoked is closed for what runs
    | {"handoff"}  # which says that it cannot be done now
)
"""Heeded at once, also while a turn runs."""


class ChatScreen(ScreenFront):
    def __init__(
        self, screen: Screen, completer: LineCompleter, typed: Typed, profile: str | None, options: CliOptions
    ) -> None:
        super().__init__(screen, SystemClock())
        self._completer = completer
        self._typed = typed
        self._profile = profile
        self._options = options
        self.last_words = ""
        """For when the screen is closed."""
        self._news = asyncio.Event()
        self._conversation: Conversation | None = None
        self._asides = Asides(screen, self._refreshed)
        self._stops = 0
        self._stopped_at = -AGAIN_S
        self._is_leaving = False
        self._is_clearing = False
        """The line that is heeded wants an empty screen."""
        self._busy_mode: Literal["queue", "steer", "interrupt"] = "queue"
        self._working: asyncio.Task[int | None] | None = None
        self._arguments: pickers.Arguments | None = None
        self._at_once: set[asyncio.Task[None]] = set()

    async def run(self, hand_over: "Callable[[ChatScreen], None]") -> int:
        """Until the person leaves; the exit code."""
        settings = await in_thread(lambda: context.settings_of(self._profile))
        self._typed.redacted = settings.redactor.text
        self._busy_mode = settings.config.display.busy_mode
        self._screen.use_theme(settings.config.display.theme)
        self._screen.steer_with(settings.config.display.steer_key)
        async with open_conversation(settings, self._options, self) as conversation:
            self._conversation = conversation
            for command in ScreenCommands(self).all():
                conversation.app.commands.add(command)
            self._teach(conversation)
            ticking = asyncio.create_task(self.tick(), name="tick")
            try:
                hand_over(self)  # before the greeting: whoever sees it may press any key
                await conversation.greet()
                self._screen.print("")
                await self._refresh()
                await conversation.mention_sandbox()
                await in_thread(warm_up)
                if not self._is_leaving:
                    await self._interruptibly(conversation.finish_interrupted())
                await self._heed_all(conversation)
                return exits.DONE
            finally:
                ticking.cancel()
                self._screen.close()
                self.last_words = await _last_words(conversation)
                await in_thread(self._typed.trim)
                await self._asides.close()

    async def _heed_all(self, conversation: Conversation) -> None:
        while not self._is_leaving:
            if not self._lines:
                self._news.clear()
                await self._news.wait()
                continue
            line = self._lines.popleft()
            self._refreshed()
            line = await self._with_argument(line)
            self.echo(line)
            if line and await self._interruptibly(self._heed(conversation, line)) is None:
                break
            await self._refresh()

    async def _heed(self, conversation: Conversation, line: str) -> int | None:
        model = conversation.model
        given = conversation.app.commands.parse(line, "terminal")
        self._is_clearing = isinstance(given, GivenCommand) and given.command.name == "clear"
        code = await conversation.heed(line)
        if conversation.model != model:
            self._begin(self._doubt(conversation.model))
        return code if code is None else await conversation.heed_injected() or code

    def switched(self, reason: Reason) -> None:
        super().switched(reason)
        if self._is_clearing:
            self._screen.clear()

    async def _doubt(self, model: str) -> None:
        """It is taken all the same: not every endpoint lists all that it has."""
        if await pickers.is_unlisted(model, self.conversation):
            self.say(f"{model} is not in its endpoint's list of models; `/model` alone offers those.")

    async def _interruptibly(self, work: Coroutine[Any, Any, int | None]) -> int | None:
        """What a line brings about, until it is done or stopped."""
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

    async def _with_argument(self, line: str) -> str:
        """A command that needs to know which one asks for it."""
        given = self.conversation.app.commands.parse(line, "terminal")
        if not isinstance(given, GivenCommand) or given.argument:
            return line
        return await pickers.completed(given.command.name, line, self.conversation, self._screen)

    # What the person does

    def submitted(self, text: str) -> None:
        given = self.conversation.app.commands.parse(text, "terminal")
        if isinstance(given, GivenCommand) and given.command.name in URGENT and self._is_busy:
            self._begin(self._heed_at_once(text))
            return
        if self._busy_mode == "steer" and not text.startswith("/"):
            self.steered(text)
            return
        if self._busy_mode == "interrupt" and self._is_busy:
            self.stop()
        self.enqueue(text)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Whatever else is done."""
        task = asyncio.create_task(work, name="command")
        self._at_once.add(task)
        task.add_done_callback(self._at_once.discard)

    async def _heed_at_once(self, text: str) -> None:
        self.echo(text)
        if await self.conversation.heed(text) is None:
            self.left()

    def enqueue(self, text: str) -> None:
        self._lines.append(text)
        self._news.set()
        self._refreshed()

    def steered(self, text: str) -> None:
        running = self.conversation.live.running
        if running is not None and running.steer(text):
            self.note(text)
        else:
            self.enqueue(text)

    def interrupted(self) -> None:
        now = self._clock.monotonic()
        is_again = now - self._stopped_at < AGAIN_S
        self._stopped_at = now
        if not self._is_busy:
            if is_again:
                self.left()
            else:
                self.say("Ctrl-C again leaves; so does Ctrl-D.")
            return
        self._stops += 1
        if self._stops > 1:
            self.left()
            return
        self._give_back()
        self.stop()

    def stop(self) -> bool:
        """False: nothing runs."""
        running = self.conversation.live.running
        if running is not None and running.interrupt():
            return True
        working = self._working
        return working is not None and working is not asyncio.current_task() and working.cancel()

    def forget_lines(self) -> int:
        """How many waited."""
        count = len(self._lines)
        self._lines.clear()
        self._refreshed()
        return count

    def _give_back(self) -> None:
        """What waited comes back onto the line: whoever stops a turn does not want the next at once."""
        said = [line for line in self._lines if not self._is_command(line)]
        dropped = [line for line in self._lines if self._is_command(line)]
        self.forget_lines()
        if said:
            self._screen.put_before("\n".join(said))
        if dropped:
            self.say(f"Not done: {', '.join(dropped)}")

    def _is_command(self, line: str) -> bool:
        return not isinstance(self.conversation.app.commands.parse(line, "terminal"), PlainMessage)

    def left(self) -> None:
        self._is_leaving = True
        self._lines.clear()
        self._news.set()
        if self._is_busy:
            self.stop()
            self.end_view()
            asyncio.get_running_loop().call_later(LEAVING_S, self._leave_now)
        self._screen.close()

    def _leave_now(self) -> None:
        if (running := self.conversation.live.running) is not None:
            running.abandon()

    # What is known

    @property
    def conversation(self) -> Conversation:
        assert self._conversation is not None  # noqa: S101  (nobody hears us before)
        return self._conversation

    @property
    def asides(self) -> Asides:
        return self._asides

    @property
    def _is_busy(self) -> bool:
        return self._working is not None or self.is_showing

    def _refreshed(self) -> None:
        """What is known without asking anybody."""
        self._screen.status = self._screen.status._replace(waiting=len(self._lines), background=self._asides.running)
        self._screen.redraw()

    async def _refresh(self) -> None:
        if self._arguments is not None:
            await self._arguments.learn()
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
        self._refreshed()

    def _teach(self, conversation: Conversation) -> None:
        """The line knows commands now, and what some are given."""
        commands = conversation.app.commands
        self._completer.commands = lambda begun: [
            Suggestion(f"/{word} ", about) for word, about in commands.completions(begun)
        ]
        self._arguments = pickers.Arguments(conversation)
        self._completer.arguments = self._arguments.of


async def _last_words(conversation: Conversation) -> str:
    row = await conversation.app.store.sessions.get(conversation.session)
    if row is None:
        return ""
    is_typed_as_seen = row.title is not None and visible(row.title) == row.title
    return f"Go on with it: talaria -r {shlex.quote((row.title if is_typed_as_seen else None) or row.id)}"
