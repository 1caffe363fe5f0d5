"""Files that other programs obey unasked: what commands change of them is held, and kept only if the person says so.

Each attack has its control: where everything is allowed, the same command leaves what it made.
"""

import asyncio
import json
import os
import stat
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from tests.contracts.sandboxes.conftest import Alone, Use

from talaria.core.clock import SystemClock
from talaria.core.errors import Denied
from talaria.core.ids import CallId, SessionId
from talaria.core.messages import ToolCall, ToolResult
from talaria.core.redaction import Redactor
from talaria.tools.base import Gate, Invocation, OpenGate, Scope
from talaria.tools.builtin.file_tools import file_tools
from talaria.tools.builtin.terminal import process_tools, terminal_tools
from talaria.tools.executor import Executor
from talaria.tools.file_content import ReadFiles
from talaria.tools.folder_events import FolderEvents
from talaria.tools.output import CapturedOutput
from talaria.tools.person import Proposal
from talaria.tools.quarantine import Quarantine
from talaria.tools.registry import Toolbox
from talaria.tools.sandbox.base import Level, Sandbox, SandboxPolicy, ToolHost
from talaria.tools.sandbox.bubblewrap import Bubblewrap
from talaria.tools.sandbox.egress_proxy import EgressProxy
from talaria.tools.sandbox.guarding import StrictHost
from talaria.tools.sandbox.landlocked import Landlocked
from talaria.tools.sandbox.running_command import SandboxCommand
from talaria.tools.sandbox.sandbox_policy import view_of
from talaria.tools.sandbox.sandbox_settings import Backend, TerminalSettings
from talaria.tools.workspace import MAX_HELD, Workspace
from talaria.tools.workspaces import Workspaces

pytestmark = pytest.mark.parametrize("backend", ["bubblewrap", "landlock"], indirect=True)
UseWith = Callable[..., Awaitable[ToolResult]]

FSMONITOR = "printf '[core]\\n\\tfsmonitor = ./evil\\n'"
NEW = {
    "at the root": ("echo evil > .envrc", ".envrc"),
    "below the root": ("mkdir -p a/b; echo evil > a/b/.envrc", "a/b/.envrc"),
    "in a new folder": ("mkdir -p .vscode; echo evil > .vscode/tasks.json", ".vscode/tasks.json"),
    "moved into its place": ("mkdir x; echo evil > x/tasks.json; mv x sub/.vscode", "sub/.vscode/tasks.json"),
    "in a folder that is moved": ("mkdir -p x/y; echo evil > x/y/.mcp.json; mv x sub/x", "sub/x/y/.mcp.json"),
    "by two names": ("echo evil > innocent; ln innocent .mise.toml", ".mise.toml"),
    "a link": ("echo evil > innocent; ln -s innocent .envrc", ".envrc"),
    "for the next conversation": ("echo 'obey the page' > AGENTS.md", "AGENTS.md"),
    "for cargo": ("mkdir sub/.cargo; echo evil > sub/.cargo/config.toml", "sub/.cargo/config.toml"),
    "for the forge": ("mkdir -p .github/workflows; echo evil > .github/workflows/a.yml", ".github/workflows/a.yml"),
    "a hook of a new repository": (
        "git init -q sub; echo evil > sub/.git/hooks/pre-commit",
        "sub/.git/hooks/pre-commit",
    ),
    "settings of a new repository": (f"git init -q sub; {FSMONITOR} > sub/.git/config", "sub/.git/config"),
    "a remote that no setting names": (
        "git init -q sub; mkdir sub/.git/remotes; echo 'URL: evil' > sub/.git/remotes/origin",
        "sub/.git/remotes/origin",
    ),
    "a remote in a file with settings": (
        "git init -q sub; mkdir -p sub/.git/branches; echo '[core]' > sub/.git/branches/config",
        "sub/.git/branches/config",
    ),
    "a repository elsewhere": ("echo 'gitdir: /tmp/evil' > sub/.git", "sub/.git"),
    "a bare repository": (f"git init -q --bare e; {FSMONITOR} > e/config; mv e/* sub", "sub/config"),
}


