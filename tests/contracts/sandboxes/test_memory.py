"""What the commands of a session may use of memory and processors, all of them together."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from talaria.core.messages import ToolResult
from talaria.tools.sandbox.sandbox_settings import Backend, LimitSettings, TerminalSettings

Use = Callable[..., Awaitable[ToolResult]]
CONFINED = pytest.mark.parametrize("backend", ["bubblewrap", "landlock"], indirect=True)
KILLED = "killed: the commands of this session used more than 120 MiB of memory (terminal.limits.memory)]"
FORK = """\
import os, time
held = bytearray(b"x") * (60 << 20)
for _ in range(2):
    os.fork()
time.sleep(0.6)  # longer than the tool host ever waits before it looks
print("ok", flush=True)
try:
    while os.wait():
        pass
except ChildProcessError:
    pass
"""
HOG = "set -o pipefail; head -c 200M /dev/zero | tail -c 200M | wc -c"
TAKE = "held = bytearray(b'x') * ({} << 20)"


@pytest.fixture
def settings(backend: Backend) -> TerminalSettings:
    return TerminalSettings(backend=backend, limits=LimitSettings(memory="120M", cpu_weight=33))


@CONFINED
async def test_a_command_that_uses_too_much_memory_is_killed_and_says_why(use: Use) -> None:
    result = await use("terminal", command=HOG)
    assert result.text.endswith(KILLED)
    assert "209715200" not in result.text
    assert (await use("terminal", command="echo still here")).text == "still here\n\n[exit code 0]"


@CONFINED
async def test_processes_of_a_session_share_one_limit(use: Use) -> None:
    hold = f'python3 -c "{TAKE.format(75)}; import time; time.sleep(20)"'
    result = await use("terminal", command=f"{hold} & {hold} & wait -n || exit 9; wait -n || exit 9")
    assert result.text.endswith(KILLED)


@pytest.mark.parametrize("backend", ["landlock"], indirect=True)
async def test_memory_that_forked_processes_share_counts_once(use: Use, cwd: Path) -> None:
    (cwd / "fork.py").write_text(FORK)
    result = await use("terminal", command="python3 fork.py")
    assert result.text == "ok\nok\nok\nok\n\n[exit code 0]"


@pytest.mark.parametrize("backend", ["local"], indirect=True)
async def test_without_a_sandbox_memory_is_not_limited(use: Use) -> None:
    assert (await use("terminal", command=HOG)).text == "209715200\n\n[exit code 0]"


@CONFINED
async def test_commands_give_way_when_the_processors_are_busy(use: Use) -> None:
    assert (await use("terminal", command="nice")).text == f"{os.nice(0) + 5}\n\n[exit code 0]"
