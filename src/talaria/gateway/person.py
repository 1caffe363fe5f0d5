"""The person behind a chat: questions go there with buttons, and wait for a press, a command or words."""

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from talaria.gateway.envelope import Parcel, Principal, read_parcel
from talaria.gateway.replies import Replies
from talaria.model.fences import without_blank_runs
from talaria.model.ids import SessionId
from talaria.platforms.base import Address, Button
from talaria.runtime.placement import parked
from talaria.store.mail import Outbox, Outgoing
from talaria.tools.person import Answer, Question
from talaria.waiting import completed

_LABELS: dict[Answer, str] = {"once": "Allow once", "session": "This session", "always": "Always", "no": "Deny"}
_TOLD: dict[str, str] = {
    "once": "Allowed, once.",
    "session": "Allowed for this session.",
    "always": "Allowed for 30 days.",
    "no": "Denied.",
}
_ORDER: tuple[Answer, ...] = ("no", "once", "session", "always")
CLOSED = "This question is no longer open."
MOST_PARTS = 8
"""What takes more messages than that nobody reads, so nobody is asked."""

_FENCE = "```"
_FENCES = re.compile(r"`{3,}")
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Signs that count as letters, and that nobody sees."""
_MARKUP = re.compile(r"([\\`*_\[\]<>#~|!&])")

log = logging.getLogger(__name__)

Judge = Callable[[], Principal | None]
"""Who somebody is now, where they were asked; None: they may not speak there any more."""


class Pressed(msgspec.Struct, frozen=True):
    """What a button of ours carries."""

    question: str
    choice: str


def pressed(data: str) -> Pressed | None:
    kind, _, rest = data.partition(":")
    question, _, choice = rest.partition(":")
    return Pressed(question, choice) if kind == "q" and question and choice else None


@dataclass(slots=True)
class _Open:
    """A question that waits."""

    id: str
    person: str
    where: Address
    judge: Judge
    answers: dict[str, str]
    """By what a button carries: what it means."""
    takes_words: bool = False
    answer: "asyncio.Future[str]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def may_be_answered(self, answer: str) -> bool:
        """Only an admin allows something; whoever was asked may say no, or answer in words, if they may still speak."""
        principal = self.judge()
        return principal is not None and (principal.is_admin or self.takes_words or answer == "no")


class Questions:
    """All that wait for people. They die with the process: what is asked anew has another id."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    def answer(self, question: str, choice: str, where: Address, principal: Principal) -> bool:
        """By a button. False: it is no longer open, was asked elsewhere, or is not theirs to answer."""
        found = self._open.get(question)
        if found is None or found.person != principal.person or choice not in found.answers:
            return False
        return found.where.chat == where.chat and self._settle(found, found.answers[choice])

    def decide(self, answer: Answer, where: Address, principal: Principal) -> bool:
        """By a command: the oldest question of theirs there, as long as it offers at most. False: there is none."""
        waiting = [one for one in self._of(where, principal) if not one.takes_words]
        if not waiting:
            return False
        offered = [one for one in _ORDER[: _ORDER.index(answer) + 1] if one in waiting[0].answers]
        return self._settle(waiting[0], offered[-1])

    def reply(self, text: str, where: Address, principal: Principal) -> bool:
        """By a message. False: no question of theirs waits for words."""
        for found in self._of(where, principal):
            if found.takes_words:
                numbered = {str(at + 1): choice for at, choice in enumerate(found.answers.values())}
                return self._settle(found, numbered.get(text.strip(), text))
        return False

    def close_unanswerable(self) -> None:
        """The rules have changed: nobody can say yes to some questions any more, so nobody waits for that."""
        for found in self._open.values():
            if not found.answer.done() and not found.may_be_answered("once"):
                found.answer.set_result("")

    def is_open(self, question: str) -> bool:
        return question in self._open

    def is_waiting_for_words(self, where: Address, principal: Principal) -> bool:
        return any(one.takes_words for one in self._of(where, principal))

    def _of(self, where: Address, principal: Principal) -> list[_Open]:
        mine = [one for one in self._open.values() if one.where == where and one.person == principal.person]
        return [one for one in mine if not one.answer.done() and one.judge() is not None]

    def _settle(self, found: _Open, answer: str) -> bool:
        """By the rules of this moment, not of that in which it was asked."""
        if found.answer.done() or not found.may_be_answered(answer):
            return False
        found.answer.set_result(answer)
        return True

    @asynccontextmanager
    async def asked(self, question: _Open) -> AsyncGenerator["asyncio.Future[str]"]:
        self._open[question.id] = question
        try:
            yield question.answer
        finally:
            del self._open[question.id]


