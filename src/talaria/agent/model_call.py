"""One answer from the model: streamed to the observers, stopped if it does not end, and retried where that can help.
Known secrets are redacted as it comes in, before anybody reads it or runs its calls.
"""

import logging
import random
from collections.abc import Awaitable
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from typing import assert_never

import msgspec

from talaria.agent.compaction import compact_if_full
from talaria.agent.retry import Decision, Mend, Reconnect, Retry, decide
from talaria.agent.turn import Sink, Turn
from talaria.core.entries import RouteChanged
from talaria.core.errors import Disconnected, LimitReached, ProviderFailure, RequestRejected
from talaria.core.events import AnswerRestarted, Notice, RoundEnded, RouteSwitched, TextDelta, ThinkingDelta
from talaria.core.ids import CallId, new_call_id
from talaria.core.messages import Assistant, AssistantPart, Text, ToolCall
from talaria.core.redaction import Redactor
from talaria.providers import provider_failures
from talaria.providers.base import Delta, Endpoint, ModelRequest, prompt_tokens

log = logging.getLogger(__name__)


async def recover(turn: Turn, failure: ProviderFailure, sink: Sink) -> None:
    """Prepare the next attempt. Raises `failure` if nothing is left to try."""
    turn.cursor.note_failure()
    await turn.budget.release()
    while True:
        state = turn.cursor.state(turn.budget.seconds_for_waiting)
        decision = decide(failure, state, random.random())  # noqa: S311  (jitter)
        log.info(
            "%s failed with %s (%s); next: %s",
            *(turn.cursor.endpoint.label, type(failure).__name__, failure.kind),
            decision if isinstance(decision, str) else type(decision).__name__.lower(),
        )
        if decision == "give_up":
            turn.cursor.leave(failure)
            failures = turn.cursor.left_because
            if len(failures) > 1:
                failure.args = (f"No model answered. {' '.join(map(str, failures))}",)
            raise failure
        sink.emit(AnswerRestarted(str(failure)))
        if await _carry_out(decision, turn, failure, sink):
            return


async def _carry_out(decision: Decision, turn: Turn, failure: ProviderFailure, sink: Sink) -> bool:
    """False: it did not help, so decide again."""
    cursor = turn.cursor
    match decision:
        case Mend(repair):
            cursor.add_repair(repair)
            cursor.discount_failure()
        case "compact":
            has_helped = await compact_if_full(turn, sink, has_overflowed=True)
            cursor.note_compaction(has_helped=has_helped)
            return has_helped
        case "refresh_key":
            cursor.discount_failure()
            return await _try_remedy(cursor.refresh_key())
        case "rotate_key":
            sink.emit(Notice(f"{failure} Trying another key."))
            cursor.rotate_key(failure)
        case Retry(delay_s):
            sink.emit(Notice(f"{failure} Trying again in {delay_s:.0f} s."))
            await turn.budget.wait(delay_s)
        case Reconnect(delay_s):
            if not await _try_remedy(cursor.reconnect()):
                return False
            sink.emit(Notice(f"{failure} Trying new connections in {delay_s:.0f} s."))
            await turn.budget.wait(delay_s)
        case "fall_back":
            before = cursor.endpoint
            cursor.fall_back(failure)
            await announce_switch(turn, before, str(failure), sink)
        case "give_up":
            return False
        case _:
            assert_never(decision)
    return True


async def _try_remedy(remedy: Awaitable[bool]) -> bool:
    """If the remedy itself fails, the original failure says what is wrong."""
    try:
        return await remedy
    except Exception as fault:  # noqa: BLE001  (a provider may be anybody's code)
        log.warning("a remedy failed: %r", fault)
        return False


async def announce_switch(turn: Turn, before: Endpoint, reason: str, sink: Sink) -> None:
    """The turn continues at another endpoint: recorded in the journal, and shown to people."""
    now = turn.cursor.endpoint
    await sink.record(RouteChanged(turn.id, before.label, now.label, reason))
    sink.emit(RouteSwitched(before.label, now.label, reason, now.window, now.compact_at))


REPEATED_CHARS = 20_000
"""An answer is stopped if this many characters at its end repeat one passage. That is far more than a table with equal
rows, a drawing or a list of zeros that somebody asked for."""
LONGEST_PASSAGE = 4_000
LOOK_EVERY_CHARS = 2_000
CHARS_PER_TOKEN = 16
"""About four are usual."""
LEAST_CHARS = 200_000
"""Every answer may become this long, whatever limit was asked for: some models count their thoughts separately."""
MOST_CHARS = 8_000_000
"""For a model whose output limit and window are both unknown."""


