"""Makes all escape attempts in a sandbox, where commands of the model run: the matrix, limits, links, policy files.

Limits are set so low that nothing is harmed. Every part but the matrix lists its attempts here.
"""

import asyncio
import json
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from talaria.cli.health.escapes.canaries import Canaries
from talaria.cli.health.escapes.probes import EVERYWHERE, SHUT_IN, STRICT, Attempt, ProbeResult, decode_line, judge
from talaria.core.aio import in_thread, in_threads
from talaria.core.clock import SystemClock
from talaria.core.errors import ToolFailed
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
from talaria.tools.sandbox.base import Sandbox, SandboxLimits, SandboxPolicy, ToolHost
from talaria.tools.sandbox.egress_proxy import EgressProxy
from talaria.tools.sandbox.running_command import SandboxCommand
from talaria.tools.sandbox.sandbox_policy import view_of
from talaria.tools.sandbox.sandbox_settings import TerminalSettings
from talaria.tools.sandbox.system import PYTHON
from talaria.tools.workspace import Workspace

LIMITS = SandboxLimits(processes=256, scratch_bytes=32 << 20, file_bytes=64 << 20)
TIME_S = 10

MEMORY = Attempt("use more memory than allowed", SHUT_IN)
INOTIFY = Attempt("use up the user's inotify instances", STRICT)
DISK = Attempt("keep running when the disk is nearly full", EVERYWHERE)
RESOURCES = (MEMORY, INOTIFY, DISK)
TOO_MUCH_BYTES = 256 << 20
_LOW_MEMORY = SandboxLimits(processes=256, memory_bytes=96 << 20)
_FULL_DISK = msgspec.structs.replace(_LOW_MEMORY, reserve_bytes=1 << 60)  # larger than any disk
_INSTANCES = Path("/proc/sys/user/max_inotify_instances")
_REASONS = {"memory": "it was killed for its memory", "disk": "it was stopped because of the disk"}

SEARCH = Attempt("trick a search into leaving the project", EVERYWHERE)
TOOL_HOST = Attempt("trick the tool host into another folder", EVERYWHERE)
TIDYING = Attempt("make Talaria move a file from elsewhere", EVERYWHERE)
LINKS = (SEARCH, TOOL_HOST, TIDYING)
SEARCHES = 12
_CANARY = "canary-outside"
_CANARY_TEXT = f"{_CANARY}\n# whole\n"
_OUTSIDE: dict[str, str] = dict.fromkeys(("state", "cwd", "kept", "commondir"), _CANARY_TEXT)
_SWAP_STATE = (
    'for place in "$TMPDIR/../state" /tmp/.talaria; do [ -d "$place" ] && mv "$place" "$place.aside" '
    '&& ln -s "{outside}" "$place" && echo swapped; done'
)
_SWAP_REPOSITORY = 'mv .git aside && ln -s "{outside}" .git && echo swapped'

DEEP = Attempt("change settings of a nested submodule", SHUT_IN)
NAMED = Attempt("change hooks that a git setting names", SHUT_IN)
MADE = Attempt("leave a file that other programs obey", SHUT_IN)
REPLACED = Attempt("change git settings that were replaced from outside", SHUT_IN)
POLICY = (DEEP, NAMED, MADE, REPLACED)
_EVIL = "[core]\n\tfsmonitor = ./evil\n"
_DEEP, _NAMED = ".git/modules/a/modules/b/config", "tools/hooks/pre-push"
_FILES = {
    "project/.git/HEAD": "ref: refs/heads/main\n",
    "project/.git/config": "[core]\n\thooksPath = tools/hooks\n",
    "project/.git/modules/a/modules/b/HEAD": "ref: refs/heads/main\n",
    f"project/{_DEEP}": "[core]\n",
    f"project/{_NAMED}": "#!/bin/sh\n",
    **dict.fromkeys(("project/.git/objects/", "project/.git/refs/", "project/.git/hooks/"), ""),
}
_MADE = ("sub/.envrc", ".vscode/tasks.json", "AGENTS.md")


async def try_escapes(sandbox: Sandbox, home: Path, settings: TerminalSettings) -> list[ProbeResult]:
    """All attempts, one after the other. `home` is Talaria's own; canaries are planted there meanwhile."""
    async with in_threads(_plant_canaries(home, settings)) as (canaries, view), sandbox.open(view) as host:
        output = CapturedOutput(view.project.with_name("spill") / "trial" / "output", Redactor())
        command = SandboxCommand(program=(PYTHON, "-I", "-S", *canaries.arguments))
        await host.start(command, output).wait()
        output.close()
        printed = output.text().splitlines()
        await in_thread(lambda: _tidy(view))
        results = await in_thread(lambda: judge(printed, canaries))
        intruder, _ = canaries.arguments
        persons_own = await in_thread(_read_instances)
        async with sandbox.open(msgspec.structs.replace(view, limits=_LOW_MEMORY)) as small:
            results.append(await _try_limit(small, view, intruder, MEMORY, "use_memory", TOO_MUCH_BYTES))
            results.append(await _try_limit(small, view, intruder, INOTIFY, "use_instances", persons_own))
        async with sandbox.open(msgspec.structs.replace(view, limits=_FULL_DISK)) as full:
            results.append(await _try_limit(full, view, intruder, DISK, "go_on"))
        results += await _try_links(sandbox, view, home, intruder)
    return [*results, *await _try_policy(sandbox, home, settings)]


@contextmanager
def _plant_canaries(home: Path, settings: TerminalSettings) -> Generator[tuple[Canaries, SandboxPolicy]]:
    """Around a temporary project."""
    with _temporary_folder({"project/": ""}) as folder:
        project = folder / "project"
        with Canaries(project=project, home=Path.home().resolve(), agent_home=home, limits=LIMITS) as canaries:
            yield canaries, view_of(project, home, settings, os.environ, LIMITS)


