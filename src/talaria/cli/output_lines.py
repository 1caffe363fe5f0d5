"""What a command has printed, as lines that can be shown: harmless, and as a terminal would have left them."""

import re
from collections.abc import Sequence

from talaria.cli.safe import visible

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])")
_EMPTY_WORDS = re.compile(r"\s*(?:[.sxXFEpP]{5,}\s*(?:\[\s*\d+%\])?|[-=_*~#]{4,})\s*")
"""Progress of tests, rules between parts."""
_WRONG = re.compile(
    r"\b(?:errors?|fail|failed|failures?|fatal|exception|panic(?:ked)?|denied|not found|no such|cannot|"
    r"undefined)\b|\w(?:error|exception)\b|^E\s",
    re.IGNORECASE,
)
_LEFT_OUT = re.compile(r"\[… [\d,]+ bytes left out; .* …\]")


def output_lines(text: str) -> list[str]:
    """Without escape sequences; of a line that was written over again and again, such as a progress bar, the end."""
    lines = _ESCAPES.sub("", text).split("\n")
    return [visible(line.rstrip("\r").rpartition("\r")[2].expandtabs()) for line in lines]


class Excerpt:
    """The few lines of an output that tell most."""

    def __init__(self, text: str, most: int, *, is_failed: bool) -> None:
        full = [line for line in output_lines(text) if line.strip()]
        printed = [line for line in full if not _LEFT_OUT.fullmatch(line)]
        room = most + 1 if len(printed) == most + 1 else most  # a line takes no more room than saying that there is one
        self.lines = telling(printed, room, is_failed=is_failed)
        self._left = len(printed) - len(self.lines)
        self._is_cut = len(full) > len(printed)

    @property
    def more(self) -> str:
        """How much there is besides; empty: nothing."""
        if self._is_cut:
            return f"… more than {self._left:,} other lines"
        return f"… {self._left:,} more line{'s' if self._left > 1 else ''}" if self._left else ""


def telling(lines: Sequence[str], most: int, *, is_failed: bool) -> list[str]:
    """The last lines; of a command that failed, the last one and those before it that say what is wrong."""
    told = [line for line in lines if not _EMPTY_WORDS.fullmatch(line)] or list(lines)
    if not is_failed or len(told) <= most:
        return told[-most:]
    last = len(told) - 1
    wrong = [place for place in range(last) if _WRONG.search(told[place])][-(most - 1) :]
    others = [place for place in range(last) if place not in wrong]
    rest = others[len(others) - (most - 1 - len(wrong)) :]
    return [told[place] for place in sorted((*wrong, *rest, last))]
