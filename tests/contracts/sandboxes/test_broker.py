"""Commands use the person's logins and keys, and never hold them."""

import shutil
import subprocess
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.contracts.sandboxes.desktop import Ada, Desktop
from tests.contracts.sandboxes.git_server import LOGIN, GitServer, serve_git_repositories
from tests.contracts.sandboxes.test_git import git, make

from talaria.store.base import Store
from talaria.tools.base import Claim
from talaria.tools.person import Answer
from talaria.tools.sandbox import bubblewrap

SECRET = LOGIN.partition(":")[2]


@pytest.fixture
async def desktop(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desktop]:
    if (reason := bubblewrap.fault()) is not None:
        pytest.skip(f"commands in bubblewrap: {reason}")
    (tmp_path / "person").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    monkeypatch.delenv("GIT_SSL_CAINFO", raising=False)
    made = Desktop(store, await store.owners.join("test"), tmp_path)
    yield made
    await made.close()


@pytest.fixture
def server(tmp_path: Path, desktop: Desktop) -> Iterator[GitServer]:
    """With `shop.git`, of which the project is a clone; the person's git has the login."""
    folder = tmp_path / "server"
    folder.mkdir()
    subprocess.run(("git", "init", "-q", "--bare", "-b", "main", str(folder / "shop.git")), check=True)
    subprocess.run(("git", "init", "-q", "--bare", "-b", "main", str(folder / "other.git")), check=True)
    with serve_git_repositories(folder) as serving:
        person = tmp_path / "person"
        (person / ".gitconfig").write_text(
            f"[user]\nname = Ada\nemail = ada@example.org\n[http]\nsslCAInfo = {serving.certificate}\n"
            f"[credential]\nhelper = store\n"
        )
        (person / ".git-credentials").write_text(f"https://{LOGIN}@{serving.address.removeprefix('https://')}\n")
        work = make(tmp_path / "work")
        git(work, "remote", "add", "origin", f"{serving.address}/shop.git")
        git(work, "push", "-q", "origin", "main")
        serving.requests.clear()
        yield serving


def heads(server: GitServer, name: str = "shop.git") -> str:
    return git(server.folder / name, "for-each-ref", "--format=%(refname:short) %(subject)")


async def test_a_push_asks_with_what_it_would_do_and_the_login_stays_outside(
    desktop: Desktop, server: GitServer
) -> None:
    ada = Ada("once")
    seen = "; env; cat ~/.git-credentials ~/.gitconfig; git config --list"
    result = await desktop.run(f"echo two > file; git commit -qam two; git push -q origin main{seen}", ada)
    assert heads(server) == "main two\n", result.text
    (question,) = ada.asked
    assert question.headline == f"Let commands push main at {server.address}/shop.git with your login?"
    assert question.content is not None
    assert f"to {server.address}/shop.git" in question.content
    assert question.content.rstrip().endswith("two")
    assert SECRET not in result.text
    assert b64encode(LOGIN.encode()).decode() not in result.text


async def test_a_no_pushes_nothing_and_says_so(desktop: Desktop, server: GitServer) -> None:
    push = "echo two > file; git commit -qam two; git push -q origin main"
    result = await desktop.run(push, Ada("no"))
    assert heads(server) == "main one\n"
    assert "The person does not want commands to push main at" in result.text
    nobody = await desktop.run("git push -q origin main", None)
    assert heads(server) == "main one\n"
    assert "[sandbox: " in nobody.text


async def test_a_lasting_yes_is_for_one_branch_and_for_nothing_that_loses_commits(
    desktop: Desktop, server: GitServer
) -> None:
    ada = Ada("project", "no", "no", "no")
    await desktop.run("echo two > file; git commit -qam two; git push -q origin main", ada)
    await desktop.run("echo three > file; git commit -qam three; git push -q origin main", ada, session="s2")
    assert heads(server) == "main three\n"
    assert len(ada.asked) == 1
    await desktop.run("git push -q origin main:release", ada)
    await desktop.run(
        "git reset -q --hard HEAD~1; echo x > x; git add .; git commit -qm x; git push -qf origin main", ada
    )
    await desktop.run("git push -q origin :main", ada)
    assert heads(server) == "main three\n"
    release, forced, deleted = ada.asked[1:]
    assert "push release at" in release.headline
    assert "replace main (forced)" in forced.headline
    assert "delete main" in deleted.headline
    assert forced.offered == deleted.offered == ("no", "once")


