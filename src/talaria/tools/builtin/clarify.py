"""Asking the person in the middle of the work."""

from typing import Annotated

from talaria.core.errors import BadArguments, ToolFailed
from talaria.tools.base import EXCLUSIVE, NOTHING, Run
from talaria.tools.function import tool

MAX_QUESTION_CHARS = 1_000
MAX_CHOICES = 6
MAX_CHOICE_CHARS = 120

_DECIDE = "Choose what is most sensible, go on with that, and say in your answer what you have assumed."


@tool(after_crash="repeat", effect=EXCLUSIVE, timeout_s=None, claim=NOTHING)
async def clarify(
    question: Annotated[str, "The question, in one or two sentences."],
    run: Run,
    choices: Annotated[
        tuple[str, ...], f"Up to {MAX_CHOICES} short answers to choose from; own words are always possible."
    ] = (),
) -> str:
    """Ask the person a question and wait for the answer.

    For what only they can know or decide, and where a wrong guess would cost them much. Not to be allowed to do
    something: that is asked by itself.
    """
    asked, offered = question.strip(), tuple(" ".join(choice.split()) for choice in choices)
    if not asked or len(asked) > MAX_QUESTION_CHARS:
        raise BadArguments(f"The question must have 1 to {MAX_QUESTION_CHARS} characters.")
    if len(offered) > MAX_CHOICES or not all(0 < len(choice) <= MAX_CHOICE_CHARS for choice in offered):
        raise BadArguments(f"There may be {MAX_CHOICES} choices, of 1 to {MAX_CHOICE_CHARS} characters each.")
    if run.scope.person is None:
        raise ToolFailed(f"Nobody is here to answer. {_DECIDE}")
    answer = await run.scope.person.choose(asked, offered)
    return f"The person gave no answer. {_DECIDE}" if answer is None else f"The person answered: {answer}"
