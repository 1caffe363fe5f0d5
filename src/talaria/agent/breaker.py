"""Notices a model that repeats a call and gets the same outcome: first advice, then the end of the turn's rounds."""

from collections import Counter

import msgspec

from talaria.core.messages import Image, ToolCall, ToolResult

_ADVICE = "\n\n[This exact call has had this exact outcome {count} times. Do something else, or say what is wrong.]"

_Outcome = tuple[str, str, str, tuple[Image, ...]]


class Patience(msgspec.Struct, frozen=True):
    """After how many rounds with the same outcome the model is advised, and stopped."""

    advise_at: int
    stop_at: int


WITH_FAILURES = Patience(3, 5)
WITH_SUCCESSES = Patience(6, 10)
"""Looking again at the same thing may be right for a while."""


class Breaker:
    def __init__(self) -> None:
        self._rounds: Counter[_Outcome] = Counter()
        self._this_round: set[_Outcome] = set()
        self.has_tripped = False

    def begin_round(self) -> None:
        """Equal calls of one answer are not a repetition."""
        self._this_round.clear()

    def judge(self, call: ToolCall, result: ToolResult) -> ToolResult:
        """The result as the model shall read it."""
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
