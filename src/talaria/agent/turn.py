"""A turn in progress: what the model reads, where it is asked, what the person adds meanwhile, and where the turn puts
what happens. The breaker notices a model that repeats a call with the same outcome: it advises first, then ends the
turn's rounds."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import msgspec

from talaria.agent.budget import Budget
from talaria.agent.hooks import Hooks, NoHooks, SessionContext
from talaria.agent.route_cursor import RouteCursor
from talaria.context.base import CompactionHistory, ContextKeeper
from talaria.core.clock import Clock
from talaria.core.entries import Effort, MessageAdded
from talaria.core.events import Event, Notice
from talaria.core.ids import SessionId, TurnId
from talaria.core.messages import Assistant, Image, ToolCall, ToolResult, ToolSpec, user
from talaria.core.redaction import Redactor
from talaria.providers.base import Endpoint, ModelRequest, prompt_tokens
from talaria.providers.message_history import History
from talaria.store.base import Write


class Sink(Protocol):
    async def record(self, *writes: Write) -> None:
        """One transaction; returns once it survives a crash. Even if cancelled, it waits for the outcome."""
        ...

    def emit(self, event: Event) -> None:
        """Never fails and never decides anything."""
        ...


_ADVICE = "\n\n[This exact call has had this exact outcome {count} times. Do something else, or say what is wrong.]"

_Outcome = tuple[str, str, str, tuple[Image, ...]]


class RepeatLimits(msgspec.Struct, frozen=True):
    """After how many rounds with the same outcome the model is advised, and then stopped."""

    advise_at: int
    stop_at: int


WITH_FAILURES = RepeatLimits(3, 5)
WITH_SUCCESSES = RepeatLimits(6, 10)
"""It may be right to look at the same thing again for a while."""


class Breaker:
    def __init__(self) -> None:
        self._rounds: Counter[_Outcome] = Counter()
        self._this_round: set[_Outcome] = set()
        self.has_tripped = False

    def begin_round(self) -> None:
        """Equal calls in one answer are not a repetition."""
        self._this_round.clear()

    def judge(self, call: ToolCall, result: ToolResult) -> ToolResult:
        """The result as the model should read it."""
        outcome = (call.name, call.arguments, result.text, result.images)
        if outcome not in self._this_round:
            self._this_round.add(outcome)
            self._rounds[outcome] += 1
        count = self._rounds[outcome]
        patience = WITH_FAILURES if result.is_error else WITH_SUCCESSES
        self.has_tripped = self.has_tripped or count >= patience.stop_at
        if count < patience.advise_at:
            return result
        return msgspec.structs.replace(result, text=result.text + _ADVICE.format(count=count))


class Turn:
    def __init__(
        self,
        id: TurnId,
        *,
        session: SessionId,
        system: str,
        tools: tuple[ToolSpec, ...],
        history: History,
        cursor: RouteCursor,
        budget: Budget,
        clock: Clock,
        keeper: ContextKeeper | None = None,
        hooks: Hooks | None = None,
        context: SessionContext | None = None,
        compactions: CompactionHistory | None = None,
        redactor: Redactor | None = None,
        max_rounds: int = 1,
        effort: Effort | None = None,
        is_streaming: bool = True,
        news: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self.id = id
        self.cursor = cursor
        self.budget = budget
        self.max_rounds = max_rounds
        self.keeper = keeper
        self.hooks = hooks or NoHooks()
        self.context = context or SessionContext(session, session, "", "", cursor.endpoint.label, id)
        self.compactions = compactions or CompactionHistory()
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
        self._unreported: deque[tuple[Endpoint, Assistant, float]] = deque()
        self._warned_at: Endpoint | None = None

    def request(self) -> ModelRequest:
        """What the model reads now: the history is shared and grows as it is recorded."""
        return self._request

    def final_request(self) -> ModelRequest:
        """The same prefix, but no tool may be called."""
        return msgspec.structs.replace(self._request, may_call=False)

    def note_answer(self, endpoint: Endpoint, answer: Assistant, seconds: float) -> None:
        """To be reported to hooks and context keeper once it is on the disk."""
        self._unreported.append((endpoint, answer, seconds))

    async def report_answers(self) -> None:
        while self._unreported:
            endpoint, answer, seconds = self._unreported.popleft()
            await self.hooks.after_request(self.context, endpoint, answer, seconds)
            if self.keeper is not None:
                await self.keeper.record_usage(answer.usage)

    def steer(self, text: str, also: Iterable[Write] = ()) -> bool:
        """`also` is recorded with the note once the model reads it. False: it never will, the answer is complete."""
        if self._takes_steering:
            self._steering.append((MessageAdded(user(text, author="steering")), *also))
        return self._takes_steering

    def forget_steering(self) -> None:
        """Withdraw what the model has not read yet."""
        self._steering.clear()

    def stop_steering(self) -> bool:
        """Stop accepting steering. False: a note is still unread."""
        self._takes_steering = bool(self._steering)
        return not self._takes_steering

    def take_steering(self) -> Iterator[tuple[Write, ...]]:
        """What the model should read before its next round: notes from the person, and news of background work."""
        for text in self._news():
            yield (MessageAdded(user(text, author="host")),)
        while self._steering:
            yield self._steering.popleft()

    def warn_when_full(self, request: ModelRequest, endpoint: Endpoint, sink: Sink) -> None:
        """Warn once per endpoint and turn, when the window in use is nearly full."""
        if endpoint.window is None or endpoint.compact_at is None or self._warned_at == endpoint:
            return
        tokens = prompt_tokens(request)
        if tokens > endpoint.compact_at:
            self._warned_at = endpoint
            share = f"about {100 * tokens // endpoint.window} % of the window of {endpoint.label}"
            advice = "" if self.keeper is not None else "; when it is full, begin a new one"
            sink.emit(Notice(f"This conversation takes {share}{advice}."))
