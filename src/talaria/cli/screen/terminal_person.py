"""The person at the screen: allows or does not, and answers the model's questions."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from talaria.cli.screen.menu import Menu, MenuItem
from talaria.cli.screen.question_view import question_rows
from talaria.cli.screen.screen import Screen
from talaria.tools.person import Answer, Instead, Question, measure
from talaria.waiting import in_thread

INSTEAD = "No, and tell it what to do instead"
_KEYS: dict[Answer, str] = {"once": "y", "session": "s", "project": "p", "always": "a"}


class ScreenPerson:
    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def may_approve(self) -> bool:
        return True

    async def allow(self, question: Question) -> Answer | Instead:
        yes = (MenuItem(one, f"Yes, {question.scope_of(one)}", key=_KEYS[one]) for one in question.offered[1:])
        offered = [MenuItem("no", "No, do not", key="n"), *yes, MenuItem("instead", INSTEAD, key="i")]
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
        title = question.title or f"May {question.tool} do this?"
        quoted = question.model_words
        menu = Menu(title, offered, body=question.text, painted=painted, footer=why, quoted=quoted, facts=facts)
        given = await self._screen.ask(menu)
        if given == "instead":
            words = await self._screen.ask(Menu("What to do instead?", [], body=question.headline, typing="words"))
            return Instead(words) if words and words.strip() else "no"
        for one in question.offered:
            if one == given:
                return one
        return "no"

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        offered = [MenuItem(one, one) for one in choices]
        return await self._screen.ask(Menu("The model asks", offered, body=question, typing="words"))