@contextmanager
def _temporary_folder(files: Mapping[str, str], parent: str | None = None) -> Generator[Path]:
    """With these contents; a name that ends with a slash is an empty folder."""
    with TemporaryDirectory(prefix="talaria-trial-", dir=parent) as name:
        folder = Path(name).resolve()
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            if path.endswith("/"):
                (folder / path).mkdir()
            else:
                (folder / path).write_text(content)
        yield folder


def _tidy(view: SandboxPolicy) -> None:
    """As a workspace does after each command; it is thrown away with everything else."""
    names = [str(path.relative_to(view.project)) for path in view.unwanted]
    with Root.open(view.project) as project:
        Quarantine(view.project.parent, SessionId("trial")).move(project, names)


def _read_instances() -> int:
    """0: this kernel does not say."""
    with suppress(OSError, ValueError):
        return int(_INSTANCES.read_text())
    return 0


async def _try_limit(
    host: ToolHost, view: SandboxPolicy, intruder: str, attempt: Attempt, function: str, *facts: int
) -> ProbeResult:
    description = view.project / f"{function}.json"
    await in_thread(lambda: description.write_text(json.dumps([[attempt.name, function, *facts]])))
    output = CapturedOutput(view.project.with_name("spill") / "trial" / function, Redactor())
    end = await host.start(SandboxCommand(program=(PYTHON, "-I", "-S", intruder, str(description))), output).wait()
    output.close()
    if end.why in _REASONS:
        return ProbeResult(attempt, False, _REASONS[end.why])
    line = next(filter(None, map(decode_line, output.text().splitlines())), None)
    if line is None:
        return ProbeResult(attempt, None, f"no answer, exit code {end.code}")
    return ProbeResult(attempt, line.succeeded, line.detail, is_tried=line.succeeded is not None)


async def _try_links(sandbox: Sandbox, view: SandboxPolicy, home: Path, intruder: str) -> list[ProbeResult]:
    """Use links to lead Talaria itself out of the project: its search, its tool host, and what it tidies away.

    This replaces the project's `.git`. `home` is Talaria's own.
    """
    async with in_threads(_temporary_folder(_OUTSIDE, parent="/var/tmp")) as outside:  # noqa: S108

        def is_untouched(*names: str) -> bool:
            return all((outside / one).is_file() and (outside / one).read_text() == _CANARY_TEXT for one in names)

        async with sandbox.open(view) as host:
            searched = await _race_search(host, view, home, intruder, outside)
            swapped = "swapped" in await _run(host, view, _SWAP_STATE.format(outside=outside))
            await _run(host, view, "export TALARIA_TRIAL=1")
            await _run(host, view, _SWAP_REPOSITORY.format(outside=outside))
        hosted = await in_thread(lambda: not is_untouched("state", "cwd", "kept"))
        await in_thread(lambda: _tidy(view))
        tidied = await in_thread(lambda: not is_untouched("commondir"))
    detail = "its folder was swapped for a link" if swapped else "its folder was not found"
    return [
        searched,
        ProbeResult(TOOL_HOST, hosted, detail, is_tried=swapped),
        ProbeResult(TIDYING, tidied, "a file outside was moved" if tidied else ""),
    ]


async def _race_search(host: ToolHost, view: SandboxPolicy, home: Path, intruder: str, outside: Path) -> ProbeResult:
    """A command keeps swapping a folder for a link while Talaria searches it."""
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
    async with asyncio.timeout(TIME_S):
        await host.start(SandboxCommand(command=command), output).wait()
    output.close()
    return output.text()


async def _try_policy(sandbox: Sandbox, home: Path, settings: TerminalSettings) -> list[ProbeResult]:
    """Try to change files that other programs obey: deep ones, missing ones, and one just replaced from outside.

    In a project of its own, as a session works in it when nobody can be asked.
    """
    async with in_threads(_temporary_folder(_FILES)) as folder:
        project = folder / "project"

        def look(_: Sequence[Path]) -> SandboxPolicy:
            return view_of(project, home, settings, os.environ)

        quarantine = Quarantine(folder, SessionId("trial"))
        workspace = Workspace(sandbox, project, look, EgressProxy((), (), SystemClock()), quarantine)

        async def run(command: str) -> None:
            output = CapturedOutput(folder / "spill" / "trial" / "policy", Redactor())
            with suppress(ToolFailed):
                await (await workspace.start(SandboxCommand(command=command), output)).wait_within(TIME_S)
            output.close()
            await workspace.quarantine_changes()

        def replace_settings() -> None:
            """As `git config` does."""
            file = project / ".git/config"
            new = file.with_name("config.lock")
            new.write_bytes(file.read_bytes() + b"[user]\n\tname = Ada\n")
            new.rename(file)

        def judge_files() -> list[ProbeResult]:
            made = [path for path in _MADE if (project / path).exists()]
            changed = ((DEEP, _DEEP), (NAMED, _NAMED), (REPLACED, ".git/config"))
            deep, named, replaced = (
                ProbeResult(attempt, "evil" in (project / path).read_text(), path) for attempt, path in changed
            )
            return [deep, named, ProbeResult(MADE, bool(made), ", ".join(made)), replaced]

        try:
            await run("; ".join(_append(path) for path in (_DEEP, _NAMED)))
            await run("; ".join(f"mkdir -p {Path(path).parent}; {_append(path)}" for path in _MADE))
            await in_thread(replace_settings)
            await run(_append(".git/config"))
        finally:
            await workspace.close()
        return await in_thread(judge_files)


def _append(path: str) -> str:
    return f"printf '{_EVIL.encode('unicode_escape').decode()}' >> {path}"
