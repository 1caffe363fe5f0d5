import asyncio
import os
import select
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.descriptors import count_descriptors, descriptors_fall_to

from talaria.core.messages import ToolResult
from talaria.testing.patience import PATIENCE_S
from talaria.tools.base import Scope
from talaria.tools.output import HEAD_BYTES, TAIL_BYTES

Use = Callable[..., Awaitable[ToolResult]]


class Line:
    """A named pipe that a command holds open for writing: its end is seen when nobody has it any more."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._path = path
        self._reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def read(self) -> bytes:
        """What was written, or b"" once every holder is gone; waits until one of both is so."""
        poll = select.poll()
        poll.register(self._reading, select.POLLIN)
        assert poll.poll(PATIENCE_S * 1000)
        return os.read(self._reading, 1000)

    def is_held(self) -> bool:
        """Waits until nobody holds it any more, also if nobody ever did: a command may be stopped before it begins."""
        os.close(os.open(self._path, os.O_WRONLY))
        return self.read() != b""

    def close(self) -> None:
        os.close(self._reading)


@pytest.fixture
def line(cwd: Path) -> Iterator[Line]:
    opened = Line(cwd / "line")
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("true", "[exit code 0]"),
        ("exit 7", "[exit code 7]"),
        ("kill -TERM $$", "[exit code 143]"),
        ("no-such-command-here", "no-such-command-here: command not found\n\n[exit code 127]"),
        ("echo out", "out\n\n[exit code 0]"),
        ("echo err >&2; exit 1", "err\n\n[exit code 1]"),
        ("printf 'caf\\xe9'", "caf\N{REPLACEMENT CHARACTER}\n[exit code 0]"),
        ("cat", "[exit code 0]"),
    ],
)
async def test_output_and_exit_code_are_answered(use: Use, command: str, said: str) -> None:
    result = await use("terminal", command=command)
    assert result.text.endswith(said)
    assert not result.is_error


@pytest.mark.everywhere
async def test_stdout_and_stderr_stand_in_the_order_of_writing(use: Use) -> None:
    result = await use("terminal", command="echo 1; echo 2 >&2; echo 3")
    assert result.text == "1\n2\n3\n\n[exit code 0]"


@pytest.mark.everywhere
async def test_command_runs_where_it_is_told_to(use: Use, cwd: Path) -> None:
    (cwd / "inner").mkdir()
    assert (await use("terminal", command="pwd", workdir="inner")).text.startswith(f"{cwd}/inner\n")
    assert (await use("terminal", command="pwd")).text.startswith(f"{cwd}\n")


@pytest.mark.parametrize("workdir", ["nowhere", "file"])
async def test_working_directory_that_is_none_is_told(use: Use, cwd: Path, workdir: str) -> None:
    (cwd / "file").touch()
    result = await use("terminal", command="pwd", workdir=workdir)
    assert result.is_error
    assert f"Cannot start the command in {cwd / workdir}: it is not a folder." in result.text


async def test_command_with_a_nul_is_told(use: Use) -> None:
    assert "cannot contain a NUL" in (await use("terminal", command="echo \0")).text


async def test_command_that_is_too_long_is_told(use: Use) -> None:
    assert "write it to a file" in (await use("terminal", command="true " + "x" * 100_000)).text


@pytest.mark.everywhere
async def test_timeout_ends_the_whole_group(use: Use, line: Line) -> None:
    command = "exec 9>line; (trap '' TERM; sleep 1000) & sleep 1000"

    result = await use("terminal", command=command, timeout_s=1)

    assert result.text == "[stopped after 1 seconds; it did not end by itself]"
    assert not line.is_held()


async def test_child_left_in_the_background_neither_hangs_the_call_nor_outlives_it(use: Use, line: Line) -> None:
    result = await use("terminal", command="exec 9>line; sleep 1000 & echo started", timeout_s=60)
    assert result.text == "started\n\n[exit code 0]"
    assert line.read() == b""


@pytest.mark.everywhere
async def test_process_that_left_session_and_parent_does_not_outlive_its_command(use: Use, line: Line) -> None:
    command = "(setsid sh -c 'exec 9>line; echo up >&9; exec sleep 1000' &) ; exec 3<line; read -r word <&3; echo $word"
    result = await use("terminal", command=command)
    assert result.text == "up\n\n[exit code 0]"
    assert line.read() == b""


@pytest.mark.everywhere
async def test_command_that_ends_its_minder_leaves_nothing_behind(use: Use, line: Line) -> None:
    await use("terminal", command="exec 9>line; (setsid sleep 1000 &); kill -9 $PPID && sleep 1000", timeout_s=30)
    assert line.read() == b""
    assert (await use("terminal", command="echo on")).text == "on\n\n[exit code 0]"


@pytest.mark.everywhere
async def test_interruption_ends_the_whole_group(use: Use, line: Line) -> None:
    async def call() -> None:
        await use("terminal", command="exec 9>line; echo ready >&9; sleep 1000 & sleep 1000")

    running = asyncio.create_task(call())
    assert await asyncio.to_thread(line.read) == b"ready\n"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert line.read() == b""


async def test_interruption_at_any_moment_leaks_no_descriptor(use: Use) -> None:
    async def call() -> None:
        await use("terminal", command="sleep 1000")

    await use("terminal", command="true")  # what asyncio opens once is open now
    before = count_descriptors()
    for steps in range(0, 40, 4):
        running = asyncio.create_task(call())
        for _ in range(steps):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
    await descriptors_fall_to(before)


async def test_interruption_is_not_lost_over_a_command_that_cannot_be_started(use: Use) -> None:
    async def call() -> None:
        await use("terminal", command="true", workdir="nowhere")

    for steps in range(0, 40, 4):
        running = asyncio.create_task(call())
        for _ in range(steps):
            await asyncio.sleep(0)
        is_interrupted = running.cancel()
        await asyncio.wait([running])
        assert running.cancelled() == is_interrupted


@pytest.mark.everywhere
async def test_huge_output_goes_to_a_file_and_its_head_and_tail_to_the_model(use: Use, scope: Scope) -> None:
    command = "echo first; head -c 30000000 /dev/zero | tr '\\0' x; echo; echo last; exit 3"

    result = await use("terminal", command=command, call_id="call/../1")

    spilled = scope.spill / "call____1-output.txt"
    assert result.text.startswith("first\nxxx")
    assert result.text.endswith("x\nlast\n\n[exit code 3]")
    assert len(result.text) < HEAD_BYTES + TAIL_BYTES + 1_000
    assert f"all 30,000,012 are in {spilled}" in result.text
    assert spilled.read_bytes() == b"first\n" + b"x" * 30_000_000 + b"\nlast\n"
    assert [file.name for file in scope.spill.iterdir()] == [spilled.name]


async def test_output_of_binary_noise_is_kept_whole_though_its_text_is_longer(use: Use, scope: Scope) -> None:
    result = await use("terminal", command="head -c 100000 /dev/zero | tr '\\0' '\\377'")
    assert (scope.spill / "call_1-output.txt").read_bytes() == b"\xff" * 100_000
    assert len(result.text.encode()) < HEAD_BYTES + TAIL_BYTES + 1_000


async def test_output_that_cannot_be_kept_is_told_and_does_not_stop_the_command(use: Use, scope: Scope) -> None:
    scope.spill.write_text("a file where the folder belongs")
    result = await use("terminal", command="head -c 1000000 /dev/zero | tr '\\0' x; echo; echo done")
    assert result.text.endswith("done\n\n[exit code 0]")
    assert "bytes left out; they could not be kept: " in result.text


@pytest.mark.everywhere
async def test_command_sees_no_secrets(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENROUTER_API_KEY", "MY_TOKEN", "AWS_SECRET_ACCESS_KEY", "DATABASE_URL"):
        monkeypatch.setenv(name, "hush-hush")
    monkeypatch.setenv("LC_TIME", "C")

    result = await use("terminal", command="env; cat /proc/self/environ")

    assert "hush-hush" not in result.text
    assert "LC_TIME=C" in result.text
    assert "PATH=" in result.text
