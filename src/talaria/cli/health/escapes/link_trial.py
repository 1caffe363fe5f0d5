"""Trying to lead Talaria itself out of a project by links: its search, its tool host, and what it tidies away."""

import asyncio
import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from talaria.cli.health.escapes.probes import EVERYWHERE, Attempt, ProbeResult
from talaria.core.aio import in_thread, in_threads
from talaria.core.ids import CallId, SessionId
from talaria.core.messages import ToolCall
from talaria.core.redaction import Redactor
from talaria.core.trees import Root
from talaria.tools.base import OpenGate, Scope
from talaria.tools.builtin.search_tools import search_tools
from talaria.tools.executor import Executor
from talaria.tools.output import CapturedOutput
from talaria.tools.protected import Protected
from talaria.tools.quarantine import Quarantine
from talaria.tools.registry import Toolbox
from talaria.tools.sandbox.base import Sandbox, SandboxPolicy, ToolHost
from talaria.tools.sandbox.running_command import SandboxCommand
from talaria.tools.sandbox.system import PYTHON

SEARCH = Attempt("lead a search out of the project", EVERYWHERE)
TOOL_HOST = Attempt("lead the tool host to another folder", EVERYWHERE)
TIDYING = Attempt("have Talaria move a file from elsewhere", EVERYWHERE)
LINKS = (SEARCH, TOOL_HOST, TIDYING)
SEARCHES = 12
_CANARY = "canary-outside"
_FILES = ("state", "cwd", "kept", "commondir")
_SWAP_STATE = (
    'for place in "$TMPDIR/../state" /tmp/.talaria; do [ -d "$place" ] && mv "$place" "$place.aside" '
    '&& ln -s "{outside}" "$place" && echo swapped; done'
)
_SWAP_REPOSITORY = 'mv .git aside && ln -s "{outside}" .git && echo swapped'


async def try_links(sandbox: Sandbox, view: SandboxPolicy, home: Path, intruder: str) -> list[ProbeResult]:
    """Last of all: the project's `.git` is not what it was after this. `home` is Talaria's own."""
    async with in_threads(_outside()) as outside:
        async with sandbox.open(view) as host:
            searched = await _race(host, view, home, intruder, outside)
            swapped = "swapped" in await _run(host, view, _SWAP_STATE.format(outside=outside))
            await _run(host, view, "export TALARIA_TRIAL=1")
            await _run(host, view, _SWAP_REPOSITORY.format(outside=outside))
        hosted = await in_thread(lambda: not _is_untouched(outside, ("state", "cwd", "kept")))
        await in_thread(lambda: tidy(view))
        tidied = await in_thread(lambda: not _is_untouched(outside, ("commondir",)))
    told = "its folder was swapped for a link" if swapped else "its folder was not found"
    return [
        searched,
        ProbeResult(TOOL_HOST, hosted, told, is_tried=swapped),
        ProbeResult(TIDYING, tidied, "a file outside was moved" if tidied else ""),
    ]


def tidy(view: SandboxPolicy) -> None:
    """As a workspace does after each command; thrown away with all the rest."""
    names = [str(path.relative_to(view.project)) for path in view.unwanted]
    with Root.open(view.project) as project:
        Quarantine(view.project.parent, SessionId("trial")).move(project, names)


async def _race(host: ToolHost, view: SandboxPolicy, home: Path, intruder: str, outside: Path) -> ProbeResult:
    """A command swaps a folder for a link while we search."""
    folder, description = view.project / "race", view.project / "race.json"

    def plant() -> None:
        (folder / "a").mkdir(parents=True)
        (folder / "a" / "file").write_text("ours")
        description.write_text(json.dumps([[SEARCH.name, "swap", str(folder / "a"), str(outside)]]))

    await in_thread(plant)
    scope = Scope(SessionId("trial"), view.project, view.project.with_name("spill") / "trial")
    search = Executor(Toolbox(search_tools(Protected(view.home, home))), OpenGate(), scope)
    arguments = json.dumps({"pattern": f"{_CANARY}|ours", "path": str(folder)})
    output = CapturedOutput(scope.spill / "swap", Redactor())
    swapping = host.start(SandboxCommand(program=(PYTHON, "-I", "-S", intruder, str(description))), output)
    try:
        found = [(await search.call(ToolCall(CallId("race"), "search_files", arguments))).text for _ in range(SEARCHES)]
    finally:
        await swapping.kill()
        output.close()
    is_swapped = await in_thread(lambda: (folder / "link").is_symlink() or (folder / "a").is_symlink())
    if not is_swapped:
        return ProbeResult(SEARCH, None, "the folder could not be swapped for a link", is_tried=False)
    return ProbeResult(SEARCH, any(_CANARY in text for text in found), f"{SEARCHES} searches")


async def _run(host: ToolHost, view: SandboxPolicy, command: str) -> str:
    output = CapturedOutput(view.project.with_name("spill") / "trial" / "links", Redactor())
    async with asyncio.timeout(10):
        await host.start(SandboxCommand(command=command), output).wait()
    output.close()
    return output.text()


@contextmanager
def _outside() -> Generator[Path]:
    with TemporaryDirectory(prefix="talaria-", dir="/var/tmp") as name:
        folder = Path(name).resolve()
        for file in _FILES:
            (folder / file).write_text(f"{_CANARY}\n# whole\n")
        yield folder


def _is_untouched(folder: Path, names: tuple[str, ...]) -> bool:
    return all((folder / name).is_file() and (folder / name).read_text() == f"{_CANARY}\n# whole\n" for name in names)
