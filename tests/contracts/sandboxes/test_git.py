"""Git works in the sandbox as it does outside, and nothing of a command reaches its settings unjudged."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contracts.sandboxes.desktop import git, make
from tests.contracts.sandboxes.test_opening import Ada, Desktop

from talaria.core.clock import SystemClock
from talaria.core.ids import SessionId
from talaria.store.base import NewSession, Store
from talaria.store.memory import MemoryStore
from talaria.tools.sandbox import bubblewrap, landlocked

PERSON = """\
[user]
name = Ada
email = ada@example.org
[credential]
helper = store --secret-of-ada
[commit]
gpgsign = true
[alias]
secret = !true
"""


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with MemoryStore(SystemClock()) as opened:
        await opened.sessions.create(NewSession(SessionId("s1"), "terminal"))
        yield opened


@pytest.fixture
async def desktop(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desktop]:
    if (reason := bubblewrap.fault()) is not None:
        pytest.skip(f"commands in bubblewrap: {reason}")
    (tmp_path / "person").mkdir()
    (tmp_path / "person/.gitconfig").write_text(PERSON)
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    made = Desktop(store, await store.owners.join("test"), tmp_path)
    yield made
    await made.close()


async def test_a_subfolder_a_worktree_and_a_submodule_can_be_committed_in(desktop: Desktop, tmp_path: Path) -> None:
    main = make(tmp_path / "main")
    (main / "sub").mkdir()
    make(tmp_path / "library")
    git(main, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "library"), "lib")
    git(main, "commit", "-q", "-m", "lib")
    git(main, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    commit = "git status -s && echo x > new && git add new && git -c commit.gpgsign=false commit -qm new && git log"
    for project in ("main/sub", "side", "main/lib"):
        await desktop.close()
        result = await desktop.run(f"pwd; {commit}", None, project=project)
        assert "new" in git(tmp_path / project, "log", "-1", "--format=%s"), result.text
        assert "Ada <ada@example.org>" in result.text
        assert str(tmp_path / project) in result.text


async def test_a_worktree_that_was_there_before_is_removed_with_a_yes(desktop: Desktop, tmp_path: Path) -> None:
    main = make(tmp_path / "work")
    git(main, "worktree", "add", "-q", "side")
    refused = await desktop.run("git worktree remove side", None)
    assert "cannot be removed or moved here" in refused.text
    assert 'needs: ["unsandboxed"]' in refused.text
    ada = Ada("once")
    await desktop.run("git worktree remove --force side", ada, needs=["unsandboxed"])
    assert len(ada.asked) == 1
    assert git(main, "worktree", "list").count("\n") == 1
    assert "on branch" in (await desktop.run("rm -r side; git branch -d side; git status", None)).text.lower()
    assert not (main / "side").exists()


async def test_settings_are_judged_by_their_names(desktop: Desktop, tmp_path: Path) -> None:
    main = make(tmp_path / "work")
    git(main, "remote", "add", "known", "https://known.example/")
    git(main, "update-ref", "refs/remotes/known/topic", "HEAD")
    result = await desktop.run(
        "git config user.name Bob && git branch -m trunk && git switch -qc topic --track known/topic && "
        "git config core.hooksPath x; git config core.fsmonitor ./x; git config alias.x '!sh'; "
        "git config include.path /x; git config --get-all credential.helper; git config commit.gpgsign",
        None,
    )
    assert "busy" not in result.text
    assert "secret-of-ada" not in result.text
    assert "true" in result.text
    for key in ("core.hookspath", "core.fsmonitor", "alias.x", "include.path"):
        assert f"git: {key} was not saved" in result.text
    listed = git(main, "config", "--local", "--list")
    assert "user.name=Bob" in listed
    assert "branch.topic.remote=known" in listed
    assert not any(word in listed for word in ("hookspath", "fsmonitor", "alias", "include"))


async def test_settings_of_the_person_are_not_changed_and_that_is_told(desktop: Desktop, tmp_path: Path) -> None:
    make(tmp_path / "work")
    result = await desktop.run("git config --global alias.st status && git config --global user.name Zoe; git st", None)
    assert "On branch main" in result.text
    assert "git: alias.st, user.name was set for this session only" in result.text
    assert "session only" not in (await desktop.run("git st", None)).text
    assert (tmp_path / "person/.gitconfig").read_text() == PERSON


async def test_a_new_address_asks(desktop: Desktop, tmp_path: Path) -> None:
    main = make(tmp_path / "work")
    ada = Ada("no", "once")
    refused = await desktop.run("git remote add origin https://evil.example/", ada)
    assert "git: not done: set remote origin" in refused.text
    assert "remote." not in git(main, "config", "--local", "--list")
    await desktop.run("git remote add origin https://good.example/", ada)
    assert ada.asked[1].headline == f"Set remote origin of {main} to https://good.example/?"
    assert git(main, "remote", "get-url", "origin") == "https://good.example/\n"
    nobody = await desktop.run("git remote set-url origin https://evil.example/", None)
    assert "git: not done" in nobody.text
    assert git(main, "remote", "get-url", "origin") == "https://good.example/\n"
    git(main, "config", "user.email", "outside@example.org")
    await desktop.run("git config user.name Bob", None)
    assert "user.email=outside@example.org" in git(main, "config", "--local", "--list")
    assert git(main, "config", "--local", "user.name") == "Bob\n"


async def test_a_new_address_asks_also_where_settings_are_not_mounted(
    desktop: Desktop, store: Store, tmp_path: Path
) -> None:
    if (reason := landlocked.fault()) is not None:
        pytest.skip(f"commands in Landlock: {reason}")
    main = make(tmp_path / "work")
    git(main, "remote", "add", "known", "https://known.example/")
    there = Desktop(store, await store.owners.join("landlock"), tmp_path, "landlock")
    try:
        await there.run("git config user.name Bob; git remote rename known origin", None)
        assert git(main, "remote", "get-url", "origin") == "https://known.example/\n"
        ada = Ada("no", "once")
        for command in (
            "git remote set-url origin https://evil.example/",
            "git remote add other https://good.example/",
        ):
            await there.run(command, ada)
        assert "evil.example" in (ada.asked[0].content or "")
    finally:
        await there.close()
    assert git(main, "remote", "get-url", "origin") == "https://known.example/\n"
    assert git(main, "remote", "get-url", "other") == "https://good.example/\n"


@pytest.mark.parametrize(
    "attack", ["rm $C; ln -s /etc/passwd $C", "rm $C; mkdir $C", "rm $C; mkfifo $C", "truncate -s 1G $C"]
)
async def test_whatever_is_put_in_place_of_the_copy_changes_nothing(
    desktop: Desktop, tmp_path: Path, attack: str
) -> None:
    main = make(tmp_path / "work")
    before = (main / ".git/config").read_bytes()
    result = await desktop.run(attack.replace("$C", "/run/talaria/git-copies/0/config"), None)
    assert "nothing in it was saved" in result.text
    assert (main / ".git/config").read_bytes() == before
    await desktop.run("git config user.name Bob", None)
    assert git(main, "config", "--local", "user.name") == "Bob\n"


async def test_hooks_run_inside(desktop: Desktop, tmp_path: Path) -> None:
    main = make(tmp_path / "work")
    hook = main / ".git/hooks/pre-commit"
    hook.write_text(f"#!/bin/sh\nls {tmp_path}/person > hooked\necho ran >> hooked\n")
    hook.chmod(0o755)
    (tmp_path / "person/note").touch()
    await desktop.run("git -c commit.gpgsign=false commit -q --allow-empty -m x", None)
    seen = (main / "hooked").read_text().split()
    assert seen[-1] == "ran"
    assert "note" not in seen


async def test_what_the_person_changes_after_the_last_command_is_kept(desktop: Desktop, tmp_path: Path) -> None:
    main = make(tmp_path / "work")
    await desktop.run("true", None)
    git(main, "remote", "add", "mine", "https://mine.example/")
    (main / ".envrc").write_text("mine")
    await desktop.close()
    assert git(main, "remote") == "mine\n"
    assert (main / ".envrc").read_text() == "mine"
