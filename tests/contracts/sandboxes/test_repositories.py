"""What git obeys in repositories of a project is not changed by commands, wherever it is and whatever names it."""

import shlex
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec import structs

from talaria.core.messages import ToolResult
from talaria.tools.base import Scope
from talaria.tools.output import CapturedOutput
from talaria.tools.sandbox.base import SandboxPolicy
from talaria.tools.sandbox.bubblewrap import Bubblewrap
from talaria.tools.sandbox.running_command import SandboxCommand
from talaria.tools.sandbox.sandbox_policy import view_of
from talaria.tools.sandbox.sandbox_settings import Backend, TerminalSettings

Use = Callable[..., Awaitable[ToolResult]]

FILES = {
    ".git/config": "[include]\n path = shared\n[core]\n hooksPath = tools/hooks\n[extensions]\n worktreeConfig\n",
    ".git/shared": '[includeIf "gitdir:/"]\n path = ../settings/more\n',
    "settings/more": "[core]\n hooksPath = {project}/absolute/hooks\n",
    "tools/hooks/pre-commit": "",
    "absolute/hooks/pre-commit": "",
    ".git/config.worktree": "[core]\n hooksPath = of-worktree\n",
    "of-worktree/pre-commit": "",
    ".git/worktrees/w/commondir": "../..\n",
    ".git/worktrees/w/gitdir": "{project}/w/.git\n",
    ".git/worktrees/w/config.worktree": "[core]\n hooksPath = hooks-of-w\n",
    "w/.git": "gitdir: {project}/.git/worktrees/w\n",
    "w/hooks-of-w/pre-commit": "",
    ".git/modules/a/b/c/d/HEAD": "ref: refs/heads/main\n",
    ".git/modules/a/b/c/d/config": "[core]\n worktree = ../../../../../../deep\n hooksPath = hooks-of-deep\n",
    ".git/modules/a/b/c/d/hooks/pre-commit": "",
    "deep/hooks-of-deep/pre-commit": "",
    ".git/modules/a/b/c/d/modules/e/HEAD": "ref: refs/heads/main\n",
    ".git/modules/a/b/c/d/modules/e/config": "",
    ".git/modules/a/b/c/d/modules/e/hooks/pre-commit": "",
    "inner/.git/config": "[core]\n hooksPath = .\n",
    "inner/.git/commondir": "../../store/git\n",
    "inner/pre-push": "",
    "store/git/HEAD": "ref: refs/heads/main\n",
    "store/git/config": "",
    "store/git/hooks/pre-commit": "",
    "bare.git/HEAD": "ref: refs/heads/main\n",
    "bare.git/config": "",
    "bare.git/hooks/update": "",
    "bare.git/objects/x": "",
    "bare.git/refs/x": "",
    "separate/.git": "gitdir: ../git-of-separate\n",
    "git-of-separate/HEAD": "ref: refs/heads/main\n",
    "git-of-separate/config": "",
    "scripts/hook": "",
}
LINKS = {"inner/.git/hooks/pre-commit": "../../../scripts/hook"}
OPEN = {
    *(".git/modules/a/b/c/d/HEAD", ".git/modules/a/b/c/d/modules/e/HEAD", "store/git/HEAD", "bare.git/HEAD"),
    *("bare.git/objects/x", "bare.git/refs/x", "git-of-separate/HEAD"),
}
"""What git itself writes all the time."""


@pytest.fixture
def repositories(cwd: Path) -> set[str]:
    for name, text in FILES.items():
        (cwd / name).parent.mkdir(parents=True, exist_ok=True)
        (cwd / name).write_text(text.format(project=cwd))
    for name, target in LINKS.items():
        (cwd / name).parent.mkdir(parents=True)
        (cwd / name).symlink_to(target)
    return set(FILES)


