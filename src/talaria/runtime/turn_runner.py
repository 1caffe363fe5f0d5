"""A turn of a live session, from its first commit to its last. However it ends, its end is on the disk and the
transcript is legal: there is an answer, or a result for every open call and last words in the assistant's place."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Literal, TypeVar

import msgspec

from talaria.agent import interrupted
from talaria.agent.budget import Account, Budget
from talaria.agent.loop import run_turn
from talaria.agent.route_cursor import RouteCursor
from talaria.agent.tool_calls import run_calls
from talaria.agent.turn import Turn
from talaria.core.aio import complete, in_thread, wait_until_done
from talaria.core.clock import Clock
from talaria.core.entries import MessageAdded, TurnEnded, TurnOutcome, TurnStarted
from talaria.core.errors import Fenced, LimitName, LimitReached, ModelCorrectable, StoreUnavailable, TalariaError
from talaria.core.events import AnswerRestarted, TextDelta, ToolBegan, ToolEnded, TurnBegan, TurnDone
from talaria.core.ids import Epoch, HoldId, InboxId, OwnerId, SessionId, TurnId, new_turn_id
from talaria.core.messages import Assistant, Context, Text, ToolCall, Usage, User
from talaria.providers.message_history import History
from talaria.providers.upstream import Upstream
from talaria.runtime import prompt
from talaria.runtime.lease import Observer, Recorder, SessionState
from talaria.runtime.session_config import Asker, TurnMail, TurnOptions, TurnResult
from talaria.runtime.session_services import SessionServices
from talaria.runtime.turn_questions import SharedPerson, TurnQuestions
from talaria.runtime.watching import Watching
from talaria.store.base import (
    Amount,
    CallEnded,
    CallRow,
    HoldReleased,
    NewSession,
    Spending,
    Spent,
    Store,
    Totals,
    UsageKey,
    UsageRow,
    Write,
)
from talaria.store.chat_ports import InboxDone, InboxTaken
from talaria.store.signal_port import SignalId, SignalObeyed
from talaria.tools.base import AfterCrash
from talaria.tools.executor import Executor

_LAST_WORDS = {"interrupted": "[This turn was interrupted.]", "failed": "[This turn failed before its answer.]"}

T = TypeVar("T")

log = logging.getLogger(__name__)


class Report(msgspec.Struct, frozen=True):
    """How a turn ended."""

    session: SessionId
    turn: TurnId
    outcome: TurnOutcome
    text: str
    usage: Usage
    model: str
    """The `provider:model` that answered, or was asked last."""
    error: TalariaError | None = None
    cost_usd: float | None = None
    """None: unknown."""


def final_writes(
    turn: TurnId,
    outcome: Literal["interrupted", "failed"],
    *,
    history: History,
    rows: Sequence[CallRow],
    usage: Usage,
    shown: str = "",
    error: str = "",
    limit: LimitName = "",
) -> list[Write]:
    """How a turn without an answer ends, in one transaction: results in call order, last words, the turn's end. Pure.

    `rows` are the turn's calls; `shown` is what people saw of an incomplete answer.
    """
    verdicts = interrupted.close(rows)

    def results() -> Iterator[Write]:
        for call in history.open_calls:
            verdict = verdicts[call]
            if isinstance(verdict, interrupted.Close):
                yield CallEnded(verdict.result)
            yield MessageAdded(verdict.result)

    text = f"{shown}\n\n{_LAST_WORDS[outcome]}" if shown else _LAST_WORDS[outcome]
    last_words = Assistant((Text(text),), stop="interrupted")
    return [*results(), MessageAdded(last_words), TurnEnded(turn, outcome, usage, error, limit)]


def text_shown_of(message: Assistant) -> str:
    """Without the last words of a turn that has no answer, which are for the model."""
    for last_words in _LAST_WORDS.values() if message.stop == "interrupted" else ():
        if message.text.endswith(last_words):
            return message.text.removesuffix(last_words).removesuffix("\n\n")
    return message.text


class PatientSpending(msgspec.Struct, frozen=True):
    """A turn's access to the ledger. Like the turn's recorder, it waits while the store is unavailable."""

    spending: Spending
    recorder: Recorder

    async def hold(self, session: SessionId, person: str, owner: OwnerId, decide: Callable[[Totals], Amount]) -> HoldId:
        return await self.recorder.with_retries(lambda: self.spending.hold(session, person, owner, decide))

    async def add(self, session: SessionId, writes: Sequence[Spent | HoldReleased]) -> None:
        await self.recorder.with_retries(lambda: self.spending.add(session, writes))

    async def usage(self, by: UsageKey, since: float = 0.0) -> Sequence[UsageRow]:
        return await self.spending.usage(by, since)


class TurnFactory:
    """Makes the row of a new conversation, and its turns."""

    def __init__(
        self,
        state: SessionState,
        services: SessionServices,
        *,
        store: Store,
        owner: OwnerId,
        upstream: Upstream,
        clock: Clock,
        watching: Watching,
    ) -> None:
        self._state = state
        self._services = services
        self._store = store
        self._owner = owner
        self._upstream = upstream
        self._clock = clock
        self._watching = watching

    def new_session(self) -> NewSession:
        """Blocks: it reads files."""
        config, services = self._services.config, self._services
        row = NewSession(
            services.session,
            source=config.origin,
            model=config.route.primary.label,
            cwd=str(config.cwd),
            person=config.person,
            system_prompt=prompt.build(config, services.prompt),
            tools=services.encode_specs(),
        )
        return services.redactor.value(row)

    def recorder(self, epoch: Epoch, observer: Observer) -> Recorder:
        """From now on others can watch, until `Watching.end` with its broadcast."""
        services, lease, transcript = self._services, self._state.lease, self._state.transcript
        broadcast = self._watching.begin(services.session, epoch, transcript.last_seq)
        return Recorder(lease, epoch, transcript, self._clock, observer, broadcast, services.redactor)

    def turn(self, id: TurnId, recorder: Recorder, options: TurnOptions) -> Turn:
        services, transcript, row = self._services, self._state.transcript, self._state.lease.row
        assert row is not None  # noqa: S101  (created before any turn)
        spending = PatientSpending(self._store.spending, recorder)
        account = Account(spending, services.session, self._owner, services.config.person)
        budget = Budget(options.limits, account, self._clock)
        recorder.on_commit(budget.mark_recorded)
        if services.keeper is not None:
            services.keeper.begin_turn(transcript.history, recorder.notify)
        return Turn(
            id,
            session=services.session,
            system=row.system_prompt,
            tools=services.specs(row.tools),
            history=transcript.history,
            cursor=RouteCursor(services.config.route, self._upstream, options.max_attempts),
            budget=budget,
            clock=self._clock,
            keeper=services.keeper,
            hooks=services.hooks,
            context=services.context(id),
            compactions=transcript.compactions,
            max_rounds=options.limits.max_rounds,
            effort=transcript.effort or options.effort,
            is_streaming=options.is_streaming,
            redactor=services.redactor,
            news=lambda: services.take_news(transcript.history),
        )

    def prepare(self, id: TurnId, recorder: Recorder, options: TurnOptions, mail: TurnMail | None) -> "RunningTurn":
        turn = self.turn(id, recorder, options)
        return RunningTurn(turn, self._state, self._services, self._store, recorder, mail)

    async def begin(
        self, message: User, recorder: Recorder, options: TurnOptions, mail: TurnMail | None, news: list[str]
    ) -> tuple["RunningTurn", Sequence[Write]]:
        """A turn, and its first writes. `news` collects what the model has to be told."""
        transcript = self._state.transcript
        news += self._services.take_news(transcript.history)
        id = (mail.turn if mail else None) or new_turn_id()
        running = self.prepare(id, recorder, options, mail)
        turn, history = running.turn, tuple(transcript.history)
        added = await turn.hooks.before_turn(turn.context, message.text, history, recorder.notify)
        today = datetime.fromtimestamp(self._clock.now()).astimezone()
        last_at = datetime.fromtimestamp(transcript.last_at).astimezone()
        # The model is told the date whenever that is news; the system prompt itself never changes.
        date = (Context(f"[Today is {today:%A, %Y-%m-%d}.]"),) if today.date() != last_at.date() else ()
        parts = (*date, *message.parts, *map(Context, (*added, *news)))
        return running, (
            TurnStarted(id, self._services.config.origin),
            MessageAdded(msgspec.structs.replace(message, parts=parts)),
            *(mail.first_writes(id) if mail else ()),
        )

    async def give_up(self, turn: TurnId, recorder: Recorder) -> None:
        """Close a turn that a crash left open."""
        transcript = self._state.transcript
        rows = await self._store.journal.calls(self._services.session, turn)
        writes = final_writes(turn, "interrupted", history=transcript.history, rows=rows, usage=transcript.usage)
        await recorder.record(*writes)


class RunningTurn:
    """One turn under one epoch, in a task of its own, so that it can be stopped without stopping its caller."""

    def __init__(
        self,
        turn: Turn,
        state: SessionState,
        services: SessionServices,
        store: Store,
        recorder: Recorder,
        mail: TurnMail | None,
    ) -> None:
        self.turn = turn
        self._session = services.session
        self._lease = state.lease
        self._transcript = state.transcript
        self._services = services
        self._store = store
        self._recorder = recorder
        self._mail = mail
        self.questions = TurnQuestions(recorder.emit)
        self._fault: TalariaError | None = None
        self._task: asyncio.Task[Report] | None = None

    @property
    def asker(self) -> str:
        """Whose turn it is."""
        return self._mail.asker.id if self._mail and self._mail.asker else self._services.config.person

    @property
    def is_open(self) -> bool:
        """Its end is not on the disk, as far as we know."""
        return self._transcript.open_turn == self.turn.id

    def executor(self) -> Executor:
        """For calls that are part of this turn."""
        asker = self._services.asker if self._mail is None or self._mail.asker is None else self._mail.asker
        if asker.person is not None:
            platform = self._services.config.platform
            surface = "terminal" if platform == "cli" else platform
            shared = SharedPerson(asker.person, asker.id, surface, self.questions)
            asker = Asker(asker.id, shared)
        return self._services.executor(self._transcript, self.turn.id, asker)

    def steer(self, text: str, *, mail: InboxId | None = None, signal: SignalId | None = None) -> bool:
        """Show the model a note in its next round. False: there is none, the answer is complete.

        `mail` is the message with that note: it is done when the model reads it, and answered later if it never does.
        `signal` is obeyed when the model reads the note.
        """
        turn = self.turn
        also: tuple[Write, ...] = () if signal is None else (SignalObeyed(signal),)
        return turn.steer(text, also if mail is None else (*also, InboxTaken(turn.id, (mail,)), InboxDone((mail,))))

    def interrupt(self) -> bool:
        """Stop; the report says so. False if it has ended."""
        self._recorder.hurry()
        return self._task is not None and self._task.cancel()

    def abandon(self) -> bool:
        """Stop, but leave the turn open on the disk, to be resumed later. False if it has ended."""
        self._recorder.close()
        return self._task is not None and self._task.cancel()

    async def begin(self, commit: Awaitable[T]) -> T:
        """Wait for the turn's first commit. If the caller is cancelled, a turn that has begun ends as interrupted."""
        try:
            return await commit
        except asyncio.CancelledError:
            if self._lease.is_held:
                await complete(self._close_interrupted())
            raise

    async def run(self, work: Callable[[Executor], Awaitable[Assistant]]) -> Report:
        """`work` returns the final answer. If the caller is cancelled, the turn is stopped, and its end awaited."""
        endpoint = self.turn.cursor.endpoint
        self._recorder.emit(
            TurnBegan(self._session, self.turn.id, endpoint.label, endpoint.window, endpoint.compact_at)
        )
        self._task = task = asyncio.create_task(self._run(work, self.executor()), name=f"turn {self.turn.id}")
        try:
            await wait_until_done(task)
        except asyncio.CancelledError:
            self.interrupt()
            await complete(self._wait(task))
            raise
        return await self._wait(task)

    async def _wait(self, task: "asyncio.Task[Report]") -> Report:
        if not task.done():
            await wait_until_done(task)
        return await self._close_interrupted() if task.cancelled() else task.result()  # cancelled before its first step

    async def answer(self, executor: Executor) -> Assistant:
        return await run_turn(self.turn, tools=executor, sink=self._recorder, rounds_used=self._transcript.rounds)

    async def resume(self, executor: Executor) -> Assistant:
        """From where a crash left it."""

        def after_crash(call: ToolCall) -> AfterCrash:
            try:
                return self._services.toolbox.find(call.name).after_crash
            except ModelCorrectable:
                return "once"

        history = self._transcript.history
        answer, open_calls = history.open_answer, history.open_calls
        rows = await self._store.journal.calls(self._session, self.turn.id)
        await in_thread(lambda: executor.remember([row.call for row in rows if row.state != "intent"]))
        if answer is not None:
            left_open = [row for row in rows if row.call.id in open_calls]
            verdicts = interrupted.resume(left_open, after_crash, self.turn.clock.now())
            await run_calls(answer, self.turn, executor, self._recorder, verdicts)
        return await self.answer(executor)

    async def after(self, question: str, report: Report) -> None:
        """Tell hooks that the turn has ended. A cancellation only stops waiting for them."""
        turn = self.turn
        with suppress(asyncio.CancelledError):
            await turn.report_answers()
            await turn.hooks.after_turn(
                turn.context, question, report.text, tuple(self._transcript.history), report.outcome
            )

    async def _run(self, work: Callable[[Executor], Awaitable[Assistant]], executor: Executor) -> Report:
        turn = self.turn
        try:
            answer = await work(executor)
            text = written = answer.text
            with suppress(asyncio.CancelledError):  # it is complete: a person who stops now will not wait for hooks
                text = await turn.hooks.revise(turn.context, written)
            if text != written:
                text = turn.redactor.text(text)
                self._recorder.emit(AnswerRestarted("A plugin changed the answer."))
                self._recorder.emit(TextDelta(text))
                others = tuple(part for part in answer.parts if not isinstance(part, Text))
                answer = msgspec.structs.replace(answer, parts=(*others, Text(text)))
            await self._commit(
                [MessageAdded(answer), TurnEnded(turn.id, "completed", turn.budget.usage)],
                TurnResult(turn.id, "completed", text, texts=(*self._transcript.history.texts_since_question(), text)),
                [self._lease.releasing_write] if turn.hooks.is_empty else [],
            )
        except asyncio.CancelledError:
            return await self._close_interrupted()
        except (Fenced, StoreUnavailable) as fault:
            return self._report("failed", "", fault)  # not ours to close, or impossible: it stays open on the disk
        except TalariaError as fault:
            return await self._close("failed", fault)
        except Exception as fault:
            log.exception("turn %s of session %s broke", turn.id, self._session)
            await self._close("failed", fault)
            raise
        return self._report("completed", text)

    async def _commit(self, writes: Sequence[Write], result: TurnResult, last: Sequence[Write] = ()) -> None:
        """The turn's last commit: its end, its cost, the replies to its mail."""
        replies = self._mail.last_writes(result) if self._mail else ()
        try:
            await self._recorder.record(*writes, *self.turn.budget.writes, *replies, *last)
        finally:
            if self._mail is not None:  # a cancelled commit is done, too
                self._mail.on_end()

    async def _close_interrupted(self) -> Report:
        if self._transcript.open_turn is not None:
            return await self._close("interrupted", None)
        last = self._transcript.history.last  # the turn was interrupted during its last commit
        text = last.text if isinstance(last, Assistant) else ""
        return self._report(self._transcript.last_outcome or "completed", text, self._fault)

    async def _close(self, outcome: Literal["interrupted", "failed"], fault: Exception | None) -> Report:
        shown = self._recorder.partial_text
        self._fault = fault if isinstance(fault, TalariaError) else None
        error = "" if fault is None else str(fault) if fault is self._fault else f"a bug: {fault!r}"
        try:
            await complete(self._record_closing(outcome, shown, error))
        except asyncio.CancelledError:  # impatient; it is durable all the same
            pass
        except (Fenced, StoreUnavailable) as worse:
            return self._report("failed", shown, worse)
        return self._report(outcome, shown, self._fault)

    async def _record_closing(self, outcome: Literal["interrupted", "failed"], shown: str, error: str) -> None:
        turn = self.turn
        rows = await self._store.journal.calls(self._session, turn.id)
        history, usage = self._transcript.history, turn.budget.usage
        limit = self._fault.limit if isinstance(self._fault, LimitReached) else ""
        writes = final_writes(
            turn.id, outcome, history=history, rows=rows, usage=usage, shown=shown, error=error, limit=limit
        )
        await self._commit(writes, TurnResult(turn.id, outcome, shown, error))
        arguments = {row.call.id: row.call.arguments for row in rows if row.state == "intent"}
        for result in (write.result for write in writes if isinstance(write, CallEnded)):
            if result.call_id in arguments:  # people have not been shown this call yet
                self._recorder.emit(ToolBegan(result.call_id, result.name, arguments[result.call_id]))
            self._recorder.emit(ToolEnded(result, 0.0))

    def _report(self, outcome: TurnOutcome, text: str, error: TalariaError | None = None) -> Report:
        turn = self.turn
        usage, model = turn.budget.usage, turn.cursor.endpoint.label
        if error is not None:
            error.args = (turn.redactor.text(str(error)),)
        self._recorder.emit(TurnDone(turn.id, outcome, text, usage, str(error or ""), model))
        return Report(self._session, turn.id, outcome, text, usage, model, error, turn.budget.cost_usd)
