"""Tools for planning: the model's list of steps, and questions to the person.

The list is in a file per session, so it survives restarts and compaction.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from talaria.core.errors import BadArguments, ToolFailed
from talaria.core.fs import read_bytes, replace_file
from talaria.tools.base import EXCLUSIVE, NOTHING, Effect, Run, Scope
from talaria.tools.function import tool

MAX_STEPS = 100
MAX_CHARS = 500
MAX_ID_CHARS = 40
MAX_FILE_BYTES = 1 << 20

Status = Literal["pending", "in_progress", "completed", "cancelled"]
_MARKS: dict[Status, str] = {"pending": " ", "in_progress": ">", "completed": "x", "cancelled": "-"}


class TodoItem(msgspec.Struct, frozen=True):
    id: str
    content: str
    status: Status = "pending"


class GivenStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As the model gives it. With `merge`, omitted fields keep their values."""

    id: Annotated[str, msgspec.Meta(description="A short name of your choice, used to update the step later.")]
    content: Annotated[str | None, msgspec.Meta(description="What to do.")] = None
    status: Annotated[Status | None, msgspec.Meta(description="Keep one step in progress at a time.")] = None


def todo_file(spill: Path) -> Path:
    """The list of the session with this spill folder."""
    return spill.parent.parent / "todos" / f"{spill.name}.json"


def _effect(arguments: Any, scope: Scope) -> Effect:
    return Effect("reads" if arguments.todos is None else "writes", (todo_file(scope.spill),))


@tool(after_crash="repeat", effect=_effect, claim=NOTHING)
def todo(
    run: Run,
    todos: Annotated[tuple[GivenStep, ...] | None, "The steps, in order. If omitted, the list is only shown."] = None,
    merge: Annotated[
        bool, "Update the steps with these ids and add new ones, instead of replacing the whole list."
    ] = False,
) -> str:
    """Keep a list of steps for longer work, and show it.

    Write the list when you begin and keep it up to date: set a step to in_progress when you start it, and to
    completed when it is done.
    """
    file = todo_file(run.scope.spill)
    try:
        steps = msgspec.json.decode(read_bytes(file, MAX_FILE_BYTES), type=tuple[TodoItem, ...])
    except (OSError, msgspec.MsgspecError, RecursionError):
        steps = ()
    if todos is not None:
        known = {step.id: step for step in steps} if merge else {}
        for one in todos:
            id = " ".join(one.id.split())
            step = known.get(id) or TodoItem(id, "")
            content = " ".join((step.content if one.content is None else one.content).split())
            if not id or len(id) > MAX_ID_CHARS:
                raise BadArguments(f"The id of a step must have 1 to {MAX_ID_CHARS} characters.")
            if not content or len(content) > MAX_CHARS:
                raise BadArguments(f"The content of step {id} must have 1 to {MAX_CHARS} characters.")
            known[id] = TodoItem(id, content, one.status or step.status)
        if len(known) > MAX_STEPS:
            raise BadArguments(f"A list can have at most {MAX_STEPS} steps; combine some of them.")
        steps = tuple(known.values())
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(file, msgspec.json.encode(steps), mode=0o600)
        except OSError as fault:
            raise ToolFailed(f"The list cannot be saved: {fault.strerror}.") from fault
    if not steps:
        return "[the list is empty]"
    done = sum(step.status == "completed" for step in steps)
    lines = (f"[{_MARKS[step.status]}] {step.id}: {step.content}" for step in steps)
    return "\n".join([*lines, f"[{done} of {len(steps)} completed; > in progress, - cancelled]"])


MAX_QUESTION_CHARS = 1_000
MAX_CHOICES = 6
MAX_CHOICE_CHARS = 120

_DECIDE = "Choose the most sensible option, continue, and state your assumption in your answer."


@tool(after_crash="repeat", effect=EXCLUSIVE, timeout_s=None, claim=NOTHING)
async def clarify(
    question: Annotated[str, "The question, in one or two sentences."],
    run: Run,
    choices: Annotated[
        tuple[str, ...], f"Up to {MAX_CHOICES} short answers to choose from; the person can also type their own."
    ] = (),
) -> str:
    """Ask the person a question and wait for the answer.

    Use it for what only they can know or decide, where a wrong guess would be costly. Do not ask for permission: that
    happens automatically.
    """
    asked, offered = question.strip(), tuple(" ".join(choice.split()) for choice in choices)
    if not asked or len(asked) > MAX_QUESTION_CHARS:
        raise BadArguments(f"The question must have 1 to {MAX_QUESTION_CHARS} characters.")
    if len(offered) > MAX_CHOICES or not all(0 < len(choice) <= MAX_CHOICE_CHARS for choice in offered):
        raise BadArguments(f"There can be {MAX_CHOICES} choices, of 1 to {MAX_CHOICE_CHARS} characters each.")
    if run.scope.person is None:
        raise ToolFailed(f"Nobody is available to answer. {_DECIDE}")
    answer = await run.scope.person.choose(asked, offered)
    return f"The person did not answer. {_DECIDE}" if answer is None else f"The person answered: {answer}"
