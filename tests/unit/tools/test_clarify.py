import asyncio
import json
from collections.abc import Sequence

import msgspec
import pytest

from talaria.core.ids import CallId
from talaria.core.messages import ToolCall, ToolResult
from talaria.core.questions import Answer, Question
from talaria.tools.base import EXCLUSIVE, NOTHING, OpenGate, Scope
from talaria.tools.builtin.planning import MAX_CHOICE_CHARS, MAX_CHOICES, MAX_QUESTION_CHARS, clarify
from talaria.tools.executor import Executor
from talaria.tools.registry import Toolbox

ADVICE = "Choose the most sensible option, continue, and state your assumption in your answer."


class Somebody:
    """Answers what they were told to, and remembers what was asked."""

    def __init__(self, answer: str | None) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Sequence[str]]] = []

    def may_approve(self) -> bool:
        return True

    async def allow(self, question: Question) -> Answer:
        raise AssertionError(question)

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        self.asked.append((question, choices))
        return self.answer


class Thinking(Somebody):
    """Has not made up their mind."""

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        await super().choose(question, choices)
        await asyncio.Event().wait()


async def called(scope: Scope, person: Somebody | None, **arguments: object) -> ToolResult:
    executor = Executor(Toolbox([clarify]), OpenGate(), msgspec.structs.replace(scope, person=person))
    return await executor.call(ToolCall(CallId("c"), "clarify", json.dumps(arguments)))


async def test_person_is_asked_and_their_words_come_back(scope: Scope) -> None:
    person = Somebody("Blue")
    result = await called(scope, person, question=" Which colour? ", choices=["Red\nish", " Blue "])
    assert person.asked == [("Which colour?", ("Red ish", "Blue"))]
    assert (result.text, result.is_error) == ("The person answered: Blue", False)


async def test_question_may_have_no_choices(scope: Scope) -> None:
    person = Somebody("Whatever you like.")
    assert (await called(scope, person, question="Why?")).text == "The person answered: Whatever you like."
    assert person.asked == [("Why?", ())]


async def test_without_an_answer_the_model_decides_and_says_so(scope: Scope) -> None:
    result = await called(scope, Somebody(None), question="Why?")
    assert (result.text, result.is_error) == (f"The person did not answer. {ADVICE}", False)


async def test_where_nobody_is_there_the_model_decides_and_says_so(scope: Scope) -> None:
    result = await called(scope, None, question="Why?", choices=["a", "b"])
    assert (result.text, result.is_error) == (f"Error: Nobody is available to answer. {ADVICE}", True)


@pytest.mark.parametrize(
    ("question", "choices", "sentence"),
    [
        (" \n", [], f"The question must have 1 to {MAX_QUESTION_CHARS} characters."),
        ("x" * (MAX_QUESTION_CHARS + 1), [], f"The question must have 1 to {MAX_QUESTION_CHARS} characters."),
        ("Why?", ["x"] * (MAX_CHOICES + 1), "There can be 6 choices, of 1 to 120 characters each."),
        ("Why?", ["x", " "], "There can be 6 choices, of 1 to 120 characters each."),
        ("Why?", ["x" * (MAX_CHOICE_CHARS + 1)], "There can be 6 choices, of 1 to 120 characters each."),
    ],
)
async def test_question_that_is_too_long_is_not_asked(
    scope: Scope, question: str, choices: list[str], sentence: str
) -> None:
    person = Somebody("yes")
    result = await called(scope, person, question=question, choices=choices)
    assert (result.text, result.is_error, person.asked) == (f"Error: {sentence}", True, [])


async def test_longest_question_is_asked(scope: Scope) -> None:
    person = Somebody("yes")
    choices = ["x" * MAX_CHOICE_CHARS] * MAX_CHOICES
    await called(scope, person, question="x" * MAX_QUESTION_CHARS, choices=choices)
    assert person.asked == [("x" * MAX_QUESTION_CHARS, tuple(choices))]


async def test_person_is_waited_for_until_somebody_interrupts(scope: Scope) -> None:
    person = Thinking(None)
    waiting = asyncio.create_task(called(scope, person, question="Why?"))
    while not person.asked:
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert clarify.timeout_s is None


def test_question_may_be_repeated_and_nothing_else_runs_meanwhile(scope: Scope) -> None:
    invocation = clarify.prepare('{"question": "Why?"}', scope)
    assert (clarify.after_crash, invocation.effect) == ("repeat", EXCLUSIVE)
    assert (invocation.claim, invocation.question) == (NOTHING, None)
