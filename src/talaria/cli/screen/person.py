"""The person at the screen: allows or does not, and answers the model's questions."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from talaria.cli.screen.menu import Choice, Menu
from talaria.cli.screen.question_view import question_rows
from talaria.cli.screen.screen import Screen
from talaria.tools.person import Answer, Instead, Question, measure
from talaria.waiting import in_thread


class ScreenPerson:
    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def may_approve(self) -> bool:
        return True

    async def allow(self, question: Question) -> Answer | Instead:
        always = "Yes, in every project" if question.opens_sandbox else "Yes, always (for 30 days)"
        choices: dict[Answer, Choice] = {
            "no": Choice("no", "No, do not", key="n"),
            "once": Choice("once", "Yes, this once", key="y"),
            "session": Choice("session", f"Yes, in this conversation: {question.in_session}", key="s"),
            "project": Choice("project", "Yes, in this project", key="p"),
            "always": Choice("always", always, key="a"),
        }
        instead = Choice("instead", "No, and say what to do instead", key="i")
        offered = [*(choices[one] for one in question.offered), instead]
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
        painted: Callable[[int], Sequence[str]] | None = None
        if question.changes:
            painted = lru_cache(maxsize=2)(partial(question_rows, question))
            await in_thread(partial(painted, self._screen.columns - 2))  # of a long change that takes a moment
        title = "Open the sandbox?" if question.opens_sandbox else f"May {question.tool} do this?"
        menu = Menu(title, offered, body=question.text, painted=painted, footer=why, facts=facts)
        given = await self._screen.ask(menu)
        if given == "instead":
            words = await self._screen.ask(Menu("What to do instead?", [], body=question.headline, typing="words"))
            return Instead(words) if words and words.strip() else "no"
        for one in question.offered:
            if one == given:
                return one
        return "no"

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        offered = [Choice(one, one) for one in choices]
        return await self._screen.ask(Menu("The model asks", offered, body=question, typing="words"))
