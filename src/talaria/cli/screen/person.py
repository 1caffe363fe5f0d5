"""The person at the screen: allows or does not, and answers the model's questions."""

from collections.abc import Sequence

from talaria.cli.screen.menu import Choice, Menu
from talaria.cli.screen.screen import Screen
from talaria.tools.person import Answer, Question, measure

_ORDER: tuple[Answer, ...] = ("no", "once", "session", "always")
_MEANT: dict[str, Answer] = {"no": "no", "once": "once", "session": "session", "always": "always"}


class ScreenPerson:
    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def may_approve(self) -> bool:
        return True

    async def allow(self, question: Question) -> Answer:
        choices = [
            Choice("no", "No, do not", key="n"),
            Choice("once", "Yes, this once", key="y"),
            Choice("session", f"Yes, in this conversation: {question.in_session}", key="s"),
            Choice("always", "Yes, always (for 30 days)", key="a"),
        ]
        offered = choices[: _ORDER.index(question.longest) + 1]
        why = f"It is asked because {question.reason}" if question.reason else ""
        facts: tuple[str, ...] = ()
        if question.content is not None:
            found = measure(question.content)
            facts = (
                f"The {question.noun}: {found.text}",
                found.text,
                f"The {question.noun}: {found.short}",
                found.short,
            )
        menu = Menu(f"May {question.tool} do this?", offered, body=question.text, footer=why, facts=facts)
        return _MEANT.get(await self._screen.ask(menu) or "no", "no")

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        offered = [Choice(one, one) for one in choices]
        return await self._screen.ask(Menu("The model asks", offered, body=question, typing="words"))
