import asyncio
import json
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from talaria.core.ids import CallId
from talaria.core.messages import ToolCall, ToolResult
from talaria.runtime.session_config import spill_folder
from talaria.tools.base import NOTHING, Effect, OpenGate, Scope
from talaria.tools.builtin.planning import MAX_CHARS, MAX_ID_CHARS, MAX_STEPS, todo, todo_file
from talaria.tools.executor import Executor
from talaria.tools.registry import Toolbox

Todo = Callable[..., Awaitable[str]]
EMPTY = "[the list is empty]"


async def called(scope: Scope, arguments: dict[str, object]) -> ToolResult:
    """Each time as if the process had just begun."""
    executor = Executor(Toolbox([todo]), OpenGate(), scope)
    return await executor.call(ToolCall(CallId("c"), "todo", json.dumps(arguments)))


@pytest.fixture
def keep(scope: Scope) -> Todo:
    """`await keep(todos=[…], merge=True)`"""

    async def call(**arguments: object) -> str:
        return (await called(scope, arguments)).text

    return call


@pytest.fixture
def file(scope: Scope) -> Path:
    return todo_file(scope.spill)


def step(id: str, content: str = "", status: str = "") -> dict[str, str]:
    """Without what is empty."""
    return {key: value for key, value in (("id", id), ("content", content), ("status", status)) if value}


async def test_list_is_shown_as_it_was_written(keep: Todo) -> None:
    written = await keep(
        todos=[
            step("a", "Read  the\ncode", "completed"),
            step("b", "Write a test", "in_progress"),
            step("c", "Run it"),
            step("d", "Dance", "cancelled"),
        ]
    )
    assert written == (
        "[x] a: Read the code\n[>] b: Write a test\n[ ] c: Run it\n[-] d: Dance\n"
        "[1 of 4 completed; > in progress, - cancelled]"
    )
    assert await keep() == written
    assert await keep(merge=True) == written


async def test_list_that_was_never_written_is_empty(keep: Todo, file: Path) -> None:
    assert await keep() == EMPTY
    assert not file.parent.exists()


async def test_new_list_takes_the_place_of_the_old_one(keep: Todo) -> None:
    await keep(todos=[step("a", "One"), step("b", "Two")])
    assert "a: One" not in await keep(todos=[step("b", "Other")])
    assert await keep(todos=[]) == EMPTY
    assert await keep() == EMPTY


async def test_merging_changes_what_is_said_and_adds_what_is_new(keep: Todo) -> None:
    await keep(todos=[step("a", "One", "in_progress"), step("b", "Two")])
    assert await keep(
        merge=True, todos=[step("a", status="completed"), step("c", "Three"), step("b", "Both", "in_progress")]
    ) == ("[x] a: One\n[>] b: Both\n[ ] c: Three\n[1 of 3 completed; > in progress, - cancelled]")
    assert "[x] a: Once" in await keep(merge=True, todos=[step("a", "Once")])
    before = await keep()
    assert await keep(merge=True, todos=[]) == before


async def test_of_two_steps_with_one_id_the_last_counts(keep: Todo) -> None:
    assert (await keep(todos=[step("a", "One"), step("b", "Two"), step("a ", "Three")])).startswith(
        "[ ] a: Three\n[ ] b: Two\n[0 of 2"
    )


@pytest.mark.parametrize(
    ("todos", "sentence"),
    [
        ([step("a")], f"The content of step a must have 1 to {MAX_CHARS} characters."),
        ([step("a", " \n")], f"The content of step a must have 1 to {MAX_CHARS} characters."),
        ([step("a", "x" * (MAX_CHARS + 1))], f"The content of step a must have 1 to {MAX_CHARS} characters."),
        ([step(" ", "x")], f"The id of a step must have 1 to {MAX_ID_CHARS} characters."),
        ([step("i" * (MAX_ID_CHARS + 1), "x")], f"The id of a step must have 1 to {MAX_ID_CHARS} characters."),
        (
            [step(str(number), "x") for number in range(MAX_STEPS + 1)],
            f"A list can have at most {MAX_STEPS} steps; combine some of them.",
        ),
    ],
)
async def test_what_is_too_much_is_refused_and_changes_nothing(
    scope: Scope, keep: Todo, todos: list[dict[str, str]], sentence: str
) -> None:
    before = await keep(todos=[step("kept", "One")])
    for merge in (False, True):
        refused = await called(scope, {"todos": todos, "merge": merge})
        assert (refused.text, refused.is_error) == (f"Error: {sentence}", True)
    assert await keep() == before


async def test_as_much_as_may_be_is_kept(keep: Todo) -> None:
    most = [step(f"{number:0{MAX_ID_CHARS}}", "x" * MAX_CHARS) for number in range(MAX_STEPS)]
    assert "[0 of 100 completed" in await keep(todos=most)
    assert "[0 of 100 completed" in await keep()
    assert "at most 100 steps" in await keep(todos=[step("one", "more")], merge=True)


async def test_sessions_have_lists_of_their_own_in_the_home(keep: Todo, scope: Scope, file: Path) -> None:
    await keep(todos=[step("a", "One")])
    other = msgspec.structs.replace(scope, spill=scope.spill.with_name("session-2"))
    assert (await called(other, {})).text == EMPTY
    assert file == scope.spill.parents[1] / "todos" / "session-1.json"
    assert file == todo_file(spill_folder(scope.spill.parents[1], scope.session))
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1}', b'[{"id": 1}]', b"\xff", b"[" * 100_000])
async def test_damaged_file_counts_as_none(keep: Todo, file: Path, content: bytes) -> None:
    file.parent.mkdir()
    file.write_bytes(content)
    assert await keep() == EMPTY
    assert "[ ] a: One" in await keep(todos=[step("a", "One")], merge=True)


async def test_list_that_cannot_be_kept_is_told(scope: Scope, file: Path) -> None:
    file.parent.write_text("in the way")
    refused = await called(scope, {"todos": [step("a", "One")]})
    assert (refused.text, refused.is_error) == ("Error: The list cannot be saved: File exists.", True)


async def test_lists_that_are_written_at_once_stay_whole(keep: Todo, file: Path) -> None:
    await asyncio.gather(*(keep(todos=[step("a", letter * 400)]) for letter in "wxyz"))
    (kept,) = json.loads(file.read_text())
    assert kept["content"] in {letter * 400 for letter in "wxyz"}
    assert [one.name for one in file.parent.iterdir()] == [file.name]


def test_writing_may_be_repeated_and_clashes_with_itself_alone(scope: Scope, file: Path) -> None:
    reading, writing = todo.prepare("{}", scope), todo.prepare('{"todos": []}', scope)
    assert (todo.after_crash, reading.claim, writing.question) == ("repeat", NOTHING, None)
    assert reading.effect == Effect("reads", (file,))
    assert writing.effect.clashes(writing.effect)
    assert writing.effect.clashes(reading.effect)
    assert not writing.effect.clashes(Effect("writes", (scope.cwd,)))
