"""Notices an answer that would not come to an end: one that repeats itself, or is longer than its model can write.

Pure: `agent/model_call.py` adds what streams in, and stops reading when it is told why.
"""

from talaria.core.events import TextDelta
from talaria.providers.base import Delta, Endpoint, ModelRequest

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