async def test_a_repository_that_lies_about_its_history_makes_no_push_look_harmless(
    desktop: Desktop, server: GitServer
) -> None:
    """Control: `git merge-base` in there believes the replacement."""
    work = desktop.folder / "work"
    git(work, "checkout", "-q", "--orphan", "other")
    git(work, "commit", "-qm", "unrelated")
    new, old = git(work, "rev-parse", "other").strip(), git(work, "rev-parse", "origin/main").strip()
    child = git(work, "commit-tree", f"{new}^{{tree}}", "-p", old, "-m", "child").strip()
    git(work, "replace", new, child)
    assert git(work, "merge-base", old, new).strip() == old
    ada = Ada("no")
    await desktop.run("git push -qf origin other:main", ada)
    assert "replace main (forced)" in ada.asked[0].headline


async def test_fetching_asks_once_and_brings_what_is_new(desktop: Desktop, server: GitServer, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    git(tmp_path, "clone", "-q", f"{server.address}/shop.git", str(other))
    (other / "file").write_text("new")
    git(other, "commit", "-qam", "from elsewhere")
    git(other, "push", "-q")
    ada = Ada("session")
    for _ in range(2):
        result = await desktop.run("git fetch -q && git log -1 --format=%s origin/main", ada)
        assert "from elsewhere" in result.text
    assert [one.headline for one in ada.asked] == [
        f"Let commands fetch from {server.address}/shop.git with your login?"
    ]


async def test_no_other_repository_of_the_host_gets_the_login(desktop: Desktop, server: GitServer) -> None:
    git(desktop.folder / "work", "push", "-q", f"{server.address}/other.git", "main")
    server.requests.clear()
    ada = Ada("once")
    result = await desktop.run(f"git clone -q {server.address}/other.git inside", ada)
    assert not (desktop.folder / "work/inside/file").exists(), result.text
    assert [one.headline for one in ada.asked] == ["Let commands reach 127.0.0.2 over the network?"]
    assert {given for _, _, given in server.requests} == {None}


TRICKS = [
    "/shop.git/../other.git/info/refs?service=git-upload-pack",
    "/shop.git/%2e%2e/other.git/info/refs?service=git-upload-pack",
    "/shop.git/info/refs?service=git-upload-pack&x=1",
    "/shop.git/info/refs?service=git-receive-pack&service=git-upload-pack",
    "//shop.git/info/refs?service=git-upload-pack",
    "/shop.git/objects/info/packs",
    "/shop.git/git-upload-pack/../../other.git/git-upload-pack",
    "/other.git/info/refs?service=git-receive-pack",
    "/shop.git/git-receive-pack?x",
]


async def test_no_request_but_those_of_git_gets_the_login(desktop: Desktop, server: GitServer) -> None:
    proxy = '--proxy "http://git:talaria@${TALARIA_PROXY#http://}" --noproxy "" --path-as-is -k -s'
    fetches = "; ".join(f"curl {proxy} '{server.address}{trick}'" for trick in TRICKS)
    host = f"curl {proxy} -H 'Host: evil.example' -H 'Authorization: Basic x' '{server.address}/shop.git/HEAD'"
    await desktop.run(f"{fetches}; {host}", Ada("once"))
    assert len(server.requests) >= len(TRICKS)
    assert {given for _, _, given in server.requests} == {None}


async def test_after_strangers_had_a_word_a_yes_to_a_push_does_not_last(desktop: Desktop, server: GitServer) -> None:
    ada = Ada("once")
    push = "echo two > file; git commit -qam two; git push -q origin main"
    await desktop.run(push, ada, heard=Claim(is_untrusted=True))
    assert ada.asked[0].offered == ("no", "once")
    assert "content from strangers" in ada.asked[0].reason


async def test_a_login_that_is_not_taken_is_told(desktop: Desktop, server: GitServer, tmp_path: Path) -> None:
    (tmp_path / "person/.git-credentials").write_text(f"https://ada:old@{server.address.removeprefix('https://')}\n")
    result = await desktop.run("git fetch -q", Ada("once"))
    assert "the server did not take the login" in result.text


async def test_a_large_push_goes_through_in_pieces(desktop: Desktop, server: GitServer) -> None:
    grow = "head -c 3000000 /dev/urandom > blob; git add .; git commit -qm large; git push -q origin main"
    result = await desktop.run(grow, Ada("once"))
    assert heads(server) == "main large\n", result.text
