"""Whatever comes back is of bounded size: memory grows by 64 MB at most, and the event loop is never held for long.

How long is counted in the time that the loop's thread has worked, not in time that has passed: other processes do not
count.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from talaria.app.builtin_tools import BuiltinTools
from talaria.config.schema import Config
from talaria.core.clock import SystemClock
from talaria.core.ids import CallId, SessionId
from talaria.core.messages import ToolCall, ToolResult
from talaria.store.memory import MemoryStore
from talaria.tools.base import OpenGate, Scope
from talaria.tools.executor import Executor
from talaria.tools.protected import Protected
from talaria.tools.registry import Toolbox

MAX_GROWTH_BYTES = 64 << 20
MAX_STALL_S = 0.05

Use = Callable[..., Awaitable[ToolResult]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
async def use(tmp_path: Path, project: Path) -> AsyncIterator[Use]:
    clock = SystemClock()
    home = tmp_path / "home"
    hands = BuiltinTools(home, Config(), {}, MemoryStore(clock), clock, Protected(tmp_path, home))
    scope = Scope(SessionId("s"), project, home / "spill" / "s", "t")
    executor = Executor(Toolbox(hands.tools), OpenGate(), scope)

    async def call(name: str, /, *, raw: str = "", **arguments: object) -> ToolResult:
        return await executor.call(ToolCall(CallId("c"), name, raw or json.dumps(arguments)))

    await call("terminal", command="true")  # what is loaded once is loaded now
    yield call
    await hands.aclose()


@asynccontextmanager
async def bounded() -> AsyncGenerator[None]:
    loop = asyncio.get_running_loop()
    longest, worked = 0.0, time.thread_time()
    is_over = False

    def beat() -> None:
        nonlocal longest, worked
        now = time.thread_time()
        longest, worked = max(longest, now - worked), now
        if not is_over:
            loop.call_later(0.001, beat)

    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = _resident("VmRSS")
    loop.call_soon(beat)
    yield
    is_over = True
    assert _resident("VmHWM") - before <= MAX_GROWTH_BYTES
    assert longest <= MAX_STALL_S


def _resident(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{what}:"))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("yes", "[stopped after 2 seconds; it did not end by itself]"),
        ("seq 50000000", "50000000\n\n[exit code 0]"),
        ("cat sparse", "]"),
        ("python3 -c 'print(\"[\" * 100000)'", "[exit code 0]"),
        ("head -c 20000000 /dev/urandom", "[exit code 0]"),
    ],
)
async def test_output_of_a_command(use: Use, project: Path, command: str, said: str) -> None:
    _sparse(project)
    async with bounded():
        result = await use("terminal", command=command, timeout_s=2 if command in ("yes", "cat sparse") else 100)
    assert result.text.endswith(said)
    assert len(result.text) < 100_000


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("read_file", {"path": "sparse"}, "is larger than 64 MB"),
        ("patch", {"path": "sparse", "old": "a", "new": "b"}, "larger than"),
        ("view_image", {"path": "sparse"}, "sparse"),
        ("search_files", {"pattern": "x"}, "[nothing found]"),
        ("execute_code", {"code": "while True: print('x' * 1000)", "timeout_s": 2}, "stopped after 2 seconds"),
    ],
)
async def test_tools_on_a_file_of_ten_gigabytes(
    use: Use, project: Path, name: str, arguments: dict[str, object], said: str
) -> None:
    _sparse(project)
    async with bounded():
        result = await use(name, **arguments)
    assert said in result.text


@pytest.mark.parametrize("depth", [100_000, 1_000_000])
@pytest.mark.parametrize("name", ["read_file", "execute_code", "todo"])
async def test_arguments_that_are_nested_deeply(use: Use, name: str, depth: int) -> None:
    nested = "[" * depth + "]" * depth
    async with bounded():
        result = await use(name, raw=f'{{"path": {nested}, "todos": {nested}, "code": {nested}}}')
    assert result.is_error
    assert len(result.text) < 10_000


async def test_a_file_that_is_nested_deeply(use: Use, project: Path) -> None:
    (project / "deep.json").write_text("[" * 100_000 + "]" * 100_000)
    async with bounded():
        result = await use("read_file", path="deep.json")
    assert len(result.text) < 100_000


def _sparse(project: Path) -> None:
    with (project / "sparse").open("wb") as file:
        file.truncate(10 << 30)
