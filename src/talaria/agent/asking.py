"""One answer from the model: streamed to the observers, asked again when the failure may pass."""

import random
from collections.abc import Set as AbstractSet
from contextlib import aclosing

import msgspec

from talaria.agent.retry import GiveUp, Retry, decide
from talaria.agent.sink import Sink
from talaria.agent.turn import Turn
from talaria.model.errors import Disconnected, ProviderFailure, RequestRejected, Transient
from talaria.model.events import AnswerRestarted, Notice, RoundEnded
from talaria.model.ids import CallId, new_call_id
from talaria.model.messages import Assistant, AssistantPart, ToolCall
from talaria.providers.base import Provider, Request


async def ask(provider: Provider, turn: Turn, request: Request, sink: Sink) -> Assistant:
    """Raises `LimitReached` before a call, `ProviderFailure` when no attempt brought an answer."""
    attempt = 1
    while True:
        turn.check_budget()
        try:
            answer = await _attempt(provider, turn, request, sink)
        except Transient as failure:
            match decide(failure, attempt, random.random(), turn.seconds_left):  # noqa: S311  (jitter)
                case Retry(delay_s):
                    sink.emit(AnswerRestarted(str(failure)))
                    sink.emit(Notice(f"{failure} Trying again in {delay_s:.0f} s."))
                    await turn.clock.sleep(delay_s)
                    attempt += 1
                case GiveUp():
                    raise
        else:
            if answer.stop == "length" and not answer.calls:
                sink.emit(Notice("The answer was cut off at the model's output limit (model.max_tokens)."))
            answer = with_own_ids(answer, turn.history.call_ids)
            sink.emit(RoundEnded(answer))
            return answer


async def _attempt(provider: Provider, turn: Turn, request: Request, sink: Sink) -> Assistant:
    async with aclosing(provider.stream(request)) as items:
        async for item in items:
            if not isinstance(item, Assistant):
                sink.emit(item)
                continue
            turn.charge(item, provider.endpoint)
            if not item.text and not item.calls:
                raise _nothing_said(item, provider.endpoint.label)
            return item
    raise Disconnected(f"{provider.endpoint.label} ended its answer without completing it.")


def _nothing_said(answer: Assistant, label: str) -> ProviderFailure:
    match answer.stop:
        case "refused":
            return RequestRejected(f"{label} refused to answer.")
        case "length":
            return RequestRejected(f"{label} spent all its output on thinking; raise model.max_tokens in config.yaml.")
        case _:
            return Disconnected(f"{label} sent an empty answer.")


def with_own_ids(answer: Assistant, taken: AbstractSet[CallId]) -> Assistant:
    """Every call keeps the model's id if it has one that is new in this session, and gets another if not."""
    seen = set(taken)
    parts: list[AssistantPart] = []
    for part in answer.parts:
        if isinstance(part, ToolCall):
            if not part.id or part.id in seen:
                part = ToolCall(new_call_id(), part.name, part.arguments)  # noqa: PLW2901
            seen.add(part.id)
        parts.append(part)
    return msgspec.structs.replace(answer, parts=tuple(parts)) if parts != list(answer.parts) else answer
