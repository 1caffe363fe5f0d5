"""Git's configuration files are read as git reads them, and a new setting counts as dangerous until it is known."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.tools.git_config import MAX_CONFIG_BYTES, NOT_UNDERSTOOD, is_harmless, parse_config

BY_GIT = rb"""
[core]
	repositoryformatversion = 0
	bare = false
[remote "origin"]
	url = https://example.org/x.git
	fetch = +refs/heads/*:refs/remotes/origin/*
[branch "feature/new.one"]
	remote = origin
	merge = refs/heads/main
"""
ODD = rb"""
[CORE] HooksPath=a ; not this
[core]sshCommand = "a # b" c \
  d e   # said
[include]path="x\\y\"z"
[IncludeIf "gitdir:~/Work/"] Path = ../w
	[remote "Two \"quoted\" \\ \words"] url = \tx\n
[Old.Style] key = v
[flag] on
	off =
[a.B "C"] d = 1
"""


def by_git(file: Path) -> list[tuple[str, str]]:
    told = subprocess.run(
        ["git", "config", "--no-includes", "-z", "-l", "-f", file], capture_output=True, check=True
    ).stdout.decode("utf-8", "surrogateescape")
    pairs = [one.partition("\n") for one in told.split("\0")[:-1]]
    return [(key, value if newline else "true") for key, newline, value in pairs]


@pytest.mark.parametrize("text", [BY_GIT, ODD, ODD.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf[a]\nb = \xff\xfe"])
def test_entries_are_those_that_git_sees(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "config").write_bytes(text)
    assert [*parse_config(text)] == by_git(tmp_path / "config")


@given(
    st.lists(st.sampled_from([*'[]"\\ \n\t=#;.', "core", "a", "\r", "\n[a]\nb", "= x", "\ufeff", "[b "]), max_size=20)
)
def test_no_text_stops_the_parser_and_none_hides_what_follows(pieces: list[str]) -> None:
    """What is in the next lines is still found: there is no telling which git will read it."""
    text = "".join(pieces).encode()
    found = [*parse_config(text + b'"\n"\n[core]\nhooksPath = evil\n')]
    assert found[-1] == ("core.hookspath", "evil")


@pytest.mark.parametrize(
    "text", [b"[core", b"[core]\n1a = b", b'[a]\nb = "x', b"[a]\nb = \\x", b"=", b"[a b]\n", b"[]"]
)
def test_what_git_would_refuse_has_no_key_and_is_not_harmless(text: bytes) -> None:
    assert NOT_UNDERSTOOD in [key for key, _ in parse_config(text)]
    assert not is_harmless(text)


def test_what_git_writes_for_a_new_repository_or_clone_is_harmless(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path / "a"], check=True)
    subprocess.run(["git", "clone", "-q", tmp_path / "a", tmp_path / "b"], check=True, capture_output=True)
    for name in "ab":
        assert is_harmless((tmp_path / name / ".git/config").read_bytes())
    assert is_harmless(BY_GIT)
    assert is_harmless(b"")


@pytest.mark.parametrize(
    "text",
    [
        *("[include] path = x", '[includeIf "gitdir:/"] path = x', "[alias] st = !evil", "[core] fsmonitor = evil"),
        *("[core] hooksPath = x", "[core] sshCommand = x", "[core] editor = x", "[core] pager = x"),
        *("[core] worktree = /", "[core] askPass = x", "[core] gitProxy = x", '[filter "x"] clean = evil'),
        *('[diff "x"] command = x', '[merge "x"] driver = x', "[credential] helper = !x", '[url "x"] insteadOf = y'),
        *('[remote "o"] url = ext::sh -c evil', '[remote "o"] pushurl = fd::7', '[remote "o"] url = -oProxyCommand=x'),
        *('[remote "o"] url = ssh://-oProxyCommand=x/y', '[remote "o"] uploadpack = evil', '[remote "o"] vcs = evil'),
        *('[branch "main"] remote = ext::sh -c evil', '[branch "main"] mergeOptions = -s evil', "[init] templateDir=x"),
        *('[submodule "m"] update = !evil', '[submodule "m"] url = ext::x', "[pull] twohead = evil", "[new] key = 1"),
        *("[extensions] partialClone = origin", "[core.x] bare = 1", "bare = true", "[gpg] program = x"),
        *('[branch "a.mergeoptions\0b"] merge = -s evil', "[core]\n" + "#" * MAX_CONFIG_BYTES),
    ],
)
def test_what_could_run_or_redirect_something_is_not_harmless(text: str) -> None:
    assert not is_harmless(BY_GIT + text.encode())


@pytest.mark.parametrize("text", ['[submodule "m"] update = merge', "[user] name = A B", '[remote "o"] url = a@b:c/d'])
def test_what_only_keeps_a_repository_is_harmless(text: str) -> None:
    assert is_harmless(BY_GIT + text.encode())