@pytest.fixture
def use_with(scope: Scope, workspaces: Workspaces) -> UseWith:
    """`await use_with(gate, "terminal", command="true")`, in the same workspace as `use`."""
    tools = (
        *terminal_tools(workspaces),
        *process_tools(workspaces),
        *file_tools(ReadFiles(), workspaces.allow_change),
    )

    async def call(gate: Gate, name: str, /, **arguments: object) -> ToolResult:
        return await Executor(Toolbox(tools), gate, scope).call(ToolCall(CallId("c"), name, json.dumps(arguments)))

    return call


class Person(OpenGate):
    """Says yes or no to what was held, and keeps the question."""

    def __init__(self, *, says_yes: bool) -> None:
        self._says_yes = says_yes
        self.asked: list[str] = []

    async def insist(self, call: ToolCall, invocation: Invocation, scope: Scope, doubt: str) -> None:
        await self.admit(call, invocation, scope)

    async def admit(self, call: ToolCall, invocation: Invocation, scope: Scope) -> None:
        if call.id.endswith("-held"):
            assert isinstance(invocation.question, Proposal)
            self.asked.append(invocation.question.content or "")
            if not self._says_yes:
                raise Denied("The person said no.")


def held_in(tmp_path: Path) -> list[str]:
    """What the quarantine holds, by where it was."""
    notes = (tmp_path / "home/quarantine").glob("*/moved.txt")
    return [line.split(" was ", 1)[1] for note in notes for line in note.read_text().splitlines()]


@pytest.mark.parametrize("where", NEW)
async def test_what_commands_make_is_held(use: Use, use_with: UseWith, cwd: Path, tmp_path: Path, where: str) -> None:
    command, made = NEW[where]
    (cwd / "sub").mkdir()
    await use("terminal", command="true")
    told = await use("terminal", command=command)
    assert not os.path.lexists(cwd / made)
    assert "obey it. It was moved to" in told.text
    assert any(made.startswith(one) for one in held_in(tmp_path))
    subprocess.run(["git", "status", "--short"], cwd=cwd / "sub", capture_output=True, check=False)
    await use_with(
        Person(says_yes=True), "terminal", command="rm -rf .g* .e* .v* AGENTS.md a e x innocent sub; mkdir sub"
    )
    await use_with(Person(says_yes=True), "terminal", command=command)
    assert os.path.lexists(cwd / made)


async def test_a_worktree_or_branch_may_be_called_as_what_git_obeys(use: Use, cwd: Path, tmp_path: Path) -> None:
    commit = "git -c user.name=a -c user.email=a@b -c commit.gpgsign=false commit -q --allow-empty -m x"
    made = f"git init -q .; {commit}; git worktree add -q branches; git worktree add -q remotes; git switch -qc hooks/x"
    told = await use("terminal", command=f"{made}; git update-ref refs/remotes/branches/main HEAD; git pack-refs --all")
    assert "[exit code 0]" in told.text
    assert "moved to" not in told.text
    assert (cwd / ".git/worktrees/remotes/HEAD").exists()
    assert held_in(tmp_path) == []


CHANGED = {
    "below the root": "sub/.vscode/tasks.json",
    "for the next conversation": "AGENTS.md",
    "of a repository below": "sub/lib/.pre-commit-config.yaml",
}


@pytest.mark.parametrize("name", CHANGED.values(), ids=CHANGED.keys())
@pytest.mark.parametrize(
    "command",
    [
        "echo evil >> {0}; chmod +x {0}",
        "cp {0} x; echo evil >> x; mv -f x {0}",
        "ln {0} x; echo evil >> x",
    ],
    ids=["appended", "replaced", "by another name"],
)
async def test_what_commands_change_comes_back(use: Use, cwd: Path, tmp_path: Path, name: str, command: str) -> None:
    (cwd / name).parent.mkdir(parents=True, exist_ok=True)
    (cwd / name).write_text("good\n")
    (cwd / name).chmod(0o640)
    told = await use("terminal", command=command.format(name))
    assert (cwd / name).read_text() == "good\n"
    assert stat.S_IMODE((cwd / name).stat().st_mode) == 0o640
    assert f"[{name} was changed while commands ran" in told.text
    assert held_in(tmp_path) == [name]


