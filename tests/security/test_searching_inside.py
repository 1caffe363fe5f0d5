"""Where there is a sandbox, the search program runs in it: it reaches what commands reach, writes nothing, and commands
cannot look into it."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

import pytest
from msgspec import structs
from tests.security.test_searching import KEY, race

from talaria.app.builtin_tools import BuiltinTools
from talaria.config.schema import Config
from talaria.core.aio import in_thread
from talaria.core.clock import SystemClock
from talaria.core.ids import CallId, SessionId
from talaria.core.messages import ToolCall
from talaria.core.redaction import Redactor
from talaria.store.memory import MemoryStore
from talaria.tools.base import OpenGate, Scope
from talaria.tools.executor import Executor
from talaria.tools.protected import Protected
from talaria.tools.registry import Toolbox
from talaria.tools.sandbox import bubblewrap, landlocked
from talaria.tools.sandbox.base import ToolHost
from talaria.tools.sandbox.project_reader import MAX_OPEN
from talaria.tools.sandbox.running_command import SandboxCommand
from talaria.tools.sandbox.sandbox_settings import Backend, TerminalSettings

SECRET = "sk-live-Qm3xT9vK2pLw8Zr5"
ENDLESS = "(?=a)(a+)+$"
"""On `aaaa…b` it takes for ever."""

Use = Callable[..., Coroutine[None, None, str]]

LEVELS = pytest.mark.parametrize("backend", ["bubblewrap", "landlock"])


@pytest.fixture
def backend() -> Backend:
    return "bubblewrap"


@pytest.fixture
async def hands(tmp_path: Path, backend: Backend) -> AsyncIterator[BuiltinTools]:
    reason = {"bubblewrap": bubblewrap.fault, "landlock": landlocked.fault}.get(backend, lambda: None)()
    if reason is not None:
        pytest.skip(f"{backend}: {reason}")
    home, clock = tmp_path / "home", SystemClock()
    config = Config(terminal=TerminalSettings(backend=backend))
    hands = BuiltinTools(home, config, {}, MemoryStore(clock), clock, Protected(tmp_path / "person", home))
    yield hands
    await hands.aclose()


@pytest.fixture
def scope(tmp_path: Path) -> Scope:
    (tmp_path / "repository/work").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/note").write_text("a needle elsewhere\n")
    (tmp_path / "home/spill/s").mkdir(parents=True)
    return Scope(SessionId("s"), tmp_path / "repository/work", tmp_path / "home/spill/s", redactor=Redactor((SECRET,)))


@pytest.fixture
def project(scope: Scope) -> Path:
    return scope.cwd


@pytest.fixture
def use(hands: BuiltinTools, scope: Scope) -> Use:
    executor = Executor(Toolbox(hands.tools), OpenGate(), scope)

    async def call(name: str, **arguments: object) -> str:
        return (await executor.call(ToolCall(CallId("c"), name, json.dumps(arguments)))).text

    return call


class Output:
    def __init__(self) -> None:
        self.content = b""

    def add(self, chunk: bytes) -> None:
        self.content += chunk

    def skip(self, size_bytes: int) -> None:
        raise AssertionError(size_bytes)


def search_programs() -> list[int]:
    """Those that this process has started."""
    parents, found = dict[int, int](), list[int]()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if b"talaria.tools.searching.search_program" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue

    def is_ours(pid: int) -> bool:
        while pid not in (0, os.getpid()):
            pid = parents.get(pid, 0)
        return pid != 0

    return [pid for pid in found if is_ours(pid)]


def filters(pid: int | str) -> int:
    """How many filters for system calls a process has."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("Seccomp_filters:")[2].split()[0])


@pytest.mark.parametrize(("backend", "is_confined"), [("bubblewrap", True), ("landlock", True), ("local", False)])
async def test_a_search_runs_in_the_sandbox_where_no_command_can_look_into_it(
    use: Use, project: Path, is_confined: bool
) -> None:
    (project / "trap").write_text("a" * 60 + "b")
    searching = asyncio.create_task(use("search_files", pattern=ENDLESS))
    while not (running := await in_thread(search_programs)):
        assert not searching.done()
    assert (filters(running[0]) > filters("self")) is is_confined
    seen = await use("terminal", command=f"cat /proc/{running[0]}/maps")
    assert ("[stack]" not in seen) is is_confined
    searching.cancel()
    await asyncio.wait((searching,))
    assert await in_thread(search_programs) == []


