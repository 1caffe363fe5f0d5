"""Makes room in the model's window: before a call if the window is nearly full, and after a call that overflowed it."""

import msgspec

from talaria.agent.turn import Sink, Turn
from talaria.context.base import CompactionRequest, is_shorter
from talaria.core.entries import encode_compaction
from talaria.core.events import Notice
from talaria.providers.base import prompt_tokens

_HOW = {
    "model": "",
    "host": " without a model's help",
    "nobody": " by leaving out old tool output",
    "engine": " by its context engine",
}


async def compact_if_full(turn: Turn, sink: Sink, *, has_overflowed: bool = False) -> bool:
    """True: the conversation is shorter now, in the journal, too."""
    if turn.keeper is None:
        return False
    endpoint = turn.cursor.endpoint
    tokens = prompt_tokens(turn.request())
    threshold = endpoint.compact_at or tokens
    if has_overflowed:
        threshold = min(threshold, tokens // 2)  # what we believed about the window was wrong
    elif not await turn.keeper.is_due(endpoint, tokens, is_blocked=turn.compactions.are_blocked):
        return False
    may_ask = not turn.compactions.is_cooling(turn.clock.now())
    with turn.budget.count_as_wait():
        seconds = turn.budget.seconds_for_waiting
        request = CompactionRequest(tokens, threshold, seconds=seconds, may_ask=may_ask, has_overflowed=has_overflowed)
        said = await compact(turn, request, sink)
    if said:
        sink.emit(Notice(said))
    return bool(said)


async def compact(turn: Turn, request: CompactionRequest, sink: Sink) -> str:
    """What was done, in a sentence for people; empty if there was nothing to leave out."""
    if turn.keeper is None:
        return ""
    before = tuple(turn.history)
    request = msgspec.structs.replace(request, memory=await turn.hooks.before_compaction(turn.context, before))
    made = await turn.keeper.compact(before, request)
    if made is None or not is_shorter(made.messages, before):
        return ""
    entry = encode_compaction(
        before, made.messages, summary_by=made.summary_by, tokens=request.tokens, threshold=request.threshold
    )
    await sink.record(entry)
    await turn.keeper.confirm_compaction()
    left = prompt_tokens(turn.request())
    how = _HOW[made.summary_by]
    tokens = f", about {request.tokens:,} → {left:,} tokens" if left < request.tokens else ""
    size = f"{len(before)} → {len(made.messages)} messages{tokens}"
    return f"The conversation was made shorter{how}: {size}. Nothing is lost."
