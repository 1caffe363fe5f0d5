"""Makes room in the window of the model in use: before a call when it is rather full, and when a call overflowed it."""

from collections.abc import Sequence

from talaria.agent.sink import Sink
from talaria.agent.turn import Turn
from talaria.context.base import Wish
from talaria.model.compaction import compacted
from talaria.model.events import Notice
from talaria.model.messages import Message
from talaria.providers.history import size_tokens
from talaria.providers.size import prompt_tokens

MIN_PROGRESS = 0.05
"""A conversation that is not shorter by this share is not shorter."""


async def make_room(turn: Turn, sink: Sink, *, has_overflowed: bool = False) -> bool:
    """True: the conversation is shorter now, in the journal, too."""
    tokens, threshold = prompt_tokens(turn.view()), turn.walk.endpoint.compact_at
    if has_overflowed:
        threshold = min(threshold or tokens, tokens // 2)  # whatever we believed about the window was wrong
    elif threshold is None or tokens <= threshold or turn.compactions.are_blocked:
        return False
    may_ask = not turn.compactions.is_cooling(turn.clock.now())
    with turn.budget.counting_as_wait():
        wish = Wish(tokens, threshold, seconds=turn.budget.seconds_for_waiting, may_ask=may_ask)
        return await shorten(turn, wish, sink)


async def shorten(turn: Turn, wish: Wish, sink: Sink) -> bool:
    before = tuple(turn.history)
    made = None if turn.compactor is None else await turn.compactor.compact(before, wish)
    if made is None or not _is_shorter(made.messages, before):
        return False
    entry = compacted(before, made.messages, summary_by=made.summary_by, tokens=wish.tokens, threshold=wish.threshold)
    await sink.record(entry)
    left = prompt_tokens(turn.view())
    how = {"model": "", "host": " without a model's help", "nobody": " by leaving out old tool output"}[made.summary_by]
    sink.emit(
        Notice(f"The conversation was made shorter{how}: about {left:,} tokens of {wish.tokens:,}. Nothing is lost.")
    )
    return True


def _is_shorter(after: Sequence[Message], before: Sequence[Message]) -> bool:
    return sum(map(size_tokens, after)) < (1 - MIN_PROGRESS) * sum(map(size_tokens, before))
