"""Whether a compaction is worth its entry. Pure."""

from collections.abc import Sequence

from talaria.core.messages import Message
from talaria.providers.message_history import size_tokens

MIN_PROGRESS = 0.05


def is_shorter(after: Sequence[Message], before: Sequence[Message]) -> bool:
    """By a share that counts; or by whole messages, if it is not longer for that."""
    now, then = sum(map(size_tokens, after)), sum(map(size_tokens, before))
    return now < (1 - MIN_PROGRESS) * then or (len(after) < len(before) and now < then)
