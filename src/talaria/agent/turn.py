"""A turn in progress: what the model is shown, where it is asked, what the person added meanwhile."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import msgspec

from talaria.agent.breaker import Breaker
from talaria.agent.budget import Budget
from talaria.agent.hooks import Facts, Hooks, NoHooks
from talaria.agent.route_cursor import RouteCursor
from talaria.agent.sink import Sink
from talaria.context.base import ContextKeeper
from talaria.context.thrashing import Compactions
from talaria.core.clock import Clock
from talaria.core.entries import Effort, MessageAdded
from talaria.core.events import Notice
from talaria.core.ids import SessionId, TurnId
from talaria.core.messages import Assistant, user
from talaria.core.redaction import Redactor
from talaria.core.tool_spec import ToolSpec
from talaria.providers.base import Endpoint, ModelRequest
from talaria.providers.message_history import History
from talaria.providers.size import prompt_tokens
from talaria.store.base import Write


class Turn:
    def __init__(
        self,
        id: TurnId,
        *,
        session: SessionId,
        system: str,
        tools: tuple[ToolSpec, ...],
        history: History,
        walk: RouteCursor,
        budget: Budget,
        clock: Clock,
        keeper: ContextKeeper | None = None,
        hooks: Hooks | None = None,
        facts: Facts | None = None,
        compactions: Compactions | None = None,
        redactor: Redactor | None = None,
        max_rounds: int = 1,
        effort: Effort | None = None,
        is_streaming: bool = True,
        news: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self.id = id
        self.walk = walk
        self.budget = budget
        self.max_rounds = max_rounds
        self.keeper = keeper
        self.hooks = hooks or NoHooks()
        self.facts = facts or Facts(session, session, "", "", walk.endpoint.label, id)
        self.compactions = compactions or Compactions()
        self.redactor = redactor or Redactor()
        self.breaker = Breaker()
        self.history = history
        self.clock = clock
        self._request = ModelRequest(
            system=system, tools=tools, history=history, session=session, effort=effort, is_streaming=is_streaming
        )
        self._steering: deque[tuple[Write, ...]] = deque()
        self._news = news
        self._takes_steering = True
        self._untold: deque[tuple[Endpoint, Assistant, float]] = deque()
        self._warned_at: Endpoint | None = None

    def view(self) -> ModelRequest:
        """What the model reads now: the history is shared and grows as it is recorded."""
        return self._request

    def closing_view(self) -> ModelRequest:
        """The same prefix, but no tool may be called: sum up."""
        return msgspec.structs.replace(self._request, may_call=False)

    def note_answer(self, endpoint: Endpoint, answer: Assistant, seconds: float) -> None:
        """To be told to those beside the loop, once it is on the disk."""
        self._untold.append((endpoint, answer, seconds))

    async def tell_of_answers(self) -> None:
        while self._untold:
            endpoint, answer, seconds = self._untold.popleft()
            await self.hooks.after_request(self.facts, endpoint, answer, seconds)
            if self.keeper is not None:
                await self.keeper.answered(answer.usage)

    def steer(self, text: str, also: Iterable[Write] = ()) -> bool:
        """`also` is recorded with it, once the model reads it. False: the last word is spoken, nobody would."""
        if self._takes_steering:
            self._steering.append((MessageAdded(user(text, author="steering")), *also))
        return self._takes_steering

    def forget_steering(self) -> None:
        """What the model has not read yet is taken back."""
        self._steering.clear()

    def conclude(self) -> bool:
        """Take no more words from the person. False: there is still one that the model has not read."""
        self._takes_steering = bool(self._steering)
        return not self._takes_steering

    def take_steering(self) -> Iterator[tuple[Write, ...]]:
        """What the model should read before its next word: from the person, and of what goes on behind it."""
        for text in self._news():
            yield (MessageAdded(user(text, author="host")),)
        while self._steering:
            yield self._steering.popleft()

    def warn_when_full(self, request: ModelRequest, endpoint: Endpoint, sink: Sink) -> None:
        """Once per endpoint and turn, when the window in use is nearly full."""
        if endpoint.window is None or endpoint.compact_at is None or self._warned_at == endpoint:
            return
        tokens = prompt_tokens(request)
        if tokens > endpoint.compact_at:
            self._warned_at = endpoint
            share = f"about {100 * tokens // endpoint.window} % of the window of {endpoint.label}"
            advice = "" if self.keeper is not None else "; when it is full, begin a new one"
            sink.emit(Notice(f"This conversation takes {share}{advice}."))