async def test_settings_of_git_cannot_make_it_run_anything(use: Use, use_with: UseWith, cwd: Path) -> None:
    """At landlock nothing is mounted; at strict the command itself fails."""
    subprocess.run(["git", "init", "-q", cwd], check=True)
    (cwd / "evil").write_text("#!/bin/sh\necho evil > ran\n")
    (cwd / "evil").chmod(0o755)
    attack = "git config core.fsmonitor ./evil; echo 'echo evil > ran' > .git/hooks/post-checkout"
    await use("terminal", command=attack)
    subprocess.run(["git", "status"], cwd=cwd, capture_output=True, check=True)
    assert not (cwd / "ran").exists()
    assert "fsmonitor" not in (cwd / ".git/config").read_text()
    await use_with(Person(says_yes=True), "terminal", command=attack)
    subprocess.run(["git", "status"], cwd=cwd, capture_output=True, check=True)
    is_mounted = "fsmonitor" not in (cwd / ".git/config").read_text()
    assert (cwd / "ran").exists() is not is_mounted


async def test_what_a_setting_of_git_names_is_obeyed_as_well(use: Use, cwd: Path) -> None:
    subprocess.run(["git", "init", "-q", cwd], check=True)
    subprocess.run(["git", "config", "core.hooksPath", "tools/hooks"], cwd=cwd, check=True)
    (cwd / "tools/hooks").mkdir(parents=True)
    (cwd / "tools/hooks/pre-push").write_text("good\n")
    await use("terminal", command="echo evil >> tools/hooks/pre-push; echo evil > tools/hooks/pre-commit")
    assert [one.read_text() for one in (cwd / "tools/hooks").iterdir()] == ["good\n"]


async def test_work_with_git_goes_on(use: Use, cwd: Path, tmp_path: Path) -> None:
    """What git itself writes is harmless: it is not held."""
    told = await use(
        "terminal",
        command="git init -q one && cd one && git config user.name Ada && git config user.email ada@example.org "
        "&& git commit -q --allow-empty -m first && git checkout -q -b other "
        "&& git remote add origin https://example.com/x.git && git worktree add -q ../two master "
        "&& cd .. && git clone -q one three && git -C three log --oneline && git -C two status --short && echo fine",
    )
    assert told.text.endswith("fine\n\n[exit code 0]")
    assert held_in(tmp_path) == []
    assert subprocess.run(["git", "-C", cwd / "three", "status"], capture_output=True, check=False).returncode == 0


async def test_the_person_sees_the_change_and_decides(use_with: UseWith, cwd: Path, tmp_path: Path) -> None:
    (cwd / "AGENTS.md").write_text("one\ntwo\n")
    hook = "mkdir .husky; printf '#!/bin/sh\\nnpm test\\n' > .husky/pre-push; chmod +x .husky/pre-push"
    command = f"echo three >> AGENTS.md; {hook}"
    no, yes = Person(says_yes=False), Person(says_yes=True)
    told = await use_with(no, "terminal", command=command)
    assert "The person said no." in told.text
    assert (cwd / "AGENTS.md").read_text() == "one\ntwo\n"
    assert not (cwd / ".husky").exists()
    told = await use_with(yes, "terminal", command=command)
    assert "[The person allowed the change to AGENTS.md.]" in told.text
    assert (cwd / "AGENTS.md").read_text() == "one\ntwo\nthree\n"
    assert os.access(cwd / ".husky/pre-push", os.X_OK)
    (question,) = yes.asked
    assert "  +three\n" in question
    assert ".husky/pre-push (executable, 19 bytes)\n  @@ -0,0 +1,2 @@\n  +#!/bin/sh\n  +npm test" in question
    await use_with(Alone(), "terminal", command="true")
    assert (cwd / "AGENTS.md").read_text() == "one\ntwo\nthree\n"


async def test_what_makes_git_run_something_is_not_kept_where_nobody_is_asked(use_with: UseWith, cwd: Path) -> None:
    """As with --yolo."""
    subprocess.run(["git", "init", "-q", cwd], check=True)
    await use_with(OpenGate(), "terminal", command="echo evil > .envrc; echo ../evil > .git/commondir")
    await use_with(OpenGate(), "terminal", command="echo evil > .envrc")
    assert (cwd / ".envrc").exists()
    assert not (cwd / ".git/commondir").exists()


