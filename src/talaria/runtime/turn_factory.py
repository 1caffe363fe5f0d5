"""What a conversation and each of its turns begin with."""

from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec

from talaria.agent.budget import Account, Budget
from talaria.agent.route_cursor import RouteCursor
from talaria.agent.turn import Turn
from talaria.core.clock import Clock
from talaria.core.entries import MessageAdded, TurnStarted
from talaria.core.events import Notice
from talaria.core.ids import Epoch, OwnerId, TurnId, new_turn_id
from talaria.core.messages import Context, User
from talaria.core.redaction import Redactor
from talaria.providers.upstream import Upstream
from talaria.runtime import prompt
from talaria.runtime.recorder import Observer, Recorder
from talaria.runtime.services import SessionServices
from talaria.runtime.session_config import SessionConfig, TurnOptions
from talaria.runtime.session_state import SessionState
from talaria.runtime.spending import PatientSpending
from talaria.runtime.turn_mail import TurnMail
from talaria.store.base import NewSession, Spending, Write


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
