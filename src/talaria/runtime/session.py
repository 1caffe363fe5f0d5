"""A live session: one conversation, one turn at a time, under an epoch of this process."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from talaria.agent import interrupted
from talaria.agent.budget import Account, Budget
from talaria.agent.hooks import Hooks, Leaving, NoHooks
from talaria.agent.loop import run_turn
from talaria.agent.room import shorten
from talaria.agent.tool_calls import run_calls
from talaria.agent.turn import Turn
from talaria.agent.walk import Walk
from talaria.context.base import Keeper, Wish
from talaria.model.clock import Clock
from talaria.model.entries import MessageAdded, TurnStarted, Undone
from talaria.model.errors import ModelCorrectable, SessionBusy
from talaria.model.events import Event, Notice, TurnBegan
from talaria.model.ids import Epoch, InboxId, OwnerId, SessionId, TurnId, new_turn_id
from talaria.model.messages import Assistant, Context, ToolCall, User
from talaria.model.redaction import Redactor
from talaria.providers.size import prompt_tokens
from talaria.providers.upstream import Upstream
from talaria.runtime import current, prompt
from talaria.runtime.belongings import Belongings
from talaria.runtime.closing import closing
from talaria.runtime.companions import Companions
from talaria.runtime.letter import Letter
from talaria.runtime.recorder import Observer, Recorder
from talaria.runtime.setup import Setup, Terms
from talaria.runtime.spending import PatientSpending
from talaria.runtime.tenure import Tenure
from talaria.runtime.turn import Report, TurnRunner
from talaria.runtime.view import View, takes_back
from talaria.store.base import NewSession, Session, Store, Write
from talaria.store.mail import InboxDone, InboxTaken
from talaria.tools.approval import Gate
from talaria.tools.base import AfterCrash
from talaria.tools.executor import Executor
from talaria.tools.person import Person
from talaria.tools.registry import Toolbox
from talaria.waiting import completed, ended, in_thread

T = TypeVar("T")
NEVER_HELD = Epoch(0)
Work = Callable[[Turn, Recorder], Awaitable[Assistant]]


def ignore(_: Event) -> None:
    """The observer of those who do not watch."""


@dataclass(frozen=True, slots=True)
class _Running:
    """The turn under way."""

    turn: Turn
    recorder: Recorder
    task: "asyncio.Task[Report]"

    def stop(self) -> bool:
        self.recorder.hurry()
        return self.task.cancel()

    def abandon(self) -> bool:
        self.recorder.close()
        return self.task.cancel()


async def _ended(task: "asyncio.Task[Report]", runner: TurnRunner) -> Report:
    """How the turn ended, also if it was stopped before it took its first step."""
    await ended(task)
    return await runner.interrupted() if task.cancelled() else task.result()


def _teller(recorder: Recorder) -> Callable[[str], None]:
    return lambda text: recorder.emit(Notice(text))


class LiveSession:
    def __init__(
        self,
        id: SessionId,
        *,
        row: Session | None,
        setup: Setup,
        store: Store,
        owner: OwnerId,
        upstream: Upstream,
        toolbox: Toolbox,
        gate: Gate,
        clock: Clock,
        keeper: Keeper | None = None,
        hooks: Hooks | None = None,
        person: Person | None = None,
        belongings: Belongings | None = None,
        redactor: Redactor | None = None,
        terms: Terms | None = None,
        leaves_mail: bool = True,
    ) -> None:
        """`row` is None for a conversation that has not begun: it is written with the first message."""
        self.id = id
        self.terms = terms or Terms()
        """Of the next turn."""
        self._tenure = Tenure(id, store, owner, row, leaves_mail=leaves_mail)
        self._setup = setup
        self._store = store
        self._owner = owner
        self._upstream: Upstream | None = upstream
        self._clock = clock
        self._redactor = redactor or Redactor()
        self.companions = Companions(
            id,
            setup,
            toolbox,
            gate=gate,
            person=person,
            keeper=keeper,
            hooks=hooks,
            belongings=belongings,
            redactor=self._redactor,
        )
        self._view = View()
        self._left_at: Epoch | None = None
        """The epoch of the last turn, after which the view was complete; None: that is not known."""
        self._is_busy = False
        self._running: _Running | None = None

    async def ask(self, message: User, observer: Observer = ignore, letter: Letter | None = None) -> Report:
        """Take a message as a turn and run it to its end. A turn that a crash left open is closed first.

        Raises `SessionBusy` when another turn or another process has the session; the message is then not taken.
        """
        async with self._at_work() as left:
            turn, recorder = await self._begun(left, message, observer, letter)
            report = await self._run(turn, recorder, self._answer, letter)
            await self._told_of(turn, message.text, report)
            return report

    async def _begun(
        self, left: Epoch | None, message: User, observer: Observer, letter: Letter | None
    ) -> tuple[Turn, Recorder]:
        """A turn that is on the disk; in one commit with the hold on the session, where that can be."""
        news: list[str] = []
        if self._tenure.row is None and await completed(self._tenure.begin(self._new_row)):
            left = NEVER_HELD
        if left is not None and not self._tenure.is_held and self._is_alone:
            recorder = self._recorder(Epoch(left + 1), observer)
            news += self.companions.take_news(self._view.history)
            turn, opening = await self._prepared(message, recorder, letter, news)
            if await self._closed_if_cancelled(recorder.begin(*opening), turn, recorder, letter):
                return turn, recorder
        recorder = self._recorder(await completed(self._hold(left)), observer)
        if self._view.open_turn is not None:
            await self._give_up(self._view.open_turn, recorder)
        news += self.companions.take_news(self._view.history)
        turn, opening = await self._prepared(message, recorder, letter, news)
        await self._closed_if_cancelled(recorder.record(*opening), turn, recorder, letter)
        return turn, recorder

    @property
    def _is_alone(self) -> bool:
        """Nobody else hears of turns, so nothing is done before and after them that needs the hold."""
        return type(self.companions.hooks) is NoHooks

    async def _prepared(
        self, message: User, recorder: Recorder, letter: Letter | None, news: Sequence[str]
    ) -> tuple[Turn, Sequence[Write]]:
        """A turn, and what it begins with."""
        turn = self._new_turn(new_turn_id(), recorder)
        added = await turn.hooks.before_turn(turn.facts, message.text, tuple(self._view.history), _teller(recorder))
        in_context = self._in_context(message, (*added, *news))
        mail = letter.opening(turn.id) if letter else ()
        return turn, (TurnStarted(turn.id, self._setup.origin), MessageAdded(in_context), *mail)

    async def _closed_if_cancelled(
        self, opening: Awaitable[T], turn: Turn, recorder: Recorder, letter: Letter | None
    ) -> T:
        try:
            return await opening
        except asyncio.CancelledError:
            if self._tenure.is_held:
                await completed(self._runner(turn, recorder, letter).interrupted())
            raise

    async def resume(self, observer: Observer = ignore, letter: Letter | None = None) -> Report | None:
        """Finish the turn that a crash left open; None if there is none. `letter` is what that turn had taken."""
        if self._tenure.row is None:
            return None
        async with self._seized() as epoch:
            if self._view.open_turn is None:
                return None
            recorder = self._recorder(epoch, observer)
            turn = self._new_turn(self._view.open_turn, recorder)
            turn.budget.carry(self._view.usage, self._setup.route.primary)
            report = await self._run(turn, recorder, self._go_on, letter)
            await self._told_of(turn, self._last_asked(), report)
            return report

    async def _told_of(self, turn: Turn, asked: str, report: Report) -> None:
        """The turn has ended: who does not want to wait for others misses nothing."""
        with suppress(asyncio.CancelledError):
            await turn.tell_of_answers()
            await turn.hooks.after_turn(turn.facts, asked, report.text, tuple(self._view.history), report.outcome)

    def _last_asked(self) -> str:
        said = [one for one in self._view.history if isinstance(one, User) and one.author == "person"]
        return said[-1].text if said else ""

    async def compact(self, observer: Observer = ignore, *, focus: str = "", keep_last: int | None = None) -> bool:
        """Make the conversation shorter for the model, as the person wishes. False: there is nothing to leave out."""
        if self._tenure.row is None:
            return False
        async with self._seized() as epoch:
            recorder = self._recorder(epoch, observer)
            turn = self._new_turn(new_turn_id(), recorder)
            tokens = prompt_tokens(turn.view())
            threshold = turn.walk.endpoint.compact_at or tokens
            return await shorten(turn, Wish(tokens, threshold, focus, keep_last, is_asked_for=True), recorder)

    async def undo(self) -> str | None:
        """Take the last turn back; the person's words in it, or None if there is no turn left."""
        if self._tenure.row is None:
            return None
        async with self._seized() as epoch:
            recorder = self._recorder(epoch, ignore)
            if self._view.open_turn is not None:
                await self._give_up(self._view.open_turn, recorder)
            turn = self._view.last_turn
            if turn is None:
                return None
            asked = await self._asked_in(turn)
            await recorder.record(Undone(turn))
            await self._look_anew()
            if self.companions.keeper is not None:
                await self.companions.keeper.reset()  # what was counted is not there any more
            return asked

    async def _asked_in(self, turn: TurnId) -> str:
        """What the person said at the beginning of a turn."""
        entries = [recorded.entry for recorded in await self._store.journal.entries(self.id)]
        start = next(
            index for index, entry in enumerate(entries) if isinstance(entry, TurnStarted) and entry.turn == turn
        )
        said = (entry.message for entry in entries[start:] if isinstance(entry, MessageAdded))
        return next((message.text for message in said if isinstance(message, User)), "")

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
        self._upstream = None
        self._view = View()

    def replace(self, predecessor: "LiveSession") -> None:
        """Stand in its place, with the hold that it has on the conversation; it is released."""
        predecessor.release()
        self._tenure = predecessor._tenure  # noqa: SLF001  (of its own kind)

    async def catch_up(self) -> None:
        """Know all that was said, as if it had been said here: whoever hears of the end hears of everything."""
        if self._tenure.row is None:
            return
        with self.serving():
            await self.companions.equip()
        await self._read_on()

    @property
    def setup(self) -> Setup:
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
        return self._upstream is None

    @property
    def turn(self) -> TurnId | None:
        """The one that runs."""
        return self._running.turn.id if self._running else None

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
            await completed(self._tenure.let_go(leaves_mail=True))

    def check_idle(self) -> None:
        """Raises `SessionBusy`."""
        if self._is_busy:
            raise SessionBusy(f"Session {self.id} is still working on the last message.")

    async def context_status(self) -> dict[str, Any]:
        """What is known of how full the model's window is."""
        return await self.companions.status()

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

    async def _answer(self, turn: Turn, recorder: Recorder) -> Assistant:
        return await run_turn(
            turn, tools=self.companions.executor(turn.id), sink=recorder, rounds_used=self._view.rounds
        )

    async def _go_on(self, turn: Turn, recorder: Recorder) -> Assistant:
        history = self._view.history
        answer, open_calls = history.open_answer, history.open_calls
        rows = await self._store.journal.calls(self.id, turn.id)
        executor = self.companions.executor(turn.id)
        before = [row.call for row in rows if row.state != "intent"]
        await in_thread(lambda: executor.remember(before))
        if answer is not None:
            verdicts = interrupted.resume(
                [row for row in rows if row.call.id in open_calls], self._declared, self._clock.now()
            )
            await run_calls(answer, turn, executor, recorder, verdicts)
        return await self._answer(turn, recorder)

    async def _give_up(self, turn: TurnId, recorder: Recorder) -> None:
        await recorder.record(
            *closing(
                turn,
                "interrupted",
                history=self._view.history,
                rows=await self._store.journal.calls(self.id, turn),
                usage=self._view.usage,
            )
        )

    def _runner(self, turn: Turn, recorder: Recorder, letter: Letter | None) -> TurnRunner:
        parting = (self._tenure.leaving,) if self._is_alone else ()
        return TurnRunner(turn, self.id, self._view, self._store.journal, recorder, letter, parting)

    async def _run(self, turn: Turn, recorder: Recorder, work: Work, letter: Letter | None) -> Report:
        """The turn in a task of its own, so that it can be stopped without stopping whoever asked."""
        runner = self._runner(turn, recorder, letter)
        endpoint = turn.walk.endpoint
        recorder.emit(TurnBegan(self.id, turn.id, endpoint.label, endpoint.window, endpoint.compact_at))
        task = asyncio.create_task(runner.run(lambda: work(turn, recorder)), name=f"turn {turn.id}")
        self._running = _Running(turn, recorder, task)
        try:
            await ended(task)
        except asyncio.CancelledError:
            self._running.stop()
            await completed(_ended(task, runner))
            raise
        finally:
            self._running = None
        return await completed(_ended(task, runner)) if task.cancelled() else task.result()

    @asynccontextmanager
    async def _at_work(self) -> AsyncGenerator[Epoch | None]:
        """One at a time, and nothing of it is held afterwards. Yields the epoch up to which all is known."""
        self.check_idle()
        self._is_busy = True
        left, self._left_at = self._left_at, None
        try:
            with self.serving():
                await self.companions.equip()
                yield left
                self._left_at = self._tenure.last if self._view.open_turn is None else None
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
            yield await completed(self._hold(left))

    async def _let_go(self) -> None:
        if self._tenure.is_held:
            await completed(self._tenure.let_go())

    def _executor(self) -> Executor:
        """For code that is called meanwhile: its calls are part of the turn that runs."""
        return self.companions.executor(self._running.turn.id if self._running else "")

    @contextmanager
    def serving(self) -> Generator[None]:
        """So that code which is called meanwhile knows for whom."""
        facts = self.companions.facts()
        token = current.serving.set(
            current.Serving(self.id, facts.conversation, facts.platform, facts.person, self._executor)
        )
        try:
            yield
        finally:
            current.serving.reset(token)

    async def _hold(self, left: Epoch | None) -> Epoch:
        epoch = await self._tenure.hold(self._new_row)
        if left is None or epoch > left + 1:  # nobody else had it, or it would have grown by more
            await self._read_on()
        return epoch

    async def _read_on(self) -> None:
        news = await self._store.journal.entries(self.id, self._view.last_seq)
        if self._view.last_seq == 0:
            self._view = View(news)
        elif takes_back(news):
            await self._look_anew()
        else:
            self._view.extend(news)

    async def _look_anew(self) -> None:
        self._view = View(await self._store.journal.entries(self.id))

    def _new_row(self) -> NewSession:
        row = NewSession(
            self.id,
            source=self._setup.origin,
            model=self._setup.route.primary.label,
            cwd=str(self._setup.cwd),
            person=self._setup.person,
            system_prompt=prompt.build(self._setup, self.companions.prompt),
            tools=self.companions.kept_specs(),
        )
        return self._redactor.value(row)

    def _new_turn(self, id: TurnId, recorder: Recorder) -> Turn:
        row = self._tenure.row
        assert row is not None  # noqa: S101  (made before any turn)
        upstream, setup, terms = self._upstream, self._setup, self.terms
        if upstream is None:
            raise RuntimeError(f"session {self.id} was released")
        spending = PatientSpending(self._store.spending, recorder)
        budget = Budget(terms.limits, Account(spending, self.id, self._owner, setup.person), self._clock)
        recorder.when_durable(budget.settle)
        self.companions.begin_turn(self._view.history, _teller(recorder))
        return Turn(
            id,
            session=self.id,
            system=row.system_prompt,
            tools=self.companions.specs(row.tools),
            history=self._view.history,
            walk=Walk(setup.route, upstream, terms.max_attempts),
            budget=budget,
            clock=self._clock,
            keeper=self.companions.keeper,
            hooks=self.companions.hooks,
            facts=self.companions.facts(id),
            compactions=self._view.compactions,
            max_rounds=terms.limits.max_rounds,
            effort=terms.effort,
            is_streaming=terms.is_streaming,
            redactor=self._redactor,
            news=lambda: self.companions.take_news(self._view.history),
        )

    def _recorder(self, epoch: Epoch, observer: Observer) -> Recorder:
        return Recorder(self._tenure, epoch, self._view, self._clock, observer, self._redactor)

    def _declared(self, call: ToolCall) -> AfterCrash:
        try:
            return self.companions.toolbox.find(call.name).after_crash
        except ModelCorrectable:
            return "once"

    def _in_context(self, message: User, added: Sequence[str]) -> User:
        """With the date in front whenever it is news to the model; the prompt itself never changes."""
        today = datetime.fromtimestamp(self._clock.now()).astimezone()
        is_news = today.date() != datetime.fromtimestamp(self._view.last_at).astimezone().date()
        front = (Context(f"[Today is {today:%A, %Y-%m-%d}.]"),) if is_news else ()
        behind = tuple(Context(text) for text in added)
        return msgspec.structs.replace(message, parts=(*front, *message.parts, *behind))
