"""One answer from the model: streamed to the observers, and healed where a failure can be. Known secrets are taken out
of it as it comes in, before anybody reads it or runs its calls.

Notices an answer that would not come to an end: one that repeats itself, or is longer than its model can write.

Pure: `agent/model_call.py` adds what streams in, and stops reading when it is told why.
"""

from collections.abc import Set as AbstractSet
from contextlib import aclosing

import msgspec

from talaria.agent.compaction import make_room
from talaria.agent.failover import heal
from talaria.agent.turn import Sink, Turn
from talaria.core.errors import Disconnected, LimitReached, ProviderFailure, RequestRejected
from talaria.core.events import Notice, RoundEnded, TextDelta, ThinkingDelta
from talaria.core.ids import CallId, new_call_id
from talaria.core.messages import Assistant, AssistantPart, Text, ToolCall
from talaria.core.redaction import Redactor
from talaria.providers import provider_failures
from talaria.providers.base import Delta, Endpoint, ModelRequest
from talaria.providers.size import prompt_tokens

REPEATED_CHARS = 20_000
"""An answer whose last so many characters are one passage over and over is stopped. It is far more than a table with
equal rows, a drawing or a list of zeros that somebody asked for."""
LONGEST_PASSAGE = 4_000
LOOK_EVERY_CHARS = 2_000
CHARS_PER_TOKEN = 16
"""About four are usual."""
LEAST_CHARS = 200_000
"""Every answer may become so long, whatever limit was asked for: some models count their thoughts apart."""
MOST_CHARS = 8_000_000
"""For a model of which neither the output limit nor the window is known."""


def period(text: str, longest: int = LONGEST_PASSAGE) -> int | None:
    """The length of the shortest passage that all of `text` repeats, the last one perhaps cut off.

    None: there is none of at most `longest` characters that occurs twice or more.
    """
    if len(text) < 2 * longest:
        longest = len(text) // 2
    if longest == 0:
        return None
    backwards = text[::-1]  # searching forward is linear also where much is equal
    found = backwards.find(backwards[:longest], 1)
    return found if 0 < found <= longest and text.startswith(text[found:]) else None


