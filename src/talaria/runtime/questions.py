"""Questions of a running turn: answered where the person is asked or, by a signal, from anywhere else. The first answer
counts, and everybody who watches sees whose it was."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from talaria.core.aio import complete
from talaria.core.events import AnswerChoice, Event, QuestionAsked, QuestionClosed
from talaria.store.signal_port import Signal
from talaria.tools.person import Answer, Instead, Person, Question

T = TypeVar("T")


class _OpenQuestion(msgspec.Struct, frozen=True):
    asked: QuestionAsked
    signal: asyncio.Future[Signal]


class TurnQuestions:
    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._open: dict[str, _OpenQuestion] = {}
        self._closed: dict[str, QuestionClosed] = {}

    def answer(self, signal: Signal) -> str:
        """Why the answer does not count, in a sentence; empty: it does."""
        found = self._open.get(signal.question)
        if found is None or found.signal.done():
            closed = self._closed.get(signal.question)
            return "It is no longer open." if closed is None else closed.sentence
        asked = found.asked
        if signal.answer not in [one.answer for one in asked.choices] and not (asked.takes_words and signal.text):
            return f"The answer must be one of {', '.join(one.answer for one in asked.choices)}."
        found.signal.set_result(signal)
        return ""

    @asynccontextmanager
    async def open(self, asked: QuestionAsked) -> "AsyncGenerator[asyncio.Future[Signal]]":
        """Answered elsewhere: the future has the signal."""
        signal: asyncio.Future[Signal] = asyncio.get_running_loop().create_future()
        self._open[asked.id] = _OpenQuestion(asked, signal)
        self._emit(asked)
        try:
            yield signal
        finally:
            del self._open[asked.id]
            signal.cancel()
            if asked.id not in self._closed:
                self.close(asked.id, "No longer open.")

    def close(self, id: str, outcome: str, by: str = "", surface: str = "") -> QuestionClosed:
        closed = self._closed[id] = QuestionClosed(id, outcome, by, surface)
        self._emit(closed)
        return closed


class SharedPerson:
    """The person of a turn, and everybody else who may answer in their place."""

    def __init__(self, person: Person, id: str, surface: str, questions: TurnQuestions) -> None:
        self._person = person
        self._id = id
        self._surface = surface
        self._questions = questions

    def may_approve(self) -> bool:
        return self._person.may_approve()

    async def allow(self, question: Question) -> Answer | Instead:
        asked = QuestionAsked(
            question.id,
            question.tool,
            question.title or f"May {question.tool} do this?",
            question.text,
            question.reason,
            question.model_words,
            tuple(AnswerChoice(one, question.scope_of(one) if one != "no" else "") for one in question.offered),
        )
        async with self._questions.open(asked) as elsewhere:

            def meant(signal: Signal) -> Answer | Instead:
                chosen: Answer = next(one for one in question.offered if one == signal.answer)
                return Instead(signal.text) if chosen == "no" and signal.text else chosen

            answer = await self._first(
                asked.id,
                self._person.allow(question),
                elsewhere,
                lambda signal: describe_answer(question, meant(signal)),
            )
            if isinstance(answer, Signal):
                return meant(answer)
            self._questions.close(asked.id, describe_answer(question, answer), self._id, self._surface)
            return answer

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        offered = tuple(AnswerChoice(one) for one in choices)
        asked = QuestionAsked(os.urandom(8).hex(), "", "The model asks", question, "", "", offered, takes_words=True)
        async with self._questions.open(asked) as elsewhere:
            answer = await self._first(asked.id, self._person.choose(question, choices), elsewhere, _describe_words)
            if isinstance(answer, Signal):
                return answer.answer or answer.text
            if answer is not None:
                self._questions.close(asked.id, f"Answered: {answer}", self._id, self._surface)
            return answer

    async def _first(
        self,
        id: str,
        here: Coroutine[Any, Any, T],
        elsewhere: "asyncio.Future[Signal]",
        describe: Callable[[Signal], str],
    ) -> T | Signal:
        """The question is closed where the person is asked, with a sentence about who was first."""
        asking = asyncio.create_task(here, name="question")
        try:
            await asyncio.wait([asking, elsewhere], return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            signal = elsewhere.result()
            closed = self._questions.close(id, describe(signal), signal.by, signal.surface)
            asking.cancel(closed.sentence)
            return signal
        finally:
            asking.cancel()
            await complete(asyncio.wait([asking]))


def _describe_words(signal: Signal) -> str:
    return f"Answered: {signal.answer or signal.text}"


def describe_answer(question: Question, answer: Answer | Instead) -> str:
    """For people, once a question is closed."""
    if isinstance(answer, Instead):
        return f"Denied. Instead: {answer.words}"
    return "Denied." if answer == "no" else f"Allowed, {question.scope_of(answer)}."
