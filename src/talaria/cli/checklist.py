"""The model's list of steps as people read it: a mark for each, and no ids."""

import re
from typing import NamedTuple

TOOL = "todo"
_STEP = re.compile(r"\[([ x>-])\] [^\n]*?: ([^\n]*)")
_MARKS = {" ": "☐", "x": "☑", ">": "▸", "-": "☒"}


class ChecklistStep(NamedTuple):
    mark: str
    text: str
    is_open: bool
    is_current: bool = False
    is_cancelled: bool = False


def read_steps(result: str) -> list[ChecklistStep]:
    """From what the tool tells the model. Empty: that is not a list."""
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
