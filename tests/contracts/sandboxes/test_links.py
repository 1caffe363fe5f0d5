"""Links that commands put where Talaria itself works, so that it mounts, changes or removes something elsewhere."""

import os
import shutil
import stat
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

import talaria
from talaria.core.clock import SystemClock
from talaria.core.errors import ToolFailed
from talaria.core.ids import SessionId
from talaria.core.messages import ToolResult
from talaria.core.trees import Root
from talaria.tools.base import Scope
from talaria.tools.output import CapturedOutput
from talaria.tools.quarantine import MAX_COPIED_BYTES, Quarantine
from talaria.tools.sandbox.base import SandboxPolicy
from talaria.tools.sandbox.bubblewrap import Bubblewrap
from talaria.tools.sandbox.egress_proxy import EgressProxy
from talaria.tools.sandbox.running_command import SandboxCommand
from talaria.tools.sandbox.sandbox_policy import view_of
from talaria.tools.sandbox.sandbox_settings import Backend, TerminalSettings
from talaria.tools.sandbox.system import own_code
from talaria.tools.workspace import Workspace
from talaria.tools.workspaces import Workspaces

Use = Callable[..., Awaitable[ToolResult]]

END_THE_HOST = "kill -9 $(ps -o ppid= -p $PPID)"
PACKAGE = Path(talaria.__file__).parent


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """As a folder that git, or whoever looks like it, would be led to."""
    folder = tmp_path / "outside"
    for name in ("hooks", "bin", "config"):
        (folder / name).mkdir(parents=True)
        (folder / name / "kept").write_text("kept")
    (folder / "commondir").write_text("kept")
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {str(one.relative_to(folder)): one.read_text() for one in folder.rglob("*") if one.is_file()}


