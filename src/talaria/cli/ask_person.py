"""The person at the terminal: is asked before a call that needs it, and when the model has a question."""

import asyncio
from collections.abc import Sequence

from talaria.cli.choosing import choose, typed
from talaria.cli.safe import visible
from talaria.tools.person import Answer, Question

ANSWERS: dict[str, Answer] = {
    **dict.fromkeys(("", "n", "no"), "no"),
    **dict.fromkeys(("y", "yes", "once"), "once"),
    **dict.fromkeys(("s", "session", "a", "all"), "session"),
    **dict.fromkeys(("always",), "always"),
}
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

    async def allow(self, question: Question) -> Answer:
        offer = _OFFERS[question.longest].format(covered=question.in_session)
        reason = f"\n  (asked because {visible(question.reason)})" if question.reason else ""
        async with self._asking:
            answer = await typed(f"\n{visible(question.text)}{reason}\n  {offer}: ")
            while (meant := _meant(answer, question)) is None:
                answer = await typed(f"  That is no answer. {offer}: ")
        return meant

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        async with self._asking:
            return await choose(question, choices)
