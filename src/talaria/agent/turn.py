"""A turn in progress: what the model is shown, what has been spent, what the person added meanwhile."""

from collections import deque
from collections.abc import Iterator

from talaria.agent import limits as budget
from talaria.agent.breaker import Breaker
from talaria.agent.limits import Limits, Spent
from talaria.model.clock import Clock
from talaria.model.ids import SessionId, TurnId
from talaria.model.messages import Assistant, User, user
from talaria.model.tools import ToolSpec
from talaria.model.usage import NO_USAGE, Usage
from talaria.providers.base import Effort, Endpoint, Request
from talaria.providers.history import History


class Turn:
    def __init__(
        self,
        id: TurnId,
        *,
        session: SessionId,
        system: str,
        tools: tuple[ToolSpec, ...],
        history: History,
        limits: Limits,
        clock: Clock,
        effort: Effort | None = None,
    ) -> None:
        self.id = id
        self.limits = limits
        self.breaker = Breaker()
        self.history = history
        self.clock = clock
        self.usage: Usage = NO_USAGE
        self._cost_usd = 0.0
        self._began = clock.monotonic()
        self._request = Request(system=system, tools=tools, history=history, session=session, effort=effort)
        self._steering: deque[User] = deque()

    def view(self) -> Request:
        """What the model reads now: the history is shared and grows as it is recorded."""
        return self._request

    def closing_view(self) -> Request:
        """The same prefix, but no tool may be called: sum up."""
        request = self._request
        return Request(
            system=request.system,
            tools=request.tools,
            history=request.history,
            session=request.session,
            may_call=False,
            effort=request.effort,
        )

    def steer(self, text: str) -> None:
        self._steering.append(user(text, author="steering"))

    @property
    def has_steering(self) -> bool:
        return bool(self._steering)

    def take_steering(self) -> Iterator[User]:
        while self._steering:
            yield self._steering.popleft()

    def charge(self, answer: Assistant, endpoint: Endpoint) -> None:
        if answer.usage is not None:
            self.usage += answer.usage
            self._cost_usd += budget.cost_usd(answer.usage, endpoint.prices)

    def check_budget(self) -> None:
        """Raises `LimitReached`."""
        elapsed_s = self.clock.monotonic() - self._began
        budget.check(self.limits, Spent(self.usage, self._cost_usd, elapsed_s))

    @property
    def seconds_left(self) -> float | None:
        if self.limits.max_seconds is None:
            return None
        return self.limits.max_seconds - (self.clock.monotonic() - self._began)