def quarantined(tmp_path: Path) -> list[str]:
    """What is there, by the names under which it was found."""
    folder = tmp_path / "home/quarantine/session-1"
    notes = (folder / "moved.txt").read_text().splitlines() if folder.exists() else []
    assert all(os.path.lexists(folder / line.partition(" was ")[0]) for line in notes)
    assert not folder.exists() or stat.S_IMODE(folder.stat().st_mode) == 0o700
    return [line.partition(" was ")[2] for line in notes]


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
@pytest.mark.parametrize("git", [".git", "sub/.git", "sub/deep/.git"])
async def test_a_git_that_is_a_link_is_not_mounted(use: Use, cwd: Path, outside: Path, git: str) -> None:
    """The next tool host looks at the project anew."""
    before = contents(outside)
    await use("terminal", command=f"mkdir -p sub/deep; ln -s {outside} {git}; {END_THE_HOST}")
    told = await use("terminal", command=f"echo evil > {git}/planted; echo evil > {git}/commondir; echo goes on")
    assert told.text.endswith("goes on\n\n[exit code 0]"), told.text
    assert contents(outside) == before


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
@pytest.mark.parametrize("name", ["hooks", "config"])
async def test_hooks_that_are_a_link_are_not_mounted_from_elsewhere(
    use: Use, cwd: Path, outside: Path, name: str
) -> None:
    await use("terminal", command=f"mkdir -p sub/.git; ln -s {outside}/{name} sub/.git/{name}; {END_THE_HOST}")
    told = await use("terminal", command=f"cat sub/.git/{name}/kept; ls -d sub/.git; echo goes on")
    assert "\nkept" not in told.text
    assert "goes on\n\n[exit code 0]" in told.text


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
async def test_a_link_to_what_is_private_does_not_stop_later_commands(
    use: Use, cwd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    (tmp_path / "person/.kube").mkdir(parents=True)
    (tmp_path / "person/.kube/config").write_text("token")
    for name in (".git", "sub/.git", ".vscode", ".claude"):
        told = await use("terminal", command=f"mkdir -p sub; ln -s {tmp_path}/person/.kube {name}; {END_THE_HOST}")
        told = await use("terminal", command=f"cat {name}/config; echo goes on")
        assert told.text.endswith("goes on\n\n[exit code 0]"), told.text
        assert "token" not in told.text


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
@pytest.mark.parametrize("target", ["{outside}", "{cwd}", "nowhere"])
async def test_a_link_in_place_of_what_would_be_hidden_does_not_stop_later_commands(
    use: Use, cwd: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """In a project that is a home, keys and tokens are hidden where they are."""
    monkeypatch.setenv("HOME", str(cwd))
    leading = target.format(outside=outside, cwd=cwd)
    await use("terminal", command=f"ln -s {leading} .kube; ln -s {leading} .netrc; {END_THE_HOST}")
    assert (await use("terminal", command="echo goes on")).text == "goes on\n\n[exit code 0]"


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
async def test_keys_that_the_person_keeps_elsewhere_stay_hidden(
    use: Use, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(cwd))
    (cwd / "dotfiles/ssh").mkdir(parents=True)
    (cwd / "dotfiles/ssh/id").write_text("a key")
    (cwd / ".ssh").symlink_to("dotfiles/ssh")
    told = await use("terminal", command="cat .ssh/id dotfiles/ssh/id; echo goes on")
    assert "a key" not in told.text
    assert "goes on" in told.text


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
async def test_a_loop_of_links_does_not_stop_later_commands(use: Use, cwd: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", cwd], check=True)
    subprocess.run(["git", "-C", cwd, "config", "core.hooksPath", tmp_path / "loop/hooks"], check=True)
    (tmp_path / "loop").symlink_to("loop")
    for name in (".vscode", ".git/commondir", "sub/.git"):
        (cwd / name).parent.mkdir(exist_ok=True)
        (cwd / name).symlink_to(Path(name).name)
    assert (await use("terminal", command="echo goes on")).text == "goes on\n\n[exit code 0]"


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
async def test_a_repository_that_becomes_a_link_before_it_is_mounted_is_not_followed(
    scope: Scope, cwd: Path, tmp_path: Path, outside: Path, backend: Backend
) -> None:
    """Another session may work in the same project."""
    (cwd / "sub/.git/hooks").mkdir(parents=True)
    settings, before = TerminalSettings(), contents(outside)

    def look(_: Sequence[Path]) -> SandboxPolicy:
        view = view_of(cwd, tmp_path / "home", settings, {})
        assert cwd / "sub/.git/hooks" in view.guarded
        (cwd / "sub/.git").rename(cwd / "sub/moved")
        (cwd / "sub/.git").symlink_to(outside)
        return view

    quarantine = Quarantine(tmp_path / "home", SessionId("session-1"))
    workspace = Workspace(Bubblewrap(), cwd, look, EgressProxy((), (), SystemClock()), quarantine)
    output = CapturedOutput(tmp_path / "spill/s/x", scope.redactor)
    try:
        command = (
            "cat sub/.git/config/kept sub/.git/hooks/kept; echo evil > sub/.git/planted; echo evil > sub/.git/hooks/x"
        )
        await (await workspace.start(SandboxCommand(command=command), output)).wait_within(20)
    finally:
        await workspace.close()
    assert "kept\n" not in output.text()
    assert contents(outside) == before


@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"], indirect=True)
async def test_a_link_in_place_of_a_folder_of_programs_shows_nothing_private(
    tmp_path: Path, scope: Scope, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made by a command while the home itself was the project, for a session somewhere else."""
    person = tmp_path / "person"
    for name in (".ssh/id", "documents/id", ".cargo/bin/tool", "tools/tool"):
        (person / name).parent.mkdir(parents=True)
        (person / name).write_text(f"{name}\n")
    (person / ".nvm").symlink_to(".ssh")
    (person / ".rustup").symlink_to("documents")
    (person / "listed").symlink_to(".ssh")
    (person / "lib").symlink_to("tools")
    monkeypatch.setenv("HOME", str(person))
    listed = TerminalSettings(backend=backend, read=(str(person / "listed"), str(person / "lib")))
    output = CapturedOutput(tmp_path / "spill/s/x", scope.redactor)
    async with aclosing(Workspaces(listed, tmp_path / "home", SystemClock())) as workspaces:
        names = (".nvm/id", ".rustup/id", "listed/id", ".ssh/id", ".cargo/bin/tool", "tools/tool")
        command = SandboxCommand(command=f"cat {' '.join(str(person / name) for name in names)} 2>/dev/null")
        await (await (await workspaces.open(scope)).start(command, output)).wait_within(20)
    assert output.text() == ".cargo/bin/tool\ntools/tool\n"  # the controls: folders, and a link of the person


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
async def test_a_project_that_becomes_a_link_before_it_is_mounted_is_not_followed(
    tmp_path: Path, scope: Scope, outside: Path, backend: Backend
) -> None:
    """As commands of a session in the folder around it could do."""
    view = view_of(scope.cwd, tmp_path / "home", TerminalSettings(backend=backend), os.environ)
    scope.cwd.rename(tmp_path / "moved")
    scope.cwd.symlink_to(outside)
    with pytest.raises(ToolFailed, match="Commands cannot run"):
        async with Bubblewrap().open(view):
            pass


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
@pytest.mark.parametrize("where", ["around", "itself", "inside"])
async def test_our_own_code_cannot_be_written_whatever_the_settings_say(
    tmp_path: Path, scope: Scope, backend: Backend, where: str
) -> None:
    """`test -w` changes nothing, should it be wrong."""
    folder = {"around": PACKAGE.parents[1], "itself": PACKAGE, "inside": PACKAGE / "tools"}[where]
    view = view_of(scope.cwd, tmp_path / "home", TerminalSettings(write=(str(folder),)), os.environ)
    places = [place for place in own_code() if place.is_relative_to(PACKAGE.parents[1])]
    assert PACKAGE in places
    asked = " ".join(
        str(place) for place in (PACKAGE, PACKAGE / "tools", PACKAGE / "tools/searching/search_program.py", *places)
    )
    quarantine = Quarantine(tmp_path / "home", scope.session)
    workspace = Workspace(Bubblewrap(), scope.cwd, lambda _: view, EgressProxy((), (), SystemClock()), quarantine)
    output = CapturedOutput(tmp_path / "spill/s/x", scope.redactor)
    try:
        command = f"for one in {asked}; do test -w $one && echo $one; done; test -w . && echo project"
        await (await workspace.start(SandboxCommand(command=command), output)).wait_within(20)
    finally:
        await workspace.close()
    assert output.text() == "project\n"


@pytest.mark.parametrize("backend", ["landlock"], indirect=True)
async def test_landlock_does_not_run_where_it_cannot_keep_our_own_code(
    use: Use, settings: TerminalSettings, tmp_path: Path, scope: Scope
) -> None:
    around = TerminalSettings(backend="landlock", write=(str(PACKAGE.parents[1]),))
    async with aclosing(Workspaces(around, tmp_path / "home", SystemClock())) as workspaces:
        workspace = await workspaces.open(scope)
        with pytest.raises(Exception, match="own code"):
            await workspace.start(
                SandboxCommand(command="true"), CapturedOutput(tmp_path / "spill/s/x", scope.redactor)
            )


@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"], indirect=True)
async def test_nothing_is_removed_through_a_link_in_a_home(
    use: Use,
    workspaces: Workspaces,
    scope: Scope,
    cwd: Path,
    tmp_path: Path,
    outside: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(cwd))
    before = contents(outside)
    told = await use(
        "terminal", command=f"ln -s {outside} .local; ln -s {outside}/commondir .bashrc; ln -s {outside} .config"
    )
    await workspaces.close(scope.session)
    assert contents(outside) == before
    assert sorted(quarantined(tmp_path)) == [".bashrc", ".config", ".local"]
    assert ".local appeared while commands ran, and other programs obey it. It was moved to" in told.text
    assert not os.path.lexists(cwd / ".local")


@pytest.mark.parametrize("ending", ["true", END_THE_HOST])
async def test_nothing_is_removed_through_a_repository_that_became_a_link(
    use: Use, workspaces: Workspaces, scope: Scope, cwd: Path, outside: Path, ending: str
) -> None:
    subprocess.run(["git", "init", "-q", cwd], check=True)
    before = contents(outside)
    await use("terminal", command="true")
    await use("terminal", command=f"mv .git g; ln -s {outside} .git; {ending}")
    await use("terminal", command="true")
    await workspaces.close(scope.session)
    assert contents(outside) == before


@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"], indirect=True)
async def test_what_leads_git_elsewhere_is_kept_in_quarantine(
    use: Use, workspaces: Workspaces, scope: Scope, cwd: Path, tmp_path: Path
) -> None:
    subprocess.run(["git", "init", "-q", cwd], check=True)
    told = await use("terminal", command="echo ../evil > .git/commondir")
    assert "[.git/commondir appeared" in told.text
    await use("terminal", command="mkdir .git/commondir; echo x > .git/commondir/x")
    assert quarantined(tmp_path) == [".git/commondir", ".git/commondir"]
    assert not (cwd / ".git/commondir").exists()
    kept = sorted(one.read_text() for one in (tmp_path / "home/quarantine").rglob("*") if one.is_file())
    assert kept[0].startswith("../evil")
    assert kept[-1] == "x\n"


@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"], indirect=True)
async def test_a_link_of_the_person_is_not_strange(
    use: Use,
    workspaces: Workspaces,
    scope: Scope,
    cwd: Path,
    tmp_path: Path,
    outside: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They keep some things elsewhere, and did before any command ran."""
    monkeypatch.setenv("HOME", str(cwd))
    (cwd / ".local").symlink_to(outside)
    (cwd / "dotfiles").mkdir()
    (cwd / ".config").symlink_to("dotfiles")
    await use("terminal", command="mkdir -p dotfiles/autostart; echo evil > dotfiles/autostart/evil")
    await workspaces.close(scope.session)
    assert (cwd / ".local").is_symlink()
    assert quarantined(tmp_path) == ["dotfiles/autostart"]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A home on another file system."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system to move to")
    home = memory / f"talaria-test-{os.urandom(4).hex()}"
    home.mkdir()
    return home


def test_things_move_to_another_file_system_whole_or_stay(tmp_path: Path, elsewhere: Path, outside: Path) -> None:

    work = tmp_path / "work"
    (work / "folder/in").mkdir(parents=True)
    (work / "folder/in/a").write_text("a")
    (work / "folder/link").symlink_to(outside)
    (work / "large").write_bytes(bytes(MAX_COPIED_BYTES + 1))
    os.mkfifo(work / "pipe")
    before = contents(outside)
    try:
        quarantine = Quarantine(elsewhere, SessionId("s"))
        with Root.open(work) as root:
            moved = {one.name: one for one in quarantine.move(root, ["folder", "large", "pipe", "missing"])}
        kept = moved["folder"].to
        assert kept is not None
        assert (kept / "in/a").read_text() == "a"
        assert (kept / "link").readlink() == outside
        assert not (work / "folder").exists()
        assert (moved["large"].to, moved["pipe"].to) == (None, None)
        assert moved["large"].reason == "it is too large"
        assert sorted(moved) == ["folder", "large", "pipe"]
        assert (work / "large").exists()
        assert contents(outside) == before
    finally:
        shutil.rmtree(elsewhere)
