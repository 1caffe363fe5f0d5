"""Whether a compaction is worth its entry. Pure.

Whether making a conversation shorter still helps: told from the compactions that the journal has.
"""

from collections.abc import Sequence

from talaria.core.entries import Compacted
from talaria.core.messages import Message
from talaria.providers.message_history import size_tokens

MIN_PROGRESS = 0.05


def is_shorter(after: Sequence[Message], before: Sequence[Message]) -> bool:
    """By a share that counts; or by whole messages, if it is not longer for that."""
    now, then = sum(map(size_tokens, after)), sum(map(size_tokens, before))
    return now < (1 - MIN_PROGRESS) * then or (len(after) < len(before) and now < then)


MAX_FRUITLESS = 2
COOL_DOWN_S = 600.0


class Compactions:
    def __init__(self) -> None:
        self._fruitless = 0
        """Compactions since the last answer whose prompt was below the threshold."""
        self._local_in_a_row = 0
        self._threshold = 0
        self._failed_at: float | None = None

    def add(self, entry: Compacted, at: float) -> None:
        self._fruitless += 1
        self._threshold = entry.threshold
        if entry.summary_by == "host":
            self._local_in_a_row += 1
            self._failed_at = at
        elif entry.summary_by == "model":
            self._local_in_a_row = 0
            self._failed_at = None

    def read(self, prompt_tokens: int) -> None:
        """An answer came, and its prompt was so long: as its model counted it, or else as we believe."""
        if 0 < prompt_tokens < self._threshold:
            self._fruitless = self._local_in_a_row = 0

    @property
    def are_blocked(self) -> bool:
        """The last ones did not help: another would not, either."""
        return max(self._fruitless, self._local_in_a_row) >= MAX_FRUITLESS

    def is_cooling(self, now: float) -> bool:
        """A model failed to summarise a short while ago."""
        return self._failed_at is not None and now - self._failed_at < COOL_DOWN_S
