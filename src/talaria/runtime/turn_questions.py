"""Questions of a running turn: answered where the person is asked or, by a signal, from anywhere else. The first answer
counts, and everybody who watches sees whose it was."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from talaria.core.aio import complete
from talaria.core.events import Event, QuestionAsked, QuestionClosed
from talaria.core.questions import Answer, Instead, ModelQuestion, Question
from talaria.store.signal_port import Signal
from talaria.tools.person import Person

T = TypeVar("T")


class _OpenQuestion(msgspec.Struct, frozen=True):
    question: Question | ModelQuestion
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
            return "The question is no longer open." if closed is None else closed.sentence
        match found.question:
            case Question(offered=offered) if signal.answer not in offered:
                return f"The answer must be one of {', '.join(offered)}."
            case ModelQuestion(choices=choices) if not signal.text and signal.answer not in choices:
                return f"The answer must be words, or one of {', '.join(choices)}."
            case _:
                found.signal.set_result(signal)
                return ""

    @asynccontextmanager
    async def keep_open(self, question: Question | ModelQuestion) -> "AsyncGenerator[asyncio.Future[Signal]]":
        """The future has the signal with the answer, if that comes from elsewhere."""
        signal: asyncio.Future[Signal] = asyncio.get_running_loop().create_future()
        self._open[question.id] = _OpenQuestion(question, signal)
        self._emit(QuestionAsked(question))
        try:
            yield signal
        finally:
            del self._open[question.id]
            signal.cancel()
            if question.id not in self._closed:
                self.close(question.id, "No longer open.")

    @property
    def open(self) -> Sequence[Question | ModelQuestion]:
        """Those that wait for an answer, oldest first."""
        return [one.question for one in self._open.values() if not one.signal.done()]

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
        def read(signal: Signal) -> Answer | Instead:
            answer: Answer = next(one for one in question.offered if one == signal.answer)
            return Instead(signal.text) if answer == "no" and signal.text else answer

        return await self._first(question, self._person.allow(question), read, question.describe_answer)

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        asked = ModelQuestion(os.urandom(8).hex(), question, tuple(choices))
        return await self._first(
            asked,
            self._person.choose(question, choices),
            lambda signal: signal.answer or signal.text,
            lambda answer: f"Answered: {answer}" if answer else "Not answered.",
        )

    async def _first(
        self,
        question: Question | ModelQuestion,
        here: Coroutine[Any, Any, T],
        read: Callable[[Signal], T],
        describe: Callable[[T], str],
    ) -> T:
        """The first answer. If it comes from elsewhere, the person who is asked here is told whose it was."""
        async with self._questions.keep_open(question) as elsewhere:
            asking = asyncio.create_task(here, name="question")
            try:
                await asyncio.wait([asking, elsewhere], return_when=asyncio.FIRST_COMPLETED)
                if asking.done():
                    answer = asking.result()
                    self._questions.close(question.id, describe(answer), self._id, self._surface)
                    return answer
                signal = elsewhere.result()
                answer = read(signal)
                closed = self._questions.close(question.id, describe(answer), signal.by, signal.surface)
                asking.cancel(closed.sentence)
                return answer
            finally:
                asking.cancel()
                await complete(asyncio.wait([asking]))