class ChatPerson:
    def __init__(
        self,
        person: str,
        session: SessionId,
        where: Address,
        *,
        judge: Judge,
        replies: Callable[[], Awaitable[Replies]],
        questions: Questions,
        outbox: Outbox,
        wake: Callable[[str], None],
    ) -> None:
        """`judge` tells who they are by now. `replies` waits until something can be said there."""
        self._person = person
        self._session = session
        self._where = where
        self._judge = judge
        self._replies = replies
        self._questions = questions
        self._outbox = outbox
        self._wake = wake

    def may_approve(self) -> bool:
        """What leaves the sandbox is for those to allow who may do all that the person at the terminal may."""
        principal = self._judge()
        return principal is not None and principal.is_admin

    async def allow(self, question: Question) -> Answer:
        if not self.may_approve():
            await self._refuse(question)
            return "no"
        offered = _ORDER[: _ORDER.index(question.longest) + 1]
        reason = f"\n(Asked because {unmarked(question.reason)}.)" if question.reason else ""
        ways = " or ".join(f"/approve {answer}" for answer in offered if answer != "no")
        text = f"May this run?\n{fenced(question.text)}{reason}\nAnswer with {ways}, or /deny."
        buttons = tuple(
            Button(_LABELS[answer], f"q:{question.id}:{answer}", "bad" if answer == "no" else "good")
            for answer in (*offered[1:], "no")
        )
        asked = _Open(question.id, self._person, self._where, self._judge, {one: one for one in offered})
        answer = await self._ask(asked, text, buttons, lambda answer: _TOLD.get(answer, CLOSED))
        for one in offered:
            if one == answer:
                return one
        return "no"

    async def _refuse(self, question: Question) -> None:
        """Those who may not speak any more are told nothing."""
        replies = await self._replies()
        if self._judge() is None:
            return
        text = f"The agent wanted to do something that only an admin can allow ({question.tool}); it was not done."
        await self._say(replies.parts(f"question:{question.id}", text))

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        if self._judge() is None:
            return None
        id = secrets.token_hex(8)
        numbered = "\n".join(f"{number}. {choice}" for number, choice in enumerate(choices, 1))
        text = f"{question}\n\n{numbered}".strip()
        buttons = tuple(Button(choice[:40], f"q:{id}:{number}") for number, choice in enumerate(choices))
        answers = {str(number): choice for number, choice in enumerate(choices)}
        asked = _Open(id, self._person, self._where, self._judge, answers, takes_words=True)
        answer = await self._ask(asked, text, buttons, lambda answer: f"→ {answer}" if answer else CLOSED)
        return answer or None

    async def _ask(self, asked: _Open, text: str, buttons: tuple[Button, ...], told: Callable[[str], str]) -> str:
        """In the end the message says what became of it, and its buttons are gone."""
        replies = await self._replies()
        if not asked.may_be_answered("once"):  # it may have taken long until something could be said there
            return ""
        rows = replies.parts(f"question:{asked.id}", text)
        if len(rows) > MOST_PARTS:
            log.warning("a question of session %s is too long to be shown", self._session)
            return ""
        *before, last = [read_parcel(row.body).text for row in rows]
        key, reply_to = rows[-1].key, read_parcel(rows[-1].body).reply_to
        given = ""
        try:
            async with self._questions.asked(asked) as answer, parked():
                has_buttons = replies.capabilities.has_buttons
                asking = replies.row(key, Parcel(last, reply_to, buttons if has_buttons else ()))
                await self._say([*rows[: len(before)], asking])
                given = await answer
        finally:
            await completed(self._say([replies.row(key, Parcel(f"{last}\n\n{told(given)}", reply_to))]))
        return given

    async def _say(self, rows: Sequence[Outgoing]) -> None:
        await self._outbox.add(self._session, rows)
        self._wake(str(self._where))


def fenced(text: str) -> str:
    """As it is, whatever signs it has: no part of it can pass for our own words."""
    seen = without_blank_runs("\n".join(map(_seen, text.split("\n"))))
    shown = _FENCES.sub(lambda found: _spelled(found[0]), seen)
    return f"{_FENCE}\n{shown}\n{_FENCE}"


def unmarked(text: str) -> str:
    """In one line, and without any other look than that of the words around it."""
    return _MARKUP.sub(r"\\\1", _seen(text))


def _seen(text: str) -> str:
    shown = "".join(sign if sign.isprintable() else _spelled(sign) for sign in text)
    return _UNSEEN.sub(lambda found: _spelled(found[0]), shown)


def _spelled(text: str) -> str:
    return "".join(f"\\u{ord(sign):04x}" if ord(sign) < 1 << 16 else f"\\U{ord(sign):08x}" for sign in text)