class RunawayWatch:
    """Of one answer. Its thoughts are watched apart from its text."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._chars = 0
        self._tails: dict[type[Delta], str] = {}
        self._unseen_chars = 0

    def add(self, delta: Delta) -> str | None:
        """Why the answer should be stopped, as the end of a sentence; None: it may go on."""
        self._chars += len(delta.text)
        if self._chars > self._max_chars:
            return f"has written {self._chars:,} characters, which is more than it should be able to"
        kind = type(delta)
        tail = self._tails[kind] = (self._tails.get(kind, "") + delta.text)[-REPEATED_CHARS:]
        self._unseen_chars += len(delta.text)
        if len(tail) < REPEATED_CHARS or self._unseen_chars < LOOK_EVERY_CHARS:
            return None
        self._unseen_chars = 0
        if period(tail) is None:
            return None
        what = "its answer" if kind is TextDelta else "its thoughts"
        return f"repeats itself: the last {REPEATED_CHARS:,} characters of {what} are one passage over and over"


def max_chars(request: ModelRequest, endpoint: Endpoint) -> int:
    """What an answer may have before it counts as one without end."""
    tokens = [limit for limit in (request.max_output, endpoint.max_output) if limit is not None]
    if not tokens and endpoint.window is not None:
        tokens = [endpoint.window]
    return max(LEAST_CHARS, min(tokens) * CHARS_PER_TOKEN) if tokens else MOST_CHARS


FULL_SHARE = 0.9
"""A prompt of so much of the window leaves no room to answer."""


async def ask(turn: Turn, request: ModelRequest, sink: Sink) -> Assistant:
    """Raises `LimitReached` before a call, or when an answer does not end; `ProviderFailure` when no attempt at any
    endpoint brought an answer."""
    while True:
        try:
            with turn.budget.counting_failures_as_wait():
                answer = await _attempt(turn, request, sink)
        except ProviderFailure as failure:
            await turn.hooks.request_failed(turn.facts, turn.walk.endpoint, failure)
            turn.budget.check()  # out of time says more than the failure that came of it
            await heal(turn, failure, sink)
        else:
            turn.walk.succeeded()
            if answer.stop == "length" and not answer.calls:
                sink.emit(
                    Notice("The answer was cut off at its output limit (model.max_tokens, or what `limits` leave).")
                )
            answer = with_own_ids(answer, turn.history.call_ids)
            sink.emit(RoundEnded(answer))
            return answer


async def _attempt(turn: Turn, request: ModelRequest, sink: Sink) -> Assistant:
    walk, endpoint = turn.walk, turn.walk.endpoint
    await turn.tell_of_answers()
    await make_room(turn, sink)
    request = await turn.budget.reserve(endpoint, request)
    key = await walk.key()
    turn.redactor.learn([key.reveal()])
    request = msgspec.structs.replace(
        request,
        key=key,
        repairs=walk.repairs,
        is_streaming=request.is_streaming and endpoint.is_streaming,
    )
    turn.warn_when_full(request, endpoint, sink)
    await turn.hooks.before_request(turn.facts, endpoint, turn.history)
    began = turn.clock.monotonic()
    try:
        answer = await _streamed(turn, request, sink)
    except Exception as fault:
        failure = provider_failures.raised(endpoint.label, fault)
        if failure is None:
            raise
        raise failure from fault
    turn.budget.charge(answer, endpoint, request)
    turn.note_answer(endpoint, answer, turn.clock.monotonic() - began)
    if not answer.text and not answer.calls:
        raise nothing_said(answer, request, endpoint)
    return answer


async def _streamed(turn: Turn, request: ModelRequest, sink: Sink) -> Assistant:
    endpoint = turn.walk.endpoint
    written: list[str] = []
    watch = RunawayWatch(max_chars(request, endpoint))
    shown = _Shown(turn.redactor, sink)
    try:
        async with aclosing(turn.walk.provider.stream(request)) as items:
            async for item in items:
                if isinstance(item, Assistant):
                    shown.end()
                    return turn.redactor.value(item)
                written.append(item.text)
                shown.add(item)
                if (why := watch.add(item)) is not None:
                    sentence = f"Stopped: {endpoint.label} {why}. Ask again, or use another model."
                    raise LimitReached(sentence)  # noqa: TRY301  (what was written is charged below)
    except BaseException:  # failed or interrupted: what was written is paid for all the same
        if written:
            turn.budget.charge(Assistant((Text("".join(written)),)), endpoint, request)
        raise
    raise Disconnected(f"{endpoint.label} ended its answer without completing it.")


class _Shown:
    """An answer as people see it come. What may be the beginning of a secret waits for what follows; it is never shown
    of an answer that breaks off."""

    def __init__(self, redactor: Redactor, sink: Sink) -> None:
        self._sink = sink
        self._text = redactor.stream()
        self._thinking = redactor.stream()

    def add(self, delta: Delta) -> None:
        if isinstance(delta, TextDelta):
            self._show(ThinkingDelta, self._thinking.end())
            self._show(TextDelta, self._text.add(delta.text))
        else:
            self._show(ThinkingDelta, self._thinking.add(delta.text))

    def end(self) -> None:
        self._show(ThinkingDelta, self._thinking.end())
        self._show(TextDelta, self._text.end())

    def _show(self, kind: type[Delta], text: str) -> None:
        if text:
            self._sink.emit(kind(text))


def nothing_said(answer: Assistant, request: ModelRequest, endpoint: Endpoint) -> ProviderFailure:
    label = endpoint.label
    match answer.stop:
        case "refused":
            return RequestRejected(f"{label} refused to answer.", kind="content_policy_blocked")
        case "length" if endpoint.window is not None and prompt_tokens(request) > FULL_SHARE * endpoint.window:
            return RequestRejected(
                f"This conversation is too long for {label}. Begin a new one, or use a model with a larger window.",
                kind="context_overflow",
            )
        case "length":
            return RequestRejected(f"{label} spent all its output on thinking; raise model.max_tokens in config.yaml.")
        case _:
            return Disconnected(f"{label} sent an empty answer.", kind="invalid_answer")


def with_own_ids(answer: Assistant, taken: AbstractSet[CallId]) -> Assistant:
    """Every call keeps the model's id if it has one that is new in this session, and gets another if not."""
    if not answer.calls:
        return answer
    seen = set(taken)
    parts: list[AssistantPart] = []
    for part in answer.parts:
        if isinstance(part, ToolCall):
            if not part.id or part.id in seen:
                part = ToolCall(new_call_id(), part.name, part.arguments)  # noqa: PLW2901
            seen.add(part.id)
        parts.append(part)
    return msgspec.structs.replace(answer, parts=tuple(parts)) if parts != list(answer.parts) else answer
