"""A live session: one conversation, one turn at a time, under an epoch of this process."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from talaria.agent import interrupted
from talaria.agent.compaction import shorten
from talaria.agent.hooks import Hooks, Leaving, NoHooks
from talaria.agent.loop import run_turn
from talaria.agent.tool_calls import run_calls
from talaria.agent.turn import Turn
from talaria.context.base import CompactionRequest, ContextKeeper
from talaria.core.aio import complete, in_thread
from talaria.core.clock import Clock
from talaria.core.entries import Effort, EffortChanged, Undone
from talaria.core.errors import ModelCorrectable, SessionBusy
from talaria.core.events import Event, TurnBegan
from talaria.core.ids import Epoch, InboxId, OwnerId, SessionId, TurnId, new_turn_id
from talaria.core.messages import Assistant, ToolCall, User
from talaria.core.redaction import Redactor
from talaria.providers.base import prompt_tokens
from talaria.providers.upstream import Upstream
from talaria.runtime import session_config
from talaria.runtime.lease import NEVER_HELD, SessionLease, SessionState
from talaria.runtime.recorder import Observer, Recorder
from talaria.runtime.services import SessionResources, SessionServices
from talaria.runtime.session_config import Asker, SessionConfig, TurnMail, TurnOptions
from talaria.runtime.transcript import Transcript
from talaria.runtime.turn_runner import Report, RunningTurn, TurnFactory, TurnRunner, closing
from talaria.store.base import Session, Store
from talaria.store.chat_ports import InboxDone, InboxTaken
from talaria.tools.base import AfterCrash, Gate
from talaria.tools.executor import Executor
from talaria.tools.person import Person
from talaria.tools.registry import Toolbox

if TYPE_CHECKING:
    from talaria.context.engine import HostedEngine

T = TypeVar("T")
Work = Callable[[Turn, Recorder, Executor], Awaitable[Assistant]]


def ignore(_: Event) -> None:
    """The observer of those who do not watch."""


class LiveSession:
    def __init__(
        self,
        id: SessionId,
        *,
        row: Session | None,
        setup: SessionConfig,
        store: Store,
        owner: OwnerId,
        upstream: Upstream,
        toolbox: Toolbox,
        gate: Gate,
        clock: Clock,
        keeper: ContextKeeper | None = None,
        hooks: Hooks | None = None,
        person: Person | None = None,
        belongings: SessionResources | None = None,
        redactor: Redactor | None = None,
        terms: TurnOptions | None = None,
        leaves_mail: bool = True,
    ) -> None:
        """`row` is None for a conversation that has not begun: it is written with the first message."""
        self.id = id
        self.terms = terms or TurnOptions()
        """Of the next turn."""
        self._setup = setup
        self._journal = store.journal
        self._clock = clock
        redactor = redactor or Redactor()
        self._standing = SessionState(SessionLease(id, store, owner, row, leaves_mail=leaves_mail), store.journal)
        self.companions = SessionServices(
            id,
            setup,
            toolbox,
            gate=gate,
            person=person,
            keeper=keeper,
            hooks=hooks,
            belongings=belongings,
            redactor=redactor,
        )
        self._begin: TurnFactory | None = TurnFactory(
            setup,
            self._standing,
            self.companions,
            upstream=upstream,
            spending=store.spending,
            owner=owner,
            clock=clock,
            redactor=redactor,
        )
        """None: the session is released."""
        self._is_busy = False
        self._running: RunningTurn | None = None

    async def ask(self, message: User, observer: Observer = ignore, letter: TurnMail | None = None) -> Report:
        """Take a message as a turn and run it to its end. A turn that a crash left open is closed first.

        Raises `SessionBusy` when another turn or another process has the session; the message is then not taken.
        """
        async with self._at_work() as left:
            turn, recorder = await self._begun(left, message, observer, letter)
            report = await self._run(turn, recorder, self._answer, letter)
            await self._told_of(turn, message.text, report)
            return report

    async def _begun(
        self, left: Epoch | None, message: User, observer: Observer, letter: TurnMail | None
    ) -> tuple[Turn, Recorder]:
        """A turn that is on the disk; in one commit with the hold on the session, where that can be."""
        news: list[str] = []
        begin = self._beginning
        if await complete(self._standing.begun(begin.row)):
            left = NEVER_HELD
        if left is not None and not self._tenure.is_held and self._is_alone:
            recorder = begin.recorder(Epoch(left + 1), observer)
            news += self.companions.take_news(self._view.history)
            turn, opening = await begin.opening(message, recorder, letter, news, self.terms)
            if await self._closed_if_cancelled(recorder.begin(*opening), turn, recorder, letter):
                return turn, recorder
        recorder = begin.recorder(await complete(self._standing.hold(left, begin.row)), observer)
        if self._view.open_turn is not None:
            await self._give_up(self._view.open_turn, recorder)
        news += self.companions.take_news(self._view.history)
        turn, opening = await begin.opening(message, recorder, letter, news, self.terms)
        await self._closed_if_cancelled(recorder.record(*opening), turn, recorder, letter)
        return turn, recorder

    @property
    def _is_alone(self) -> bool:
        """Nobody else hears of turns, so nothing is done before and after them that needs the hold."""
        return type(self.companions.hooks) is NoHooks

    async def _closed_if_cancelled(
        self, opening: Awaitable[T], turn: Turn, recorder: Recorder, letter: TurnMail | None
    ) -> T:
        try:
            return await opening
        except asyncio.CancelledError:
            if self._tenure.is_held:
                await complete(self._runner(turn, recorder, letter).interrupted())
            raise

    async def resume(self, observer: Observer = ignore, letter: TurnMail | None = None) -> Report | None:
        """Finish the turn that a crash left open; None if there is none. `letter` is what that turn had taken."""
        if self._tenure.row is None:
            return None
        async with self._seized() as epoch:
            if self._view.open_turn is None:
                return None
            recorder = self._beginning.recorder(epoch, observer)
            turn = self._beginning.turn(self._view.open_turn, recorder, self.terms)
            turn.budget.carry(self._view.usage, self._setup.route.primary)
            report = await self._run(turn, recorder, self._go_on, letter)
            await self._told_of(turn, self._standing.last_asked, report)
            return report

    async def _told_of(self, turn: Turn, asked: str, report: Report) -> None:
        """The turn has ended: who does not want to wait for others misses nothing."""
        with suppress(asyncio.CancelledError):
            await turn.tell_of_answers()
            await turn.hooks.after_turn(turn.facts, asked, report.text, tuple(self._view.history), report.outcome)

    async def compact(self, observer: Observer = ignore, *, focus: str = "", keep_last: int | None = None) -> str:
        """Make the conversation shorter for the model, as the person wishes.

        What was done, in a sentence; empty: there is nothing to leave out.
        """
        if self._tenure.row is None:
            return ""
        async with self._seized() as epoch:
            recorder = self._beginning.recorder(epoch, observer)
            turn = self._beginning.turn(new_turn_id(), recorder, self.terms)
            tokens = prompt_tokens(turn.view())
            threshold = turn.walk.endpoint.compact_at or tokens
            return await shorten(
                turn, CompactionRequest(tokens, threshold, focus, keep_last, is_asked_for=True), recorder
            )

    async def last_turn(self) -> TurnId | None:
        """That has not been taken back."""
        await self.catch_up()
        return self._view.last_turn

    async def undo(self, only: TurnId | None = None) -> str | None:
        """Take the last turn back; the person's words in it, or None if there is no turn left.

        `only` this one: None, and nothing happens, if another came after it.
        """
        if self._tenure.row is None:
            return None
        async with self._seized() as epoch:
            recorder = self._beginning.recorder(epoch, ignore)
            turn = self._view.last_turn
            if turn is None or turn != (only or turn):
                return None
            if self._view.open_turn is not None:
                await self._give_up(self._view.open_turn, recorder)
            asked = await self._standing.asked_in(turn)
            await recorder.record(Undone(turn))
            await self._standing.look_anew()
            if self.companions.keeper is not None:
                await self.companions.keeper.reset()  # what was counted is not there any more
            return asked

    async def own_effort(self) -> Effort | None:
        """How hard the model thinks in this conversation; None: as the settings say."""
        await self.catch_up()
        return self._view.effort

    async def set_effort(self, effort: Effort | None) -> None:
        """From the next turn on, also in another process. A conversation that has not begun begins with this."""
        async with self._seized() as epoch:
            await self._beginning.recorder(epoch, ignore).record(EffortChanged(effort))

    async def hand_over(self, successor: "LiveSession", *, carry_over: bool = False) -> None:
        """Leave this conversation for another: what keeps the context ends here and begins there.

        `carry_over`: it is the same conversation that goes on.
        """
        async with self._left():
            await self.companions.hand_over(successor.companions, tuple(self._view.history), carry_over=carry_over)

    def abandon(self) -> bool:
        """Leave the running turn as it is on the disk: `resume` goes on with it. False if none is running."""
        return self._running is not None and self._running.abandon()

    def release(self) -> None:
        """Let go of what costs memory or a connection; the shell, processes and browser stay. Not used again after."""
        self.check_idle()
        self._begin = None
        self._standing.forget()

    def replace(self, predecessor: "LiveSession") -> None:
        """Stand in its place, with the hold that it has on the conversation; it is released."""
        predecessor.release()
        self._standing.tenure = predecessor._standing.tenure  # noqa: SLF001  (of its own kind)

    async def catch_up(self) -> None:
        """Know all that was said, as if it had been said here: whoever hears of the end hears of everything."""
        if self._tenure.row is None:
            return
        with self.serving():
            await self.companions.equip()
        await self._standing.read_on()

    @property
    def setup(self) -> SessionConfig:
        return self._setup

    @property
    def is_busy(self) -> bool:
        """In the middle of a turn, or of another change of the conversation."""
        return self._is_busy

    @property
    def is_in_hand(self) -> bool:
        """Busy, or holding the conversation because mail for the next turn is there."""
        return self._is_busy or self._tenure.is_held

    @property
    def is_released(self) -> bool:
        return self._begin is None

    @property
    def _beginning(self) -> TurnFactory:
        if self._begin is None:
            raise RuntimeError(f"session {self.id} was released")
        return self._begin

    @property
    def _tenure(self) -> SessionLease:
        return self._standing.tenure

    @property
    def _view(self) -> Transcript:
        return self._standing.view

    @property
    def turn(self) -> TurnId | None:
        """The one that runs."""
        return self._running.turn.id if self._running else None

    @property
    def asker(self) -> str:
        """Whose turn runs; while none does, for whom the session was made."""
        asker = self._running.asker if self._running else None
        return asker.id if asker else self._setup.person

    async def let_go(self) -> None:
        """Another process may run the conversation now."""
        if not self._is_busy:
            await self._let_go()

    async def close(self, reason: Leaving = "end") -> None:
        """The conversation is left; it can be opened again."""
        async with self._left():
            await self.companions.close(tuple(self._view.history), reason)

    @asynccontextmanager
    async def _left(self) -> AsyncGenerator[None]:
        """Not in the middle of a turn, and with nothing of it in our hands afterwards."""
        self.check_idle()
        try:
            with self.serving():
                yield
        finally:
            await complete(self._tenure.let_go(leaves_mail=True))

    def check_idle(self) -> None:
        """Raises `SessionBusy`."""
        if self._is_busy:
            raise SessionBusy(f"Session {self.id} is still working on the last message.")

    async def context_status(self) -> dict[str, Any]:
        """What is known of how full the model's window is."""
        return await self.companions.status()

    async def engine(self) -> "HostedEngine | None":
        """As `ContextKeeper.engine`. Raises `SessionBusy`."""
        self.check_idle()
        with self.serving():
            return await self.companions.engine()

    def steer(self, text: str, mail: InboxId | None = None) -> bool:
        """Put a note before the model at the next round of the running turn; False if none is running.

        `mail` is the message that it is: done when the model reads it, and still to be answered if it never does.
        """
        if self._running is None:
            return False
        turn = self._running.turn
        return turn.steer(text, () if mail is None else (InboxTaken(turn.id, (mail,)), InboxDone((mail,))))

    def forget_steering(self) -> None:
        if self._running is not None:
            self._running.turn.forget_steering()

    def interrupt(self) -> bool:
        """Stop the running turn; its report says so. False if none is running."""
        return self._running is not None and self._running.stop()

    async def _answer(self, turn: Turn, recorder: Recorder, executor: Executor) -> Assistant:
        return await run_turn(turn, tools=executor, sink=recorder, rounds_used=self._view.rounds)

    async def _go_on(self, turn: Turn, recorder: Recorder, executor: Executor) -> Assistant:
        history = self._view.history
        answer, open_calls = history.open_answer, history.open_calls
        rows = await self._journal.calls(self.id, turn.id)
        before = [row.call for row in rows if row.state != "intent"]
        await in_thread(lambda: executor.remember(before))
        if answer is not None:
            verdicts = interrupted.resume(
                [row for row in rows if row.call.id in open_calls], self._declared, self._clock.now()
            )
            await run_calls(answer, turn, executor, recorder, verdicts)
        return await self._answer(turn, recorder, executor)

    async def _give_up(self, turn: TurnId, recorder: Recorder) -> None:
        await recorder.record(
            *closing(
                turn,
                "interrupted",
                history=self._view.history,
                rows=await self._journal.calls(self.id, turn),
                usage=self._view.usage,
            )
        )

    def _runner(self, turn: Turn, recorder: Recorder, letter: TurnMail | None) -> TurnRunner:
        parting = (self._tenure.leaving,) if self._is_alone else ()
        return TurnRunner(turn, self.id, self._view, self._journal, recorder, letter, parting)

    async def _run(self, turn: Turn, recorder: Recorder, work: Work, letter: TurnMail | None) -> Report:
        runner = self._runner(turn, recorder, letter)
        endpoint = turn.walk.endpoint
        recorder.emit(TurnBegan(self.id, turn.id, endpoint.label, endpoint.window, endpoint.compact_at))
        asker = letter.asker if letter else None
        executor = self.companions.executor(self._view, turn.id, asker)
        self._running = RunningTurn(turn, recorder, runner, lambda: work(turn, recorder, executor), asker)
        try:
            return await self._running.ended()
        finally:
            self._running = None

    @asynccontextmanager
    async def _at_work(self) -> AsyncGenerator[Epoch | None]:
        """One at a time, and nothing of it is held afterwards. Yields the epoch up to which all is known."""
        self.check_idle()
        self._is_busy = True
        left = self._standing.enter()
        try:
            with self.serving():
                await self.companions.equip()
                yield left
                self._standing.leave()
        finally:
            self.companions.end_turn()
            try:
                await self._let_go()
            finally:
                self._is_busy = False

    @asynccontextmanager
    async def _seized(self) -> AsyncGenerator[Epoch]:
        """The session in our hands, and its view up to date with what other processes wrote."""
        async with self._at_work() as left:
            yield await complete(self._standing.hold(left, self._beginning.row))

    async def _let_go(self) -> None:
        if self._tenure.is_held:
            await complete(self._tenure.let_go())

    def _executor(self, asker: Asker | None) -> Executor:
        """For code that is called meanwhile: its calls are part of the turn that runs."""
        running = self._running
        asker = asker or (running.asker if running else None)
        return self.companions.executor(self._view, running.turn.id if running else "", asker)

    @contextmanager
    def serving(self, asker: Asker | None = None) -> Generator[None]:
        """So that code which is called meanwhile knows for whom: for `asker`, or for whose turn it is."""
        facts = self.companions.facts()
        person = asker.id if asker else facts.person
        token = session_config.serving.set(
            session_config.Serving(self.id, facts.conversation, facts.platform, person, lambda: self._executor(asker))
        )
        try:
            yield
        finally:
            session_config.serving.reset(token)

    def _declared(self, call: ToolCall) -> AfterCrash:
        try:
            return self.companions.toolbox.find(call.name).after_crash
        except ModelCorrectable:
            return "once"
