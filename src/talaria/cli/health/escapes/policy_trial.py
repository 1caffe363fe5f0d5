"""Trying to change files of a project that other programs obey: deep ones, missing ones, and those that somebody
outside has just replaced."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from talaria.cli.health.escapes.probes import SHUT_IN, Attempt, ProbeResult
from talaria.core.aio import in_thread, in_threads
from talaria.core.clock import SystemClock
from talaria.core.errors import ToolFailed
from talaria.core.ids import SessionId
from talaria.core.redaction import Redactor
from talaria.tools.output import CapturedOutput
from talaria.tools.quarantine import Quarantine
from talaria.tools.sandbox.base import Sandbox, SandboxPolicy
from talaria.tools.sandbox.egress_proxy import EgressProxy
from talaria.tools.sandbox.running_command import SandboxCommand
from talaria.tools.sandbox.sandbox_policy import view_of
from talaria.tools.sandbox.sandbox_settings import TerminalSettings
from talaria.tools.workspace import Workspace

DEEP = Attempt("change settings of a nested submodule", SHUT_IN)
NAMED = Attempt("change hooks that a setting of git names", SHUT_IN)
MADE = Attempt("leave a file that other programs obey", SHUT_IN)
REPLACED = Attempt("change settings of git that were replaced from outside", SHUT_IN)
POLICY = (DEEP, NAMED, MADE, REPLACED)
TIME_S = 10
_EVIL = "[core]\n\tfsmonitor = ./evil\n"
_DEEP, _NAMED = ".git/modules/a/modules/b/config", "tools/hooks/pre-push"
_FILES = {
    ".git/HEAD": "ref: refs/heads/main\n",
    ".git/config": "[core]\n\thooksPath = tools/hooks\n",
    ".git/modules/a/modules/b/HEAD": "ref: refs/heads/main\n",
    _DEEP: "[core]\n",
    _NAMED: "#!/bin/sh\n",
}
_MADE = ("sub/.envrc", ".vscode/tasks.json", "AGENTS.md")


async def try_policy(
    sandbox: Sandbox, home: Path, settings: TerminalSettings, environment: Mapping[str, str]
) -> list[ProbeResult]:
    """In a project of its own, as a session works in it when nobody can be asked."""
    async with in_threads(_plant()) as project:
        folder = project.parent

        def look(_: Sequence[Path]) -> SandboxPolicy:
            return view_of(project, home, settings, environment)

        quarantine = Quarantine(folder, SessionId("trial"))
        workspace = Workspace(sandbox, project, look, EgressProxy((), (), SystemClock()), quarantine)

        async def run(command: str) -> None:
            output = CapturedOutput(folder / "spill" / "trial" / "policy", Redactor())
            with suppress(ToolFailed):
                await (await workspace.start(SandboxCommand(command=command), output)).wait_within(TIME_S)
            output.close()
            await workspace.quarantine_changes()

        try:
            await run("; ".join(_append(path) for path in (_DEEP, _NAMED)))
            await run("; ".join(f"mkdir -p {Path(path).parent}; {_append(path)}" for path in _MADE))
            await in_thread(lambda: _replace(project / ".git/config"))
            await run(_append(".git/config"))
        finally:
            await workspace.close()
        return await in_thread(lambda: _judge(project))


def _append(path: str) -> str:
    return f"printf '{_EVIL.encode('unicode_escape').decode()}' >> {path}"


@contextmanager
def _plant() -> Generator[Path]:
    with TemporaryDirectory(prefix="talaria-trial-") as name:
        project = Path(name).resolve() / "project"
        for path, content in _FILES.items():
            (project / path).parent.mkdir(parents=True, exist_ok=True)
            (project / path).write_text(content)
        for folder in ("objects", "refs", "hooks"):
            (project / ".git" / folder).mkdir()
        yield project


def _replace(file: Path) -> None:
    """As `git config` does."""
    new = file.with_name("config.lock")
    new.write_bytes(file.read_bytes() + b"[user]\n\tname = Ada\n")
    new.rename(file)


def _judge(project: Path) -> list[ProbeResult]:
    made = [path for path in _MADE if (project / path).exists()]
    return [
        ProbeResult(DEEP, _holds_evil(project / _DEEP), _DEEP),
        ProbeResult(NAMED, _holds_evil(project / _NAMED), _NAMED),
        ProbeResult(MADE, bool(made), ", ".join(made)),
        ProbeResult(REPLACED, _holds_evil(project / ".git/config"), ".git/config"),
    ]


def _holds_evil(file: Path) -> bool:
    return "evil" in file.read_text()
