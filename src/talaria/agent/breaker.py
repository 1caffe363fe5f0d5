"""Notices a model that repeats a call and gets the same outcome: first advice, then the end of the turn's rounds."""

from collections import Counter

import msgspec

from talaria.model.messages import ToolCall, ToolResult

ADVISE_AT = 3
STOP_AT_FAILURES = 5
STOP_AT_REPEATS = 10

_ADVICE = "\n\n[This exact call has had this exact outcome {count} times. Do something else, or say what is wrong.]"


class Breaker:
    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str, str]] = Counter()
        self.has_tripped = False

    def judge(self, call: ToolCall, result: ToolResult) -> ToolResult:
        """The result as the model shall read it."""
        outcome = (call.name, call.arguments, result.text)
        self._seen[outcome] += 1
        count = self._seen[outcome]
        if count >= (STOP_AT_FAILURES if result.is_error else STOP_AT_REPEATS):
            self.has_tripped = True
        if count < ADVISE_AT:
            return result
        return msgspec.structs.replace(result, text=result.text + _ADVICE.format(count=count))