async def test_what_the_person_does_between_commands_is_kept_and_guarded(use: Use, cwd: Path, tmp_path: Path) -> None:
    await use("terminal", command="true")
    (cwd / ".envrc").write_text("mine\n")
    (cwd / "sub/.vscode").mkdir(parents=True)
    (cwd / "sub/.vscode/tasks.json").write_text("mine\n")
    await use("terminal", command="true")
    await use("terminal", command="echo evil >> .envrc; echo evil >> sub/.vscode/tasks.json")
    assert (cwd / ".envrc").read_text() == "mine\n"
    assert (cwd / "sub/.vscode/tasks.json").read_text() == "mine\n"


async def test_nothing_of_ours_is_seen_in_the_project(use: Use, cwd: Path) -> None:
    subprocess.run(["git", "init", "-q", cwd], check=True)
    await use("terminal", command="true")
    seen = subprocess.run(
        ["git", "status", "--short", "--ignored"], cwd=cwd, capture_output=True, text=True, check=True
    )
    assert seen.stdout == ""


async def test_a_file_tool_that_was_allowed_to_writes_while_a_process_runs(
    use: Use, use_with: UseWith, workspaces: Workspaces, scope: Scope, cwd: Path
) -> None:
    await use("terminal", command="sleep 100", background=True)
    await use_with(OpenGate(), "write_file", path=".envrc", content="wanted\n")
    await use("terminal", command="true")
    assert (cwd / ".envrc").read_text() == "wanted\n"
    assert workspaces.take_news(scope.session) == ()


async def test_what_a_background_process_makes_is_held_without_waiting_for_its_end(
    use: Use, workspaces: Workspaces, scope: Scope, cwd: Path
) -> None:
    await use(
        "terminal", command="echo evil > .envrc; until [ ! -e .envrc ]; do sleep 0.01; done; echo gone", background=True
    )
    told = await use("process", action="wait", id="p1", timeout_s=30)
    assert told.text.startswith("gone\n")
    assert ".envrc appeared while commands ran" in told.text + "".join(workspaces.take_news(scope.session))


async def _written(file: Path, text: str) -> None:
    while file.read_text() != text:
        await asyncio.sleep(0.01)


async def test_two_sessions_in_one_project(use: Use, workspaces: Workspaces, scope: Scope, cwd: Path) -> None:
    other = msgspec.structs.replace(scope, session=SessionId("session-2"))
    tools = Executor(Toolbox(terminal_tools(workspaces)), Alone(), other)

    async def use_other(command: str) -> ToolResult:
        return await tools.call(ToolCall(CallId("c"), "terminal", json.dumps({"command": command})))

    (cwd / "AGENTS.md").write_text("good\n")
    await use_other("true")
    for attack in (use("terminal", command="echo evil > .envrc"), use_other("echo evil > .mcp.json")):
        assert "It was moved to" in (await attack).text
    await use("terminal", command="echo evil > AGENTS.md; until [ -e go ]; do sleep 0.01; done", background=True)
    await _written(cwd / "AGENTS.md", "evil\n")
    late = Executor(
        Toolbox(terminal_tools(workspaces)), Alone(), msgspec.structs.replace(scope, session=SessionId("3"))
    )
    command = json.dumps({"command": 'touch go; until [ "$(cat AGENTS.md)" = good ]; do sleep 0.01; done'})
    await asyncio.gather(
        late.call(ToolCall(CallId("c"), "terminal", command)), use("process", action="wait", id="p1", timeout_s=30)
    )
    assert (cwd / "AGENTS.md").read_text() == "good\n"
    (cwd / ".envrc").write_text("mine\n")
    await use("terminal", command="true")
    await use_other("echo evil > .envrc")
    assert (cwd / ".envrc").read_text() == "mine\n"


async def test_a_process_that_does_not_give_up_is_stopped(
    use: Use, workspaces: Workspaces, scope: Scope, cwd: Path
) -> None:
    await use("terminal", command="while true; do echo evil > .envrc; sleep 0.001; done", background=True)
    await use("process", action="wait", id="p1", timeout_s=60)
    assert "Commands kept creating files" in "".join(workspaces.take_news(scope.session))
    assert not (cwd / ".envrc").exists()
    assert len(list((cwd.parent / "home/quarantine/session-1").iterdir())) < 2 * MAX_HELD
    assert (await use("terminal", command="echo goes on")).text.startswith("goes on")