def period(text: str, longest: int = LONGEST_PASSAGE) -> int | None:
    """The length of the shortest passage that all of `text` repeats; its last copy may be cut off.

    None: no passage of at most `longest` characters occurs twice or more.
    """
    if len(text) < 2 * longest:
        longest = len(text) // 2
    if longest == 0:
        return None
    backwards = text[::-1]  # searching forward is linear also where much is equal
    found = backwards.find(backwards[:longest], 1)
    return found if 0 < found <= longest and text.startswith(text[found:]) else None


class RunawayWatch:
    """Watches one answer, its thoughts separately from its text."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._chars = 0
        self._tails: dict[type[Delta], str] = {}
        self._unseen_chars = 0

    def add(self, delta: Delta) -> str | None:
        """Why the answer should be stopped, as the end of a sentence; None: it should not."""
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
    """How long an answer may be before it counts as endless."""
    tokens = [limit for limit in (request.max_output, endpoint.max_output) if limit is not None]
    if not tokens and endpoint.window is not None:
        tokens = [endpoint.window]
    return max(LEAST_CHARS, min(tokens) * CHARS_PER_TOKEN) if tokens else MOST_CHARS


FULL_SHARE = 0.9
"""A prompt that fills this much of the window leaves no room to answer."""


async def ask_model(turn: Turn, request: ModelRequest, sink: Sink) -> Assistant:
    """Raises `LimitReached` before a call or if an answer does not end, `ProviderFailure` if no endpoint answers."""
    while True:
        try:
            with turn.budget.count_failures_as_wait():
                answer = await _attempt(turn, request, sink)
        except ProviderFailure as failure:
            await turn.hooks.request_failed(turn.context, turn.cursor.endpoint, failure)
            turn.budget.check()  # "out of time" says more than the failure that it caused
            await recover(turn, failure, sink)
        else:
            turn.cursor.note_success()
            if answer.stop == "length" and not answer.calls:
                sink.emit(
                    Notice("The answer was cut off at its output limit (model.max_tokens, or what `limits` leave).")
                )
            answer = with_unique_call_ids(answer, turn.history.call_ids)
            sink.emit(RoundEnded(answer))
            return answer


async def _attempt(turn: Turn, request: ModelRequest, sink: Sink) -> Assistant:
    cursor, endpoint = turn.cursor, turn.cursor.endpoint
    await turn.report_answers()
    await compact_if_full(turn, sink)
    request = await turn.budget.reserve(endpoint, request)
    key = await cursor.key()
    turn.redactor.learn([key.reveal()])
    request = msgspec.structs.replace(
        request,
        key=key,
        repairs=cursor.repairs,
        is_streaming=request.is_streaming and endpoint.is_streaming,
    )
    turn.warn_when_full(request, endpoint, sink)
    await turn.hooks.before_request(turn.context, endpoint, turn.history)
    began = turn.clock.monotonic()
    try:
        answer = await _stream_answer(turn, request, sink)
    except Exception as fault:
        failure = provider_failures.from_exception(endpoint.label, fault)
        if failure is None:
            raise
        raise failure from fault
    turn.budget.charge(answer, endpoint, request)
    turn.note_answer(endpoint, answer, turn.clock.monotonic() - began)
    if not answer.text and not answer.calls:
        raise empty_answer_failure(answer, request, endpoint)
    return answer


async def _stream_answer(turn: Turn, request: ModelRequest, sink: Sink) -> Assistant:
    endpoint = turn.cursor.endpoint
    written: list[str] = []
    watch = RunawayWatch(max_chars(request, endpoint))
    shown = _AnswerDisplay(turn.redactor, sink)
    try:
        async with aclosing(turn.cursor.provider.stream(request)) as items:
            async for item in items:
                if isinstance(item, Assistant):
                    shown.end()
                    return turn.redactor.value(item)
                written.append(item.text)
                shown.add(item)
                if (why := watch.add(item)) is not None:
                    sentence = f"Stopped: {endpoint.label} {why}. Ask again, or use another model."
                    raise LimitReached(sentence)  # noqa: TRY301  (what was written is charged below)
    except BaseException:  # failed or interrupted: what was written is charged all the same
        if written:
            turn.budget.charge(Assistant((Text("".join(written)),)), endpoint, request)
        raise
    raise Disconnected(f"{endpoint.label} ended its answer without completing it.")


class _AnswerDisplay:
    """Shows an answer as it comes. What may be the beginning of a secret is held back until more follows, and is never
    shown if the answer breaks off."""

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


def empty_answer_failure(answer: Assistant, request: ModelRequest, endpoint: Endpoint) -> ProviderFailure:
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


def with_unique_call_ids(answer: Assistant, taken: AbstractSet[CallId]) -> Assistant:
    """A call keeps the model's id if that is new in this session, and gets another otherwise."""
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
