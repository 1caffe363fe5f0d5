"""The person at the terminal: is asked before a call that needs it, and when the model has a question."""

import asyncio
import os
import sys
import termios
from collections.abc import Sequence

from talaria.cli.safe import decidable
from talaria.tools.person import Answer, Question

ANSWERS: dict[str, Answer] = {
    **dict.fromkeys(("", "n", "no"), "no"),
    **dict.fromkeys(("y", "yes", "once"), "once"),
    **dict.fromkeys(("s", "session", "a", "all"), "session"),
    **dict.fromkeys(("always",), "always"),
}
SEEN_LINES = 18
"""Of a question, at every terminal."""
MAX_LINE_BYTES = 4096
"""A terminal hands over no longer line."""
_ORDER: tuple[Answer, ...] = ("no", "once", "session", "always")
_OFFERS: dict[Answer, str] = {
    "once": "[y]es, [N]o",
    "session": "[y]es, [s]ession: {covered}, [N]o",
    "always": "[y]es, [s]ession: {covered}, always (30 days), [N]o",
}


def _meant(answer: str, question: Question) -> Answer | None:
    """None: that is no answer to this question."""
    meant = ANSWERS.get(answer.lower())
    return None if meant is None or _ORDER.index(meant) > _ORDER.index(question.longest) else meant


class TerminalPerson:
    """One question at a time; no answer means no."""

    def __init__(self) -> None:
        self._asking = asyncio.Lock()

    def may_approve(self) -> bool:
        return True

    async def allow(self, question: Question) -> Answer:
        offer = _OFFERS[question.longest].format(covered=question.in_session)
        reason = f"\n  (asked because {decidable(question.reason)})" if question.reason else ""
        text = decidable(question.text)
        length = text.count("\n") + 1
        above = f"\n  (these are {length} lines: scroll up to read all of them)" if length > SEEN_LINES else ""
        async with self._asking:
            answer = await _typed(f"\n{text}{above}{reason}\n  {offer}: ")
            while (meant := _meant(answer, question)) is None:
                answer = await _typed(f"  That is no answer. {offer}: ")
        return meant

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
