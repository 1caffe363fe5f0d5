"""How a call ended, for people: told by its result, or read from the text of one that an earlier version wrote."""

import re

from talaria.core.messages import Outcome, ToolResult

_COMMANDS = ("terminal", "execute_code", "process")
_END = re.compile(
    r"^\[(?:exit code (?P<code>\d+)(?P<killed>; killed: .*)?|stopped after (?P<limit>\d+) seconds;.*"
    r"|(?P<stopped>stopped, because .*|killed: .*|lost: .*))\]$",
    re.MULTILINE,
)
"""What stands behind a command's output."""


def outcome(result: ToolResult) -> Outcome:
    if result.outcome is not None:
        return result.outcome
    if result.is_error:
        return _failure(result)
    ends = list(_END.finditer(result.text)) if result.name in _COMMANDS else []
    if not ends:
        return Outcome()
    end = ends[-1]
    chars = max(0, end.start() - 1)
    if end["code"] is not None:
        is_done = end["code"] == "0" and not end["killed"]
        return Outcome("done" if is_done else "failed", f"exit {end['code']}", output_chars=chars)
    words = f"timed out after {end['limit']} s" if end["limit"] else end["stopped"]
    return Outcome("failed", words, output_chars=chars)


def _failure(result: ToolResult) -> Outcome:
    if result.disposition == "unknown":
        return Outcome("cancelled", "stopped")
    if result.text.startswith("Not started: "):
        return Outcome("cancelled", "not started")
    first = next((line for line in result.text.split("\n") if line.strip()), "").strip()
    return Outcome("failed", first.removeprefix("Error: ").partition(". ")[0].removesuffix("."))


def refusal(result: ToolResult) -> str:
    """One line, for standard error."""
    return f"{result.name} refused: {' '.join(outcome(result).words.split())}"


def is_unasked(result: ToolResult) -> bool:
    """It was refused because nobody was there to allow it."""
    return result.outcome is not None and result.outcome.refused_by == "nobody"
