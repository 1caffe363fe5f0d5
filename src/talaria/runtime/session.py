"""A live session: one conversation, one turn at a time, under an epoch of this process."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager

from talaria.agent.compaction import compact
from talaria.agent.hooks import LeaveReason
from talaria.context.base import CompactionRequest
from talaria.core.aio import complete
from talaria.core.entries import Effort, EffortChanged, Recorded, Undone
from talaria.core.errors import SessionBusy
from talaria.core.events import Event
from talaria.core.ids import Epoch, TurnId, new_turn_id
from talaria.core.messages import Assistant, User
from talaria.providers.base import prompt_tokens
from talaria.runtime.lease import NEVER_HELD, Observer, Recorder, SessionLease, SessionState
from talaria.runtime.process import ProcessServices
from talaria.runtime.session_config import (
    Asker,
    CurrentSession,
    SessionConfig,
    TurnMail,
    TurnOptions,
    current_session,
)
from talaria.runtime.session_services import SessionServices
from talaria.runtime.turn_runner import Report, RunningTurn, TurnFactory
from talaria.runtime.watching import Broadcast
from talaria.store.api_ports import HistoryPoint
from talaria.store.base import BrokenRuleError, Session
from talaria.store.signal_port import Signal
from talaria.tools.executor import Executor


def ignore(_: Event) -> None:
    """For callers who do not watch the turn."""


class LiveSession:
    def __init__(
        self,
        row: Session | None,
        services: SessionServices,
        process: ProcessServices,
        *,
        options: TurnOptions | None = None,
        leaves_mail: bool = True,
    ) -> None:
        """`row` is None for a conversation that has not begun: it is written with the first message.

        `options` are the defaults for turns that bring none.
        """
        self.id = services.session
        self.services = services
        self.running: RunningTurn | None = None
        """The turn that runs now: steer or stop it here."""
        self.is_busy = False
        """In the middle of a turn, or of another change of the conversation."""
        self._options = options or TurnOptions()
        self._links = process.links
        self._signals = process.store.signals
        self._broadcast: Broadcast | None = None
        """What others are told of the work that goes on."""
        lease = SessionLease(self.id, process.store, process.owner, row, leaves_mail=leaves_mail)
        self._state = SessionState(lease, process.store.journal)
        self._turns: TurnFactory | None = TurnFactory(
            self._state,
            services,
            store=process.store,
            owner=process.owner,
            upstream=process.upstream,
            clock=process.clock,
            watching=process.links.watching,
        )
        """None: the session is unloaded."""

    @property
    def config(self) -> SessionConfig:
        return self.services.config

    @property
    def last_seq(self) -> int:
        """The last entry of the journal that this process knows; 0: none."""
        return self._state.transcript.last_seq

    @property
    def is_in_use(self) -> bool:
        """Busy, or holding the lease because mail waits for the next turn."""
        return self.is_busy or self._state.lease.is_held

    @property
    def is_unloaded(self) -> bool:
        return self._turns is None

    async def ask(
        self,
        message: User,
        observer: Observer = ignore,
        mail: TurnMail | None = None,
        options: TurnOptions | None = None,
    ) -> Report:
        """Answer a message in a turn. If a crash left a turn open, that is closed first.

        Raises `SessionBusy` if another turn or another process has the session; the message is then not taken.
        """
        async with self._work() as known_until:
            turns, lease = self._factory, self._state.lease
            options, news = options or self._options, list[str]()
            running: RunningTurn | None = None
            known = NEVER_HELD if await lease.create(turns.new_session) else known_until
            if known is not None and not lease.is_held and self.services.hooks.is_empty:
                # Nobody can have had the session since `known`: seize it in the turn's first commit.
                recorder = self._make_recorder(Epoch(known + 1), observer)
                begun, writes = await turns.begin(message, recorder, options, mail, news)
                if await begun.begin(recorder.begin(*writes)):
                    running = begun
            if running is None:
                recorder = self._make_recorder(await self._state.seize(known), observer)
                if (open_turn := self._state.transcript.open_turn) is not None:
                    await turns.give_up(open_turn, recorder)
                running, writes = await turns.begin(message, recorder, options, mail, news)
                await running.begin(recorder.record(*writes))
            return await self._run(running, running.answer, message.text)

    async def ask_queued(
        self,
        line: Signal,
        message: User,
        observer: Observer = ignore,
        options: TurnOptions | None = None,
        asker: Asker | None = None,
    ) -> Report | None:
        """Answer a line that was queued. None: it was asked or taken back elsewhere meanwhile. Raises `SessionBusy`."""
        turn = new_turn_id()
        mail = TurnMail((), lambda _: (), asker=asker, turn=turn, queued=line.id)
        try:
            return await self.ask(message, observer, mail, options)
        except BrokenRuleError:
            found = await self._signals.find(line.key)
            if self._state.transcript.last_turn == turn or (found is not None and found.state == "new"):
                raise  # the line was not the reason
            return None

    async def resume(
        self, observer: Observer = ignore, mail: TurnMail | None = None, options: TurnOptions | None = None
    ) -> Report | None:
        """Finish the turn that a crash left open; None if there is none. `mail` is what that turn answers."""
        if self._state.lease.row is None:
            return None
        async with self._change(observer) as recorder:
            transcript = self._state.transcript
            if transcript.open_turn is None:
                return None
            running = self._factory.prepare(transcript.open_turn, recorder, options or self._options, mail)
            running.turn.budget.add_usage(transcript.usage, self.config.route.primary)
            return await self._run(running, running.resume, self._state.last_question, is_resumed=True)

    async def _run(
        self,
        running: RunningTurn,
        work: Callable[[Executor], Awaitable[Assistant]],
        question: str,
        *,
        is_resumed: bool = False,
    ) -> Report:
        self.running = running
        try:
            with self._links.signals.obey_during(self.id, running, is_resumed=is_resumed):
                report = await running.run(work)
        finally:
            self.running = None
        await running.after(question, report)
        return report

    async def adopt(
        self, created_at: float, journal: Sequence[Recorded], history: HistoryPoint | None = None
    ) -> Session:
        """Begin the conversation with what was said elsewhere, and may be found by that. It must not have begun
        here."""
        with self.as_current():
            await self.services.equip()
        return await self._state.lease.adopt(self._factory.new_session, created_at, journal, history)

    async def compact(
        self,
        observer: Observer = ignore,
        *,
        focus: str = "",
        keep_last: int | None = None,
        options: TurnOptions | None = None,
    ) -> str:
        """Make the conversation shorter for the model, as the person asked.

        Returns what was done, in a sentence; empty if there was nothing to leave out.
        """
        if self._state.lease.row is None:
            return ""
        async with self._change(observer) as recorder:
            turn = self._factory.turn(new_turn_id(), recorder, options or self._options)
            tokens = prompt_tokens(turn.request())
            threshold = turn.cursor.endpoint.compact_at or tokens
            request = CompactionRequest(tokens, threshold, focus, keep_last, is_asked_for=True)
            return await compact(turn, request, recorder)

    async def last_turn(self) -> TurnId | None:
        """The last turn that was not undone."""
        await self.catch_up()
        return self._state.transcript.last_turn

    async def undo(self, only: TurnId | None = None) -> str | None:
        """Undo the last turn. Returns the person's words in it, or None if there is no turn left.

        With `only`, nothing happens, and None is returned, if that is not the last turn.
        """
        if self._state.lease.row is None:
            return None
        async with self._change() as recorder:
            turn = self._state.transcript.last_turn
            if turn is None or turn != (only or turn):
                return None
            if self._state.transcript.open_turn is not None:
                await self._factory.give_up(self._state.transcript.open_turn, recorder)
            question = await self._state.question_of(turn)
            await complete(self._undo(turn, recorder))
            return question

    async def _undo(self, turn: TurnId, recorder: Recorder) -> None:
        """Nothing may come between recording this and reading the transcript without the turn."""
        await recorder.record(Undone(turn))
        await self._state.reload()
        if self.services.keeper is not None:
            await self.services.keeper.reset()  # what it has counted is gone

    async def read_effort(self) -> Effort | None:
        """How hard the model thinks in this conversation; None: as the settings say."""
        await self.catch_up()
        return self._state.transcript.effort

    async def set_effort(self, effort: Effort | None) -> None:
        """From the next turn on, in other processes too. Also begins a conversation that has not begun yet."""
        async with self._change() as recorder:
            await recorder.record(EffortChanged(effort))

    async def catch_up(self) -> None:
        """Read what other processes have added."""
        if self._state.lease.row is None:
            return
        with self.as_current():
            await self.services.equip()
        await self._state.read_new_entries()

    async def leave_for(self, successor: "LiveSession", *, carry_over: bool = False) -> None:
        """Leave this conversation for another: the context keeper ends here and begins there.

        With `carry_over`, that is the same conversation, which continues.
        """
        async with self._leave():
            history = tuple(self._state.transcript.history)
            await self.services.leave_for(successor.services, history, carry_over=carry_over)

    async def close(self, reason: LeaveReason = "end") -> None:
        """Leave the conversation; it can be opened again."""
        async with self._leave():
            await self.services.close(tuple(self._state.transcript.history), reason)

    def unload(self) -> None:
        """Free memory and connections; the shell, processes and browser stay. The object is not used again."""
        self.check_idle()
        self._turns = None
        self._state.unload()

    def take_over(self, predecessor: "LiveSession") -> None:
        """Unload the predecessor, and continue with its lease."""
        predecessor.unload()
        self._state.lease = predecessor._state.lease  # noqa: SLF001  (of its own kind)

    async def release_lease(self) -> None:
        """Let another process run the conversation."""
        if not self.is_busy:
            await self._state.lease.release()

    def check_idle(self) -> None:
        """Raises `SessionBusy`."""
        if self.is_busy:
            raise SessionBusy(f"Session {self.id} is still working on the last message.")

    @contextmanager
    def as_current(self, asker: Asker | None = None) -> Generator[None]:
        """Tells code that is called meanwhile for whom it runs: for `asker`, or else for the person of the turn."""

        def executor() -> Executor:
            """For calls that are part of the running turn."""
            running = self.running
            if running is not None and asker is None:
                return running.executor()
            return self.services.executor(self._state.transcript, running.turn.id if running else "", asker)

        context = self.services.context()
        person = asker.id if asker else context.person
        token = current_session.set(CurrentSession(self.id, context.conversation, context.platform, person, executor))
        try:
            yield
        finally:
            current_session.reset(token)

    @property
    def _factory(self) -> TurnFactory:
        if self._turns is None:
            raise RuntimeError(f"session {self.id} was unloaded")
        return self._turns

    @asynccontextmanager
    async def _work(self) -> AsyncGenerator[Epoch | None]:
        """One at a time; releases the lease at the end. Yields the epoch up to which the transcript is known."""
        self.check_idle()
        self.is_busy = True
        known = self._state.enter()
        try:
            with self.as_current():
                await self.services.equip()
                yield known
                self._state.leave()
        finally:
            if self.services.keeper is not None:
                self.services.keeper.end_turn()
            try:
                await self._state.lease.release()
            finally:
                self._end_broadcast()
                self.is_busy = False

    def _make_recorder(self, epoch: Epoch, observer: Observer) -> Recorder:
        self._end_broadcast()  # of a first commit that was refused
        recorder = self._factory.recorder(epoch, observer)
        self._broadcast = recorder.broadcast
        return recorder

    def _end_broadcast(self) -> None:
        if (broadcast := self._broadcast) is not None:
            self._broadcast = None
            self._links.watching.end(self.id, broadcast)

    @asynccontextmanager
    async def _change(self, observer: Observer = ignore) -> AsyncGenerator[Recorder]:
        """Seizes the session, and brings its transcript up to date with what other processes wrote."""
        async with self._work() as known:
            await self._state.lease.create(self._factory.new_session)
            yield self._make_recorder(await self._state.seize(known), observer)

    @asynccontextmanager
    async def _leave(self) -> AsyncGenerator[None]:
        """Not in the middle of a turn; releases the lease at the end."""
        self.check_idle()
        try:
            with self.as_current():
                yield
        finally:
            await self._state.lease.release(leaves_mail=True)
