"""What one command leaves to the next."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from talaria.core.ids import SessionId
from talaria.core.messages import ToolResult
from talaria.tools.base import Scope
from talaria.tools.workspaces import Workspaces

Use = Callable[..., Awaitable[ToolResult]]


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        ("mkdir inner && cd inner", "basename $PWD", "inner"),
        ("export WORD='two  words\"$'", 'echo "$WORD"', 'two  words"$'),
        ("export GONE=1", "unset GONE", ""),
        ("greet() { echo hello $1; }", "greet you", "hello you"),
        ("alias hi='echo hi there'", "hi", "hi there"),
        ("umask 027", "umask", "0027"),
        ("export LINES_='a\nb'", 'echo "$LINES_"', "a\nb"),
        ("cd /usr; exit 3", "pwd", "/usr"),
        ("cd /usr; false", "pwd", "/usr"),
    ],
)
async def test_state_is_there_for_the_next_command(use: Use, first: str, then: str, said: str) -> None:
    await use("terminal", command=first)
    assert (await use("terminal", command=then)).text.removesuffix("[exit code 0]").rstrip("\n") == said


async def test_what_was_unset_stays_unset(use: Use) -> None:
    await use("terminal", command="unset HOME; export A=1")
    await use("terminal", command="unset A")
    assert (await use("terminal", command="echo [$HOME$A]")).text.startswith("[]\n")


async def test_independent_commands_start_from_the_state_and_leave_none(use: Use) -> None:
    await use("terminal", command="export A=1; cd /usr")
    seen = await use("terminal", command="echo $A $PWD; export A=2; cd /", independent=True)
    assert seen.text.startswith("1 /usr\n")
    assert (await use("terminal", command="echo $A $PWD")).text.startswith("1 /usr\n")


async def test_a_folder_for_one_command_is_for_that_one_only(use: Use, cwd: Path) -> None:
    (cwd / "inner").mkdir()
    assert (await use("terminal", command="export A=1; pwd", workdir="inner")).text.startswith(f"{cwd}/inner\n")
    assert (await use("terminal", command="pwd; echo $A")).text.startswith(f"{cwd}\n1\n")


async def test_a_command_that_was_stopped_leaves_the_state_as_it_was(use: Use) -> None:
    await use("terminal", command="export A=1")
    await use("terminal", command="export A=2; cd /; sleep 1000", timeout_s=1)
    assert (await use("terminal", command="echo $A")).text.startswith("1\n")


async def test_a_folder_that_is_gone_is_left_for_the_first_one(use: Use, cwd: Path) -> None:
    await use("terminal", command="mkdir gone; cd gone")
    (cwd / "gone").rmdir()
    assert (await use("terminal", command="pwd")).text.startswith(f"{cwd}\n")


async def test_commands_see_the_same_project_as_we_do(use: Use, cwd: Path) -> None:
    (cwd / "ours").write_text("from here")
    assert (await use("terminal", command="cat ours; echo from there > theirs")).text.startswith("from here")
    assert (cwd / "theirs").read_text() == "from there\n"


async def test_sessions_have_a_shell_each(workspaces: Workspaces, use: Use, scope: Scope) -> None:
    await use("terminal", command="export A=1")
    other = Scope(SessionId("session-2"), scope.cwd, scope.spill.parent / "session-2")
    assert await workspaces.open(other) is not await workspaces.open(scope)
    assert workspaces.has(scope.session)
    assert not workspaces.has(SessionId("session-3"))


async def test_closing_a_session_ends_its_shell(workspaces: Workspaces, use: Use, scope: Scope) -> None:
    await use("terminal", command="export A=1")
    await workspaces.close(scope.session)
    assert not workspaces.has(scope.session)
    assert (await use("terminal", command="echo [$A]")).text.startswith("[]\n")


async def test_a_shell_that_was_lost_is_told_and_the_next_command_has_another(use: Use) -> None:
    """The tool host is the parent of a command's minder."""
    lost = await use("terminal", command="kill -9 $(ps -o ppid= -p $PPID)", timeout_s=20)
    if "not permitted" in lost.text:  # where the sandbox keeps commands from ending it
        return
    assert "[lost: the shell and all processes of this session are gone" in lost.text
    assert (await use("terminal", command="echo on")).text.startswith("on\n")


async def test_eight_independent_commands_run_at_the_same_time(use: Use, cwd: Path) -> None:
    """Each waits until all are there."""
    command = "touch here-$RANDOM$RANDOM; until [ $(ls here-* | wc -l) -ge 8 ]; do sleep 0.01; done; echo met"
    results = await asyncio.gather(
        *(use("terminal", command=command, independent=True, timeout_s=30, call_id=f"c{one}") for one in range(8))
    )
    assert {result.text for result in results} == {"met\n\n[exit code 0]"}


async def test_a_terminal_is_there_only_where_it_is_asked_for(use: Use) -> None:
    assert "not a tty" in (await use("terminal", command="tty")).text
    shown = await use("terminal", command="tty; stty size; echo $TERM", pty=True)
    assert "/dev/" in shown.text
    assert "40 120" in shown.text
    assert "xterm" in shown.text
