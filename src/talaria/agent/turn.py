"""A turn in progress: what the model is shown, what has been spent, what the person added meanwhile."""

from collections import deque
from collections.abc import Iterator

import msgspec

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
        is_streaming: bool = True,
    ) -> None:
        self.id = id
        self.limits = limits
        self.breaker = Breaker()
        self.history = history
        self.clock = clock
        self.usage: Usage = NO_USAGE
        self._cost_usd = 0.0
        self._began = clock.monotonic()
        self._request = Request(
            system=system, tools=tools, history=history, session=session, effort=effort, is_streaming=is_streaming
        )
        self._steering: deque[User] = deque()
        self._takes_steering = True

    def view(self) -> Request:
        """What the model reads now: the history is shared and grows as it is recorded."""
        return self._request

    def closing_view(self) -> Request:
        """The same prefix, but no tool may be called: sum up."""
        return msgspec.structs.replace(self._request, may_call=False)

    def steer(self, text: str) -> bool:
        """False: the last word is spoken, nobody would read it."""
        if self._takes_steering:
            self._steering.append(user(text, author="steering"))
        return self._takes_steering

    def conclude(self) -> bool:
        """Take no more words from the person. False: there is still one that the model has not read."""
        self._takes_steering = bool(self._steering)
        return not self._takes_steering

    def take_steering(self) -> Iterator[User]:
        while self._steering:
            yield self._steering.popleft()

    def carry(self, usage: Usage, endpoint: Endpoint) -> None:
        """What the turn had used before a crash counts against its limits. The time that passed does not."""
        self.usage += usage
        self._cost_usd += budget.cost_usd(usage, endpoint.prices)

    def charge(self, answer: Assistant, endpoint: Endpoint) -> None:
        if answer.usage is not None:
            self.carry(answer.usage, endpoint)

    def check_budget(self) -> None:
        """Raises `LimitReached`."""
        elapsed_s = self.clock.monotonic() - self._began
        budget.check(self.limits, Spent(self.usage, self._cost_usd, elapsed_s))

    @property
    def seconds_left(self) -> float | None:
        if self.limits.max_seconds is None:
            return None
        return self.limits.max_seconds - (self.clock.monotonic() - self._began)