@LEVELS
async def test_where_a_search_runs_there_is_only_what_commands_see_and_nothing_to_write(
    hands: BuiltinTools, scope: Scope, project: Path, tmp_path: Path
) -> None:
    """Even if the search program had a fault."""
    (project / "note").write_text("ours")
    async with hands.workspaces.open_reader(scope) as host:
        assert host is not None

        async def run(*argv: str) -> int:
            return (await host.start(SandboxCommand(program=argv, cwd="/", is_kept=False), Output()).wait()).code

        assert await run("/bin/cat", str(project / "note")) == 0  # the control
        assert await run("/bin/cat", str(tmp_path / "elsewhere/note")) != 0
        assert await run("/bin/touch", str(project / "note")) != 0
        assert await run("/bin/touch", str(project / "new")) != 0


@LEVELS
async def test_a_search_inside_finds_what_one_outside_would_find(use: Use, project: Path, tmp_path: Path) -> None:
    (tmp_path / "repository/.git").mkdir()
    (tmp_path / "repository/.gitignore").write_text("*.log\n")  # above the project: not seen from inside
    (project / "a.log").write_text("a needle\n")
    (project / "note").write_text(f"a needle\nKEY={SECRET}\n")
    assert await use("search_files", pattern="needle") == f"{project}/note\n1|a needle"
    assert await use("search_files", pattern="*", target="names") == f"{project}/note"
    assert await use("search_files", pattern="KEY=(sk|.{5})") == "[nothing found]"
    assert await use("search_files", pattern="KEY") == f"{project}/note\n2|KEY=•••"
    assert (await use("search_files", pattern="(")).startswith("Error: '(' is not a regular expression")


async def test_a_folder_outside_the_project_is_searched_as_before(use: Use, tmp_path: Path) -> None:
    found = await use("search_files", pattern="needle", path=str(tmp_path / "elsewhere"))
    assert found == f"{tmp_path}/elsewhere/note\n1|a needle elsewhere"


async def test_where_no_command_can_run_a_search_still_can(hands: BuiltinTools, tmp_path: Path) -> None:
    folder = tmp_path / "home/skills"  # Talaria's own: commands do not run there
    folder.mkdir(parents=True)
    (folder / "greet.md").write_text("say hello\n")
    executor = Executor(Toolbox(hands.tools), OpenGate(), Scope(SessionId("s"), folder, tmp_path / "home/spill/s"))
    call = ToolCall(CallId("c"), "search_files", json.dumps({"pattern": "hello"}))
    assert (await executor.call(call)).text == f"{folder}/greet.md\n1|say hello"


async def test_a_search_goes_on_after_its_sandbox_was_closed(
    use: Use, hands: BuiltinTools, scope: Scope, project: Path
) -> None:
    (project / "note").write_text("a needle\n")
    async with hands.workspaces.open_reader(scope) as first:
        assert first is not None
    await hands.close(scope.session)
    assert not first.is_alive
    assert await use("search_files", pattern="needle") == f"{project}/note\n1|a needle"


async def test_only_so_many_sandboxes_wait_for_the_next_search_and_none_that_is_in_use_is_closed(
    hands: BuiltinTools, scope: Scope
) -> None:
    async with hands.workspaces.open_reader(scope) as used:
        waiting: list[ToolHost | None] = []
        for number in range(MAX_OPEN + 1):
            async with hands.workspaces.open_reader(structs.replace(scope, session=SessionId(f"s{number}"))) as one:
                waiting.append(one)
        assert used is not None
        assert used.is_alive
    assert [one is not None and one.is_alive for one in waiting] == [False] * 2 + [True] * (MAX_OPEN - 1)


async def test_a_search_that_breaks_does_not_say_that_nothing_is_there(use: Use, project: Path) -> None:
    (project / "trap").write_text("a" * 60 + "b")
    searching = asyncio.create_task(use("search_files", pattern=ENDLESS))
    while not (running := await in_thread(search_programs)):
        assert not searching.done()
    os.kill(running[0], signal.SIGKILL)
    assert (await searching).startswith("Error: The search program failed")


@pytest.mark.long
@LEVELS
async def test_a_folder_that_is_swapped_for_a_link_never_leads_a_search_out_of_the_sandbox(
    use: Use, project: Path, tmp_path: Path
) -> None:
    (project / "a").mkdir()
    (project / "a/id").write_text("ours")
    (tmp_path / "elsewhere/id").write_text(KEY)

    async def search(pattern: str) -> str:
        return await use("search_files", pattern=pattern)

    await race(search, project, tmp_path / "elsewhere", 400)
