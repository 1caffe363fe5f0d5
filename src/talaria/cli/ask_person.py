"""The person at the terminal: is asked before a call that needs it, and when the model has a question."""

import asyncio
import os
import shutil
import sys
import termios
from collections.abc import Sequence

from talaria.cli.safe import decidable
from talaria.tools.person import Answer, Instead, Question, measure

ANSWERS: dict[str, Answer] = {
    **dict.fromkeys(("", "n", "no"), "no"),
    **dict.fromkeys(("y", "yes", "once"), "once"),
    **dict.fromkeys(("s", "session", "a", "all"), "session"),
    **dict.fromkeys(("p", "project"), "project"),
    **dict.fromkeys(("always",), "always"),
}
INSTEAD = ("i", "instead")
MORE, ALL = ("m", "more", "v", "view"), ("a", "all")
"""While something of a question is not shown yet: what shows the next page, or everything."""
OTHER_ROWS = 8
"""Of the terminal, besides what is shown of a question at a time."""
MIN_ROWS = 5
MAX_LINE_BYTES = 4096
"""A terminal hands over no longer line."""


def _meant(answer: str, question: Question) -> Answer | None:
    """None: that is no answer to this question."""
    meant = ANSWERS.get(answer.lower())
    return meant if meant in question.offered else None


def _offers(question: Question) -> str:
    """What an answer about the sandbox covers stands above, in a line for each."""
    is_brief = question.opens_sandbox
    words: dict[Answer, str] = {
        "once": "[y]es",
        "session": "[s]ession" if is_brief else f"[s]ession: {question.in_session}",
        "project": "[p]roject",
        "always": "always" if is_brief else "always (30 days)",
        "no": "[N]o",
    }
    instead = "[i]nstead" if is_brief else "[i]nstead: say what to do"
    return ", ".join((*(words[one] for one in question.offered[1:]), instead, words["no"]))


def _explained(question: Question) -> str:
    if not question.opens_sandbox:
        return ""
    listed = [(one if one == "always" else one[0], question.scope_of(one)) for one in question.offered[2:]]
    lines = [("y", "yes, this once"), *((key, f"yes, {scope}") for key, scope in listed)]
    lines += [("i", "no, and tell it what to do instead"), ("n", "no")]
    return "".join(f"\n  {key:<7} {decidable(words)}" for key, words in lines)


class TerminalPerson:
    """One question at a time; no answer means no."""

    def __init__(self) -> None:
        self._asking = asyncio.Lock()

    def may_approve(self) -> bool:
        return True

    async def allow(self, question: Question) -> Answer | Instead:
        offer = _offers(question)
        reason = f"\n  (asked because {decidable(question.reason)})" if question.reason else ""
        reason += f"\n  ({decidable(question.model_words)})" if question.model_words else ""
        reason += _explained(question)
        facts = f"\n  (the {question.noun}: {measure(question.content).text})" if question.content is not None else ""
        text, rows, room = _rows(question)
        seen = min(room, len(rows))
        async with self._asking:
            answer = await _typed(f"\n{text}{_left(seen, rows)}{facts}{reason}\n  {_offer(offer, seen, rows)}: ")
            while True:
                if seen < len(rows) and answer.lower() in (*MORE, *ALL):
                    end = min(seen + room, len(rows)) if answer.lower() in MORE else len(rows)
                    page, seen = "\n".join(rows[seen:end]), end
                    answer = await _typed(f"{page}{_left(seen, rows)}\n  {_offer(offer, seen, rows)}: ")
                elif answer.lower() in INSTEAD:
                    words = await _typed("  What to do instead (Enter: nothing): ")
                    return Instead(words) if words else "no"
                elif (meant := _meant(answer, question)) is not None:
                    return meant
                else:
                    answer = await _typed(f"  That is not an answer. {_offer(offer, seen, rows)}: ")

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        """One of `choices`, by its number, or words of their own; None: no answer."""
        listed = (f"{number}  {' '.join(one.split())}" for number, one in enumerate(choices, 1))
        lines = (*decidable(question).split("\n"), *map(decidable, listed))
        told = "".join(f"  {line}\n" for line in lines)  # every line of it set in: none can pass for ours
        hint = "A number, or your own words" if choices else "Your answer"
        async with self._asking:
            answer = await _typed(f"\nThe model asks:\n{told}{hint} (Enter: no answer): ")
        if answer.isdecimal() and 1 <= int(answer) <= len(choices):
            return choices[int(answer) - 1]
        return answer or None


def _rows(question: Question) -> tuple[str, list[str], int]:
    """What is printed first, all rows that it would take here, and how many of them are printed at a time."""
    from talaria.cli.screen.width import wrapped  # noqa: PLC0415  (it loads what plain lines never need)

    columns, height = shutil.get_terminal_size()
    room = max(MIN_ROWS, height - OTHER_ROWS)
    if question.changes:
        from talaria.cli.screen.screen_interface import question_rows  # noqa: PLC0415  (as above)

        rows = question_rows(question, columns - 1, is_plain=True)
        return "\n".join(rows[:room]), rows, room
    text = decidable(question.text)
    rows = wrapped(text, columns - 1)  # whole rows make some terminals add an empty one
    return (text if len(rows) <= room else "\n".join(rows[:room])), rows, room


def _left(seen: int, rows: Sequence[str]) -> str:
    if seen < len(rows):
        return f"\n  (rows 1 to {seen:,} of {len(rows):,}; {len(rows) - seen:,} are not shown yet: m shows more)"
    return ""


def _offer(offer: str, seen: int, rows: Sequence[str]) -> str:
    return f"[m]ore, [a]ll of it, {offer}" if seen < len(rows) else offer


async def _typed(prompt: str) -> str:
    """A line from the terminal; can be interrupted, unlike `input`."""
    descriptor = sys.stdin.fileno()
    termios.tcflush(descriptor, termios.TCIFLUSH)  # what was typed before the question does not answer it
    sys.stderr.write(prompt)
    sys.stderr.flush()
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[str] = loop.create_future()

    def take() -> None:
        if not arrived.done():
            arrived.set_result(os.read(descriptor, MAX_LINE_BYTES).decode("utf-8", "replace"))

    loop.add_reader(descriptor, take)
    line = ""
    try:
        line = await arrived
    finally:
        loop.remove_reader(descriptor)
        if not line.endswith("\n"):  # Ctrl-C or Ctrl-D: what comes next begins a line of its own
            sys.stderr.write("\n")
            sys.stderr.flush()
    return line.strip()
