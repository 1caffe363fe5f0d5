"""Runs a turn to an end that is on the disk: the answer, or last words that keep the transcript legal.

How a turn without an answer ends: every open call gets its result, and the transcript stays legal. Pure.
A turn's access to the ledger: it waits out a store that is not well, as its recorder does.
What a conversation and each of its turns begin with.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Literal

import msgspec

from talaria.agent.budget import Account, Budget
from talaria.agent.interrupted import Close, Ended, close
from talaria.agent.route_cursor import RouteCursor
from talaria.agent.turn import Turn
from talaria.core.aio import completed, ended
from talaria.core.clock import Clock
from talaria.core.entries import MessageAdded, TurnEnded, TurnOutcome, TurnStarted
from talaria.core.errors import Fenced, StoreUnavailable, TalariaError
from talaria.core.events import AnswerRestarted, Notice, TextDelta, ToolBegan, ToolEnded, TurnDone
from talaria.core.ids import Epoch, HoldId, OwnerId, SessionId, TurnId, new_turn_id
from talaria.core.messages import Assistant, Context, Text, User
from talaria.core.redaction import Redactor
from talaria.core.usage import Usage
from talaria.providers.message_history import History
from talaria.providers.upstream import Upstream
from talaria.runtime import prompt
from talaria.runtime.lease import SessionState
from talaria.runtime.recorder import Observer, Recorder
from talaria.runtime.services import SessionServices
from talaria.runtime.session_config import Asker, SessionConfig, TurnMail, TurnOptions, TurnResult
from talaria.runtime.transcript import Transcript
from talaria.store.base import (
    Amount,
    CallEnded,
    CallRow,
    Journal,
    NewSession,
    Released,
    Spending,
    Spent,
    Totals,
    UsageKey,
    UsageRow,
    Write,
)

_LAST_WORDS = {"interrupted": "[This turn was interrupted.]", "failed": "[This turn failed before its answer.]"}


def closing(
    turn: TurnId,
    outcome: Literal["interrupted", "failed"],
    *,
    history: History,
    rows: Sequence[CallRow],
    usage: Usage,
    shown: str = "",
    error: str = "",
) -> list[Write]:
    """One transaction: results in call order, last words in the assistant's place, the turn's end.

    `rows` are the turn's calls, `shown` is what people saw of an answer that did not come to its end.
    """
    verdicts = close(rows)
    writes = [write for call in history.open_calls for write in _result(verdicts[call])]
    text = f"{shown}\n\n{_LAST_WORDS[outcome]}" if shown else _LAST_WORDS[outcome]
    last_words = Assistant((Text(text),), stop="interrupted")
    return [*writes, MessageAdded(last_words), TurnEnded(turn, outcome, usage, error)]


def _result(verdict: Close | Ended) -> Iterator[Write]:
    if isinstance(verdict, Close):
        yield CallEnded(verdict.result)
    yield MessageAdded(verdict.result)


class PatientSpending(msgspec.Struct, frozen=True):
    spending: Spending
    recorder: Recorder

    async def hold(self, session: SessionId, person: str, owner: OwnerId, decide: Callable[[Totals], Amount]) -> HoldId:
        return await self.recorder.patiently(lambda: self.spending.hold(session, person, owner, decide))

    async def add(self, session: SessionId, writes: Sequence[Spent | Released]) -> None:
        await self.recorder.patiently(lambda: self.spending.add(session, writes))

    async def usage(self, by: UsageKey, since: float = 0.0) -> Sequence[UsageRow]:
        return await self.spending.usage(by, since)


class TurnFactory:
    def __init__(
        self,
        setup: SessionConfig,
        standing: SessionState,
        companions: SessionServices,
        *,
        upstream: Upstream,
        spending: Spending,
        owner: OwnerId,
        clock: Clock,
        redactor: Redactor,
    ) -> None:
        self._setup = setup
        self._standing = standing
        self._companions = companions
        self._upstream = upstream
        self._spending = spending
        self._owner = owner
        self._clock = clock
        self._redactor = redactor

    def row(self) -> NewSession:
        setup = self._setup
        row = NewSession(
            self._standing.tenure.session,
            source=setup.origin,
            model=setup.route.primary.label,
            cwd=str(setup.cwd),
            person=setup.person,
            system_prompt=prompt.build(setup, self._companions.prompt),
            tools=self._companions.kept_specs(),
        )
        return self._redactor.value(row)

    def recorder(self, epoch: Epoch, observer: Observer) -> Recorder:
        standing = self._standing
        return Recorder(standing.tenure, epoch, standing.view, self._clock, observer, self._redactor)

    async def opening(
        self, message: User, recorder: Recorder, letter: TurnMail | None, news: Sequence[str], terms: TurnOptions
    ) -> tuple[Turn, Sequence[Write]]:
        """A turn, and what it begins with."""
        chosen = letter.turn if letter else None
        turn = self.turn(chosen or new_turn_id(), recorder, terms)
        history = tuple(self._standing.view.history)
        added = await turn.hooks.before_turn(turn.facts, message.text, history, teller(recorder))
        mail = letter.opening(turn.id) if letter else ()
        return turn, (
            TurnStarted(turn.id, self._setup.origin),
            MessageAdded(self._in_context(message, (*added, *news))),
            *mail,
        )

    def turn(self, id: TurnId, recorder: Recorder, terms: TurnOptions) -> Turn:
        setup, companions, view, row = self._setup, self._companions, self._standing.view, self._standing.tenure.row
        assert row is not None  # noqa: S101  (made before any turn)
        session = self._standing.tenure.session
        spending = PatientSpending(self._spending, recorder)
        budget = Budget(terms.limits, Account(spending, session, self._owner, setup.person), self._clock)
        recorder.when_durable(budget.settle)
        companions.begin_turn(view.history, teller(recorder))
        return Turn(
            id,
            session=session,
            system=row.system_prompt,
            tools=companions.specs(row.tools),
            history=view.history,
            walk=RouteCursor(setup.route, self._upstream, terms.max_attempts),
            budget=budget,
            clock=self._clock,
            keeper=companions.keeper,
            hooks=companions.hooks,
            facts=companions.facts(id),
            compactions=view.compactions,
            max_rounds=terms.limits.max_rounds,
            effort=view.effort or terms.effort,
            is_streaming=terms.is_streaming,
            redactor=self._redactor,
            news=lambda: companions.take_news(self._standing.view.history),
        )

    def _in_context(self, message: User, added: Sequence[str]) -> User:
        """With the date in front whenever it is news to the model; the prompt itself never changes."""
        today = datetime.fromtimestamp(self._clock.now()).astimezone()
        last_at = datetime.fromtimestamp(self._standing.view.last_at).astimezone()
        front = (Context(f"[Today is {today:%A, %Y-%m-%d}.]"),) if today.date() != last_at.date() else ()
        behind = tuple(Context(text) for text in added)
        return msgspec.structs.replace(message, parts=(*front, *message.parts, *behind))


def teller(recorder: Recorder) -> Callable[[str], None]:
    return lambda text: recorder.emit(Notice(text))


log = logging.getLogger(__name__)


class Report(msgspec.Struct, frozen=True):
    """How a turn ended."""

    session: SessionId
    turn: TurnId
    outcome: TurnOutcome
    text: str
    usage: Usage
    model: str
    """`provider:model` that answered, or was asked last."""
    error: TalariaError | None = None
    cost_usd: float | None = None
    """None: not known."""


class TurnRunner:
    """One turn of one session under one epoch."""

    def __init__(
        self,
        turn: Turn,
        session: SessionId,
        view: Transcript,
        journal: Journal,
        recorder: Recorder,
        letter: TurnMail | None = None,
        parting: Sequence[Write] = (),
    ) -> None:
        """`parting` is written last, with the answer."""
        self._turn = turn
        self._session = session
        self._view = view
        self._journal = journal
        self._recorder = recorder
        self._letter = letter
        self._parting = parting
        self._fault: TalariaError | None = None

    async def run(self, work: Callable[[], Awaitable[Assistant]]) -> Report:
        """`work` brings the final answer. Cancelling this is the person's interruption: it ends in a report, too."""
        try:
            answer = await self._revised(await work())
            ended = TurnEnded(self._turn.id, "completed", self._turn.budget.usage)
            mail = self._answered("completed", answer.text)
            await self._recorder.record(MessageAdded(answer), ended, *self._turn.budget.writes, *mail, *self._parting)
        except asyncio.CancelledError:
            return await self.interrupted()
        except (Fenced, StoreUnavailable) as fault:
            return self._report("failed", "", fault)  # not ours to close, or no way to: it stays open on the disk
        except TalariaError as fault:
            return await self._close("failed", fault)
        except Exception as fault:
            log.exception("turn %s of session %s broke", self._turn.id, self._session)
            await self._close("failed", fault)
            raise
        return self._report("completed", answer.text)

    async def _revised(self, answer: Assistant) -> Assistant:
        """As those beside the loop want it to read; shown again, if that is not what was shown."""
        text = answer.text
        with suppress(asyncio.CancelledError):  # it is complete: who stops now does not want to wait for others
            text = await self._turn.hooks.revised(self._turn.facts, answer.text)
        if text == answer.text:
            return answer
        self._recorder.emit(AnswerRestarted("A plugin changed the answer."))
        self._recorder.emit(TextDelta(text))
        others = tuple(part for part in answer.parts if not isinstance(part, Text))
        return msgspec.structs.replace(answer, parts=(*others, Text(text)))

    async def interrupted(self) -> Report:
        if self._view.open_turn is None:  # it came while the turn's end was being committed
            return self._report(self._view.last_outcome or "completed", self._last_text(), self._fault)
        return await self._close("interrupted", None)

    async def _close(self, outcome: Literal["interrupted", "failed"], fault: Exception | None) -> Report:
        shown = self._recorder.partial_text
        self._fault = fault if isinstance(fault, TalariaError) else None
        error = "" if fault is None else str(fault) if fault is self._fault else f"a bug: {fault!r}"
        try:
            await completed(self._record_closing(outcome, shown, error))
        except asyncio.CancelledError:  # impatient; it is durable all the same
            pass
        except (Fenced, StoreUnavailable) as worse:
            return self._report("failed", shown, worse)
        return self._report(outcome, shown, self._fault)

    async def _record_closing(self, outcome: Literal["interrupted", "failed"], shown: str, error: str) -> None:
        history, budget = self._view.history, self._turn.budget
        rows = await self._journal.calls(self._session, self._turn.id)
        writes = closing(
            self._turn.id, outcome, history=history, rows=rows, usage=budget.usage, shown=shown, error=error
        )
        await self._recorder.record(*writes, *budget.writes, *self._answered(outcome, shown, error))
        arguments = {row.call.id: row.call.arguments for row in rows if row.state == "intent"}
        for result in (write.result for write in writes if isinstance(write, CallEnded)):
            if result.call_id in arguments:  # people have not heard of it yet
                self._recorder.emit(ToolBegan(result.call_id, result.name, arguments[result.call_id]))
            self._recorder.emit(ToolEnded(result, 0.0))

    def _answered(self, outcome: TurnOutcome, text: str, error: str = "") -> Sequence[Write]:
        if self._letter is None:
            return ()
        return self._letter.closing(TurnResult(self._turn.id, outcome, text, error))

    def _last_text(self) -> str:
        last = self._view.history.last
        return last.text if isinstance(last, Assistant) else ""

    def _report(self, outcome: TurnOutcome, text: str, error: TalariaError | None = None) -> Report:
        usage, model, redactor = self._turn.budget.usage, self._turn.walk.endpoint.label, self._turn.redactor
        text = redactor.text(text)
        if error is not None:
            error.args = (redactor.text(str(error)),)
        self._recorder.emit(TurnDone(self._turn.id, outcome, text, usage, str(error or ""), model))
        return Report(self._session, self._turn.id, outcome, text, usage, model, error, self._turn.budget.cost_usd)


class RunningTurn:
    """In a task of its own, so that it can be stopped without stopping whoever asked."""

    def __init__(
        self,
        turn: Turn,
        recorder: Recorder,
        runner: TurnRunner,
        work: Callable[[], Awaitable[Assistant]],
        asker: Asker | None = None,
    ) -> None:
        self.turn = turn
        self.asker = asker
        """Whose turn it is; None: theirs for whom the session was made."""
        self._recorder = recorder
        self._runner = runner
        self._task = asyncio.create_task(runner.run(work), name=f"turn {turn.id}")

    def stop(self) -> bool:
        self._recorder.hurry()
        return self._task.cancel()

    def abandon(self) -> bool:
        self._recorder.close()
        return self._task.cancel()

    async def ended(self) -> Report:
        """Whoever is cancelled while waiting for it stops it, and still waits for its end."""
        try:
            await ended(self._task)
        except asyncio.CancelledError:
            self.stop()
            await completed(self._reported())
            raise
        return await completed(self._reported()) if self._task.cancelled() else self._task.result()

    async def _reported(self) -> Report:
        """Also if it was stopped before it took its first step."""
        await ended(self._task)
        return await self._runner.interrupted() if self._task.cancelled() else self._task.result()