class ClosingSlowly:
    """A sandbox of which a process is still dying, and writes, when its command counts as ended."""

    def __init__(self, inner: Sandbox) -> None:
        self._inner = inner
        self.level: Level = inner.level
        self.about = inner.about
        self.in_the_end: Callable[[], Awaitable[None]] | None = None

    @asynccontextmanager
    async def open(self, view: SandboxPolicy) -> AsyncGenerator[ToolHost]:
        async with self._inner.open(view) as host:
            yield host
        assert self.in_the_end is not None
        await self.in_the_end()


async def test_what_a_dying_process_makes_is_held_after_others_have_looked(
    backend: Backend, cwd: Path, tmp_path: Path
) -> None:
    sandbox = ClosingSlowly(Bubblewrap() if backend == "bubblewrap" else Landlocked())
    quarantine, way_out = Quarantine(tmp_path, SessionId("s")), EgressProxy((), (), SystemClock())
    workspace = Workspace(
        sandbox, cwd, lambda _: view_of(cwd, tmp_path / "home", TerminalSettings(), {}), way_out, quarantine
    )
    output = CapturedOutput(tmp_path / "spill/s/output", Redactor())
    started = await workspace.start(SandboxCommand(command="sleep 1000"), output)

    async def look_and_write() -> None:
        await started.wait()
        await workspace.quarantine_changes()
        (cwd / ".envrc").write_text("evil\n")

    sandbox.in_the_end = look_and_write
    await workspace.close()
    output.close()
    assert not (cwd / ".envrc").exists()


async def test_without_the_kernels_help_the_project_is_looked_through(
    use: Use, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: FolderEvents) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(FolderEvents, "__init__", refuse)
    await use("terminal", command="true")
    await use("terminal", command="mkdir -p a/b; echo evil > a/b/.envrc")
    assert not (cwd / "a/b/.envrc").exists()


def replace(file: Path, content: str) -> None:
    """As git and editors do."""
    new = file.with_name("new")
    new.write_text(content)
    new.rename(file)


async def test_a_file_that_is_replaced_from_outside_is_guarded_again(use: Use, cwd: Path, backend: str) -> None:
    subprocess.run(["git", "init", "-q", cwd], check=True)
    await use("terminal", command="echo kept > ${TMPDIR:-/tmp}/note; export KEPT=kept")
    replace(cwd / ".git/config", "[user]\n\tname = Ada\n")
    told = await use("terminal", command=f"{FSMONITOR} >> .git/config; cat ${{TMPDIR:-/tmp}}/note; echo $KEPT")
    assert "kept\nkept\n" in told.text
    assert ("core.fsmonitor was not saved" in told.text) is (backend == "bubblewrap")
    assert (cwd / ".git/config").read_text() == "[user]\n\tname = Ada\n"


async def test_a_file_that_is_replaced_while_a_process_tries_to_write_it_holds_nothing_of_that(
    use: Use, cwd: Path
) -> None:
    subprocess.run(["git", "init", "-q", cwd], check=True)
    attack = f"until [ -e go ]; do sleep 0.01; done; while sleep 0.001; do {FSMONITOR} >> .git/config; done"
    await use("terminal", command=attack, background=True)
    (cwd / "go").touch()
    replace(cwd / ".git/config", "[user]\n\tname = Ada\n")
    await use("terminal", command="true")
    await use("process", action="kill", id="p1")
    assert "evil" not in (cwd / ".git/config").read_text()


def _nothing(_: StrictHost, __: Sequence[Path]) -> tuple[Path, ...]:
    return ()


async def test_without_guards_that_are_put_back_the_same_attack_succeeds(
    use: Use, use_with: UseWith, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StrictHost, "missing", _nothing)
    subprocess.run(["git", "init", "-q", cwd], check=True)
    await use("terminal", command="true")
    replace(cwd / ".git/config", "[user]\n\tname = Ada\n")
    await use_with(Person(says_yes=True), "terminal", command=f"{FSMONITOR} >> .git/config")
    assert "evil" in (cwd / ".git/config").read_text()
