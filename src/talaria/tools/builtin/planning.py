"""How the model plans its work: its list of steps, and questions to the person.

The list is kept in a file per session, so a restart or a compaction leaves it as it is.
"""

from collections.abc import Iterable, Sequence
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
    """As the model says it: with `merge`, what it leaves out stays."""

    id: Annotated[str, msgspec.Meta(description="A short name of your choice, used to change it later.")]
    content: Annotated[str | None, msgspec.Meta(description="What is to be done.")] = None
    status: Annotated[Status | None, msgspec.Meta(description="Have one in progress at a time.")] = None


def todo_file(spill: Path) -> Path:
    """Of the session whose spill folder this is, in the same home."""
    return spill.parent.parent / "todos" / f"{spill.name}.json"


def _effect(arguments: Any, scope: Scope) -> Effect:
    return Effect("reads" if arguments.todos is None else "writes", (todo_file(scope.spill),))


@tool(after_crash="repeat", effect=_effect, claim=NOTHING)
def todo(
    run: Run,
    todos: Annotated[tuple[GivenStep, ...] | None, "The steps, in order. If omitted, the list is only shown."] = None,
    merge: Annotated[
        bool, "Change only the steps with these ids and add new ones, instead of a whole new list."
    ] = False,
) -> str:
    """Keep a list of steps for longer work, and show it.

    Write it when you begin and keep it up to date: a step is in progress once you start it, completed once it is done.
    """
    file = todo_file(run.scope.spill)
    steps = _load(file)
    if todos is not None:
        steps = _update_steps(todos, steps if merge else ())
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(file, msgspec.json.encode(steps), mode=0o600)
        except OSError as fault:
            raise ToolFailed(f"The list cannot be saved: {fault.strerror}.") from fault
    return _format_steps(steps)


def _update_steps(given: Iterable[GivenStep], known: Iterable[TodoItem]) -> Sequence[TodoItem]:
    steps = {step.id: step for step in known}
    for one in given:
        id = " ".join(one.id.split())
        steps[id] = _update_step(one, steps.get(id) or TodoItem(id, ""))
    if len(steps) > MAX_STEPS:
        raise BadArguments(f"A list has at most {MAX_STEPS} steps; combine some of them.")
    return tuple(steps.values())


def _update_step(given: GivenStep, step: TodoItem) -> TodoItem:
    content = " ".join((step.content if given.content is None else given.content).split())
    if not step.id or len(step.id) > MAX_ID_CHARS:
        raise BadArguments(f"The id of a step must have 1 to {MAX_ID_CHARS} characters.")
    if not content or len(content) > MAX_CHARS:
        raise BadArguments(f"The content of step {step.id} must have 1 to {MAX_CHARS} characters.")
    return TodoItem(step.id, content, given.status or step.status)


def _format_steps(steps: Sequence[TodoItem]) -> str:
    if not steps:
        return "[the list is empty]"
    done = sum(step.status == "completed" for step in steps)
    lines = (f"[{_MARKS[step.status]}] {step.id}: {step.content}" for step in steps)
    return "\n".join([*lines, f"[{done} of {len(steps)} completed; > in progress, - cancelled]"])


def _load(file: Path) -> Sequence[TodoItem]:
    """A file that cannot be used is not there."""
    try:
        return msgspec.json.decode(read_bytes(file, MAX_FILE_BYTES), type=tuple[TodoItem, ...])
    except (OSError, msgspec.MsgspecError, RecursionError):
        return ()


MAX_QUESTION_CHARS = 1_000
MAX_CHOICES = 6
MAX_CHOICE_CHARS = 120

_DECIDE = "Choose the most sensible option, continue, and say in your answer what you assumed."


@tool(after_crash="repeat", effect=EXCLUSIVE, timeout_s=None, claim=NOTHING)
async def clarify(
    question: Annotated[str, "The question, in one or two sentences."],
    run: Run,
    choices: Annotated[
        tuple[str, ...], f"Up to {MAX_CHOICES} short answers to choose from; the person can also answer freely."
    ] = (),
) -> str:
    """Ask the person a question and wait for the answer.

    For what only they can know or decide, where a wrong guess would be costly. Not for permission: that is asked
    automatically.
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
