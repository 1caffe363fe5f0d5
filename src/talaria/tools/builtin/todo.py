"""The model's own list of steps. It is kept in a file per session: a restart and a compaction leave it as it is."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from talaria.core.errors import BadArguments, ToolFailed
from talaria.core.fs import read_bytes, replace_file
from talaria.tools.base import NOTHING, Effect, Run, Scope
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

    id: Annotated[str, msgspec.Meta(description="A short name of your choice, by which it is changed later.")]
    content: Annotated[str | None, msgspec.Meta(description="What is to be done.")] = None
    status: Annotated[Status | None, msgspec.Meta(description="Have one in progress at a time.")] = None


def list_file(spill: Path) -> Path:
    """Of the session whose spill folder this is, in the same home."""
    return spill.parent.parent / "todos" / f"{spill.name}.json"


def _effect(arguments: Any, scope: Scope) -> Effect:
    return Effect("reads" if arguments.todos is None else "writes", (list_file(scope.spill),))


@tool(after_crash="repeat", effect=_effect, claim=NOTHING)
def todo(
    run: Run,
    todos: Annotated[tuple[GivenStep, ...] | None, "The steps, in order; left out, the list is only shown."] = None,
    merge: Annotated[
        bool, "Change only the steps with these ids and add new ones, instead of a whole new list."
    ] = False,
) -> str:
    """Keep a list of steps for work that takes several, and show it.

    Write it when you begin, and keep it true: a step is in progress when you take it up and completed when it is done.
    """
    file = list_file(run.scope.spill)
    steps = _read(file)
    if todos is not None:
        steps = _written(todos, steps if merge else ())
        _keep(file, steps)
    return _shown(steps)


def _written(given: Iterable[GivenStep], known: Iterable[TodoItem]) -> Sequence[TodoItem]:
    steps = {step.id: step for step in known}
    for one in given:
        id = " ".join(one.id.split())
        steps[id] = _changed(one, steps.get(id) or TodoItem(id, ""))
    if len(steps) > MAX_STEPS:
        raise BadArguments(f"A list has at most {MAX_STEPS} steps; take several together.")
    return tuple(steps.values())


def _changed(given: GivenStep, step: TodoItem) -> TodoItem:
    content = " ".join((step.content if given.content is None else given.content).split())
    if not step.id or len(step.id) > MAX_ID_CHARS:
        raise BadArguments(f"The id of a step must have 1 to {MAX_ID_CHARS} characters.")
    if not content or len(content) > MAX_CHARS:
        raise BadArguments(f"The content of step {step.id} must have 1 to {MAX_CHARS} characters.")
    return TodoItem(step.id, content, given.status or step.status)


def _shown(steps: Sequence[TodoItem]) -> str:
    if not steps:
        return "[the list is empty]"
    done = sum(step.status == "completed" for step in steps)
    lines = (f"[{_MARKS[step.status]}] {step.id}: {step.content}" for step in steps)
    return "\n".join([*lines, f"[{done} of {len(steps)} completed; > in progress, - cancelled]"])


def _read(file: Path) -> Sequence[TodoItem]:
    """A file that cannot be used is not there."""
    try:
        return msgspec.json.decode(read_bytes(file, MAX_FILE_BYTES), type=tuple[TodoItem, ...])
    except (OSError, msgspec.MsgspecError, RecursionError):
        return ()


def _keep(file: Path, steps: Sequence[TodoItem]) -> None:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(file, msgspec.json.encode(steps), mode=0o600)
    except OSError as fault:
        raise ToolFailed(f"The list cannot be kept: {fault.strerror}.") from fault
