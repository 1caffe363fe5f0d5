"""Text that is shown as it is: in markdown, and to a person who must decide about it."""

import re
from itertools import groupby

MAX_BLANK_LINES = 2
_BLANKS = re.compile(r"[ \t]{60,}")


def fenced(text: str) -> str:
    """With a fence that is longer than any in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text.rstrip()}\n{fence}"


def without_blank_runs(text: str) -> str:
    """Many empty lines become one that says how many there were, and many blanks too: they hide nothing."""
    lines: list[str] = []
    for is_blank, run in groupby(text.split("\n"), key=lambda line: not line.strip()):
        found = [*run]
        too_many = is_blank and len(found) > MAX_BLANK_LINES
        lines += [f"[{len(found)} blank lines]"] if too_many else found
    return _BLANKS.sub(lambda found: f"[{len(found[0])} blanks]", "\n".join(lines))
