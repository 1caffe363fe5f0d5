"""What people see of a tool call: how it ended, an excerpt of its output, and the steps of the model's checklist.

Results of earlier versions do not say how they ended, so that is read from their text.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from talaria.cli.safe import visible
from talaria.core.messages import Outcome, ToolResult

CHECKLIST_TOOL = "todo"
_STEP = re.compile(r"\[([ x>-])\] [^\n]*?: ([^\n]*)")
_MARKS = {" ": "☐", "x": "☑", ">": "▸", "-": "☒"}


class ChecklistStep(NamedTuple):
    mark: str
    text: str
    is_open: bool
    is_current: bool = False
    is_cancelled: bool = False


def read_steps(result: str) -> list[ChecklistStep]:
    """Empty if the result is not a list of steps."""
    found = (_STEP.fullmatch(line) for line in result.split("\n"))
    return [
        ChecklistStep(_MARKS[one[1]], one[2], one[1] in " >", is_current=one[1] == ">", is_cancelled=one[1] == "-")
        for one in found
        if one
    ]


def summarise(steps: list[ChecklistStep]) -> str:
    """`2 of 5 steps done`"""
    wanted = [step for step in steps if not step.is_cancelled]
    return f"{sum(not step.is_open for step in wanted)} of {len(wanted)} steps done"


_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])")
_UNINFORMATIVE = re.compile(r"\s*(?:[.sxXFEpP]{5,}\s*(?:\[\s*\d+%\])?|[-=_*~#]{4,})\s*")
"""Test progress, horizontal rules."""
_ERROR_WORDS = re.compile(
    r"\b(?:errors?|fail|failed|failures?|fatal|exception|panic(?:ked)?|denied|not found|no such|cannot|"
    r"undefined)\b|\w(?:error|exception)\b|^E\s",
    re.IGNORECASE,
)
_OMISSION = re.compile(r"\[… [\d,]+ bytes left out; .* …\]")


def output_lines(text: str) -> list[str]:
    """Without escape sequences. Of a line that was overwritten, such as a progress bar, only the last state is kept."""
    lines = _ESCAPES.sub("", text).split("\n")
    return [visible(line.rstrip("\r").rpartition("\r")[2].expandtabs()) for line in lines]


class Excerpt:
    """The few most informative lines of an output."""

    def __init__(self, text: str, most: int, *, is_failed: bool) -> None:
        full = [line for line in output_lines(text) if line.strip()]
        printed = [line for line in full if not _OMISSION.fullmatch(line)]
        room = most + 1 if len(printed) == most + 1 else most  # one more line takes no more room than a note about it
        self.lines = pick_lines(printed, room, is_failed=is_failed)
        self._left = len(printed) - len(self.lines)
        self._is_cut = len(full) > len(printed)

    @property
    def more(self) -> str:
        """How much was left out; empty if nothing was."""
        if self._is_cut:
            return f"… more than {self._left:,} more lines"
        return f"… {self._left:,} more line{'s' if self._left > 1 else ''}" if self._left else ""


def pick_lines(lines: Sequence[str], most: int, *, is_failed: bool) -> list[str]:
    """The last lines; after a failure, the last line and the ones before it that mention an error."""
    useful = [line for line in lines if not _UNINFORMATIVE.fullmatch(line)] or list(lines)
    if not is_failed or len(useful) <= most:
        return useful[-most:]
    last = len(useful) - 1
    wrong = [place for place in range(last) if _ERROR_WORDS.search(useful[place])][-(most - 1) :]
    others = [place for place in range(last) if place not in wrong]
    rest = others[len(others) - (most - 1 - len(wrong)) :]
    return [useful[place] for place in sorted((*wrong, *rest, last))]


_COMMANDS = ("terminal", "execute_code", "process")
_END = re.compile(
    r"^\[(?:exit code (?P<code>\d+)(?P<killed>; killed: .*)?|stopped after (?P<limit>\d+) seconds;.*"
    r"|(?P<stopped>stopped, because .*|killed: .*|lost: .*))\]$",
    re.MULTILINE,
)
"""The last line of a command's result."""


def outcome(result: ToolResult) -> Outcome:
    if result.outcome is not None:
        return result.outcome
    if result.is_error:
        if result.disposition == "unknown":
            return Outcome("cancelled", "stopped")
        if result.text.startswith("Not started: "):
            return Outcome("cancelled", "not started")
        first = next((line for line in result.text.split("\n") if line.strip()), "").strip()
        return Outcome("failed", first.removeprefix("Error: ").partition(". ")[0].removesuffix("."))
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


def refusal(result: ToolResult) -> str:
    """One line, for standard error."""
    return f"{result.name} refused: {' '.join(outcome(result).words.split())}"


def is_unasked(result: ToolResult) -> bool:
    """Whether it was refused because nobody could be asked."""
    return result.outcome is not None and result.outcome.refused_by == "nobody"