async def changed_in(view: SandboxPolicy, scope: Scope) -> set[str]:
    """Each file is replaced, and so is the first folder on the way to it: one of these is enough."""
    names = " ".join(shlex.quote(name) for name in FILES)
    attack = (
        f"for n in {names}; do cp $n /tmp/x; echo evil >> $n; mv $n /tmp/y && cp /tmp/x $n && echo evil >> $n; done"
    )
    swap = f"for n in {names}; do d=${{n%%/*}}; mv $d $d.1 && cp -r $d.1 $d && echo evil >> $n; done"
    output = CapturedOutput(scope.spill / "x", scope.redactor)
    async with Bubblewrap().open(view) as host:
        for command in (attack, swap):
            await host.start(SandboxCommand(command=f"({command}) 2>/dev/null"), output).wait_within(20)
    return {name for name in FILES if "evil" in (view.project / name).read_text()}


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
async def test_what_git_obeys_is_guarded_however_deep_and_whatever_names_it(
    repositories: set[str], scope: Scope, backend: Backend, tmp_path: Path
) -> None:
    view = view_of(scope.cwd, tmp_path / "home", TerminalSettings(), {})
    assert await changed_in(view, scope) == OPEN
    assert await changed_in(structs.replace(view, guarded=()), scope) == repositories


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
async def test_hooks_in_a_folder_of_the_settings_are_guarded_too(
    scope: Scope, cwd: Path, backend: Backend, tmp_path: Path
) -> None:
    shared, hooks = tmp_path / "shared", tmp_path / "shared/team/hooks"
    hooks.mkdir(parents=True)
    (shared / "lib/.git").mkdir(parents=True)
    (shared / "lib/.git/config").write_text("")
    (cwd / ".git").mkdir()
    (cwd / ".git/config").write_text(f"[core]\nhooksPath = {hooks}\n")
    (tmp_path / "plain").write_text("")
    view = view_of(cwd, tmp_path / "home", TerminalSettings(write=(str(shared), str(tmp_path / "plain"))), {})
    attack = f"echo evil > {hooks}/pre-commit; echo evil > {shared}/lib/.git/config; echo good > {shared}/file"
    async with Bubblewrap().open(view) as host:
        await host.start(SandboxCommand(command=attack), CapturedOutput(scope.spill / "x", scope.redactor)).wait_within(
            20
        )
    assert (shared / "file").read_text() == "good\n"
    assert not (hooks / "pre-commit").exists()
    assert (shared / "lib/.git/config").read_text() == ""


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
async def test_hooks_are_guarded_that_settings_outside_of_the_project_name(
    use: Use, cwd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a repository that the project is a worktree of, and of the person."""
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    files = {
        "main/.git/config": "[core]\n hooksPath = tools/hooks\n",
        "main/.git/worktrees/w/commondir": "../..\n",
        "person/.gitconfig": "[include]\n path = more\n",
        "person/more": "[core]\n hooksPath = my-hooks\n",
        "work/.git": f"gitdir: {tmp_path}/main/.git/worktrees/w\n",
        "work/tools/hooks/pre-commit": "",
        "work/my-hooks/pre-commit": "",
        "work/other/pre-commit": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    await use("terminal", command="for n in */pre-commit */*/pre-commit; do echo evil > $n; done")
    assert [one for one in cwd.rglob("pre-commit") if one.read_text()] == [cwd / "other/pre-commit"]


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
async def test_a_commondir_that_appears_in_an_inner_repository_is_moved_away(use: Use, cwd: Path) -> None:
    subprocess.run(["git", "init", "-q", cwd / "a/b/inner"], check=True)
    told = await use("terminal", command="echo ../../../evil > a/b/inner/.git/commondir")
    assert not (cwd / "a/b/inner/.git/commondir").exists()
    assert "[a/b/inner/.git/commondir appeared" in told.text


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
async def test_commands_run_in_a_project_with_more_repositories_than_can_be_mounted(use: Use, cwd: Path) -> None:
    for number in range(120):
        (cwd / f"vendor/{number}/.git/hooks").mkdir(parents=True)
    told = await use("terminal", command="echo here > file; for n in vendor/*; do echo evil > $n/.git/hooks/x; done")
    assert (cwd / "file").read_text() == "here\n", told.text
    assert not [*cwd.glob("vendor/*/.git/hooks/x")]


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
async def test_git_works_where_its_settings_are_guarded(use: Use, cwd: Path) -> None:
    subprocess.run(["git", "init", "-q", cwd], check=True)
    subprocess.run(["git", "init", "-q", cwd / "inner"], check=True)
    commit = "echo a > a && git add a && git -c user.name=a -c user.email=a@b commit -qm a && git rev-parse HEAD"
    told = await use("terminal", command=f"{commit} && cd inner && {commit} && git checkout -qb other && git gc -q")
    assert told.text.endswith("[exit code 0]"), told.text
