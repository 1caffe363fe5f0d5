"""Commands use the person's logins and keys, and never hold them."""

import asyncio
import os
import re
import signal
import subprocess
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.contracts.sandboxes.desktop import Ada, Desktop, git, make
from tests.contracts.sandboxes.git_server import LOGIN, GitServer
from tests.contracts.sandboxes.github_server import TOKEN, GitHubServer

from talaria.core.questions import Answer, Instead, Question
from talaria.testing.patience import PATIENCE_S
from talaria.tools.base import Claim

SECRET = LOGIN.partition(":")[2]


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
    assert question.headline == f"Let commands push main to {server.address}/shop.git with your login?"
    assert question.content is not None
    assert f"to {server.address}/shop.git" in question.content
    assert question.content.rstrip().endswith("two")
    assert SECRET not in result.text
    assert b64encode(LOGIN.encode()).decode() not in result.text


async def test_a_no_pushes_nothing_and_says_so(desktop: Desktop, server: GitServer) -> None:
    push = "echo two > file; git commit -qam two; git push -q origin main"
    result = await desktop.run(push, Ada("no"))
    assert heads(server) == "main one\n"
    assert "The person does not want commands to push main to" in result.text
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
    assert "push release to" in release.headline
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
    assert [one.headline for one in ada.asked] == ["Let commands reach 127.0.0.2?"]
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
    assert "the server did not accept the login" in result.text


async def test_a_helper_that_leaves_a_process_behind_gives_its_login_at_once(
    desktop: Desktop, server: GitServer, tmp_path: Path
) -> None:
    user, _, password = LOGIN.partition(":")
    helper = tmp_path / "person/helper"
    helper.write_text(
        f"#!/bin/sh\n[ $1 = get ] || exit 0\nsleep 600 >/dev/null & echo $! > {helper}.pid\n"
        f"echo username={user}; echo password={password}\n"
    )
    helper.chmod(0o700)
    git(desktop.folder, "config", "--global", "credential.helper", str(helper))
    try:
        result = await desktop.run("git fetch -q origin", Ada("once"))
        assert "[exit code 0]" in result.text
        assert "has no login" not in result.text
    finally:
        os.kill(int(Path(f"{helper}.pid").read_text()), signal.SIGKILL)


async def test_a_large_push_goes_through_in_pieces(desktop: Desktop, server: GitServer) -> None:
    grow = "head -c 3000000 /dev/urandom > blob; git add .; git commit -qm large; git push -q origin main"
    result = await desktop.run(grow, Ada("once"))
    assert heads(server) == "main large\n", result.text


async def test_push_and_fetch_by_ssh_run_outside_and_the_key_stays_there(
    desktop: Desktop, server: GitServer, by_ssh: str
) -> None:
    ada = Ada("once", "no", "once")
    two = "echo two > file; git commit -qam two; git push -q origin main"
    result = await desktop.run(f"{two}; env; ls -la ~/.ssh /tmp; echo [$SSH_AUTH_SOCK]", ada)
    assert heads(server) == "main two\n", result.text
    assert "[]" in result.text
    assert ada.asked[0].headline == f"Let commands push main to {by_ssh} with your login?"
    await desktop.run("echo three > file; git commit -qam three; git push -q origin main", ada)
    assert heads(server) == "main two\n"
    git(desktop.folder / "work", "update-ref", "-d", "refs/remotes/origin/main")
    fetched = await desktop.run("git fetch -q && git log -1 --format=fetched-%s origin/main", ada)
    assert "fetched-two" in fetched.text
    assert ada.asked[2].headline == f"Let commands fetch from {by_ssh} with your login?"


async def test_ssh_runs_for_remotes_of_the_repository_alone(
    desktop: Desktop, server: GitServer, by_ssh: str, tmp_path: Path
) -> None:
    to, _, path = by_ssh.removeprefix("ssh://").partition("/")
    user, _, port = to.partition(":")
    mark = tmp_path / "ran"
    program = "/run/talaria/git/programs/ssh"
    attempts = [
        f"{program} -p {port} {user} 'touch {mark}'",
        f"{program} -p {port} {user} \"git-receive-pack '/{path}'; touch {mark}\"",
        f"{program} -o ProxyCommand='touch {mark}' -p {port} {user} \"git-receive-pack '/{path}'\"",
        f"{program} -p {port} -oProxyCommand=x {user} \"git-upload-pack '/{path}'\"",
        f"git ls-remote ssh://{user}:{port}/{path.replace('shop', 'other')}",
        f"git ls-remote ssh://elsewhere.example/{path}",
    ]
    ada = Ada()
    for attempt in attempts:
        result = await desktop.run(attempt, ada)
        assert "talaria: " in result.text, attempt
    assert not mark.exists()
    assert not ada.asked


def set_up_gpg(person: Path, gpg_home: Path) -> None:
    (person / "gpg").write_text(f'#!/bin/sh\nexec gpg --homedir {gpg_home} "$@"\n')
    (person / "gpg").chmod(0o755)
    (person / ".gitconfig").write_text(
        f"[user]\nname = Ada\nemail = ada@example.org\n[commit]\ngpgsign = true\n[gpg]\nprogram = {person}/gpg\n"
    )


def set_up_ssh(person: Path, _: Path) -> None:
    key = person / "key"
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key), check=True)
    (person / "signers").write_text(f"ada@example.org {key.with_suffix('.pub').read_text()}")
    (person / ".gitconfig").write_text(
        f"[user]\nname = Ada\nemail = ada@example.org\nsigningkey = {key}.pub\n[commit]\ngpgsign = true\n"
        f'[gpg]\nformat = ssh\n[gpg "ssh"]\nallowedSignersFile = {person}/signers\n'
    )


@pytest.mark.parametrize("set_up", [set_up_gpg, set_up_ssh])
async def test_commits_are_signed_outside_as_they_were_shown(
    desktop: Desktop, tmp_path: Path, gpg_home: Path, set_up: Callable[[Path, Path], None]
) -> None:
    set_up(tmp_path / "person", gpg_home)
    work = make(tmp_path / "work")
    ada = Ada("once", "no")
    result = await desktop.run("echo two > file; git commit -qam 'Sell more'; ls -A ~ /tmp", ada)
    assert not result.is_error, result.text
    verify = ("git", "-C", work, "verify-commit", "HEAD")
    assert "Good" in subprocess.run(verify, capture_output=True, text=True, check=True).stderr
    (question,) = ada.asked
    assert "sign commits and tags with your key" in question.headline
    assert question.content is not None
    unsigned = git(work, "cat-file", "commit", "HEAD")
    signature = re.compile(r"^gpgsig .*?^ -----END [A-Z ]+-----\n(?: \n)?", re.DOTALL | re.MULTILINE)
    assert question.content == signature.sub("", unsigned)
    refused = await desktop.run("echo three > file; git commit -qam three", ada)
    assert "The person does not want commands to sign" in refused.text
    assert git(work, "log", "-1", "--format=%s").strip() == "Sell more"


async def test_nothing_but_commits_is_signed(desktop: Desktop, tmp_path: Path, gpg_home: Path) -> None:
    set_up_gpg(tmp_path / "person", gpg_home)
    work = make(tmp_path / "work")
    tree = git(work, "rev-parse", "HEAD^{tree}").strip()
    hidden = f"tree {tree}\\nauthor a <a> 1 +0000\\ncommitter a <a> 1 +0000\\n\\nshown\\0hidden"
    for text in ("I owe Mallory everything", f"tree {tree}\\n\\nno author", hidden, ""):
        result = await desktop.run(f"printf '{text}' | /run/talaria/git/programs/sign -bsau x", Ada())
        assert "Only commits and tags can be signed" in result.text


async def test_gh_speaks_of_the_repository_with_a_login_that_stays_outside(
    desktop: Desktop, github: GitHubServer
) -> None:
    ada = Ada("session", "once")
    listed = await desktop.run("gh pr list; env; gh pr list --limit 1", ada)
    assert listed.text.count("Sell more") == 2
    assert TOKEN not in listed.text
    assert ada.asked[0].headline == (
        f"Let commands read issues, pull requests and runs of {github.host}/o/shop with gh and your login?"
    )
    await desktop.run("echo 'It sells *more*.' > body; gh pr create --title 'New' --body-file body", ada)
    (created,) = github.created
    assert (created["title"], created["body"], created["headRefName"]) == ("New", "It sells *more*.\n", "topic")
    assert f"run `gh pr create` on {github.host}/o/shop" in ada.asked[1].headline
    assert "It sells *more*." in (ada.asked[1].content or "")
    assert github.credentials == {f"token {TOKEN}"}
    for words in (
        "pr list --repo o/other",
        "api user",
        "auth token",
        "repo clone x",
        "pr view https://x/o/r/pull/1",
    ):
        refused = await desktop.run(f"gh {words}", ada)
        assert "talaria: " in refused.text, words


async def test_a_question_ends_with_the_command_that_wanted_it(desktop: Desktop, server: GitServer) -> None:
    class Slow(Ada):
        async def allow(self, question: Question) -> Answer | Instead:
            self.asked.append(question)
            (desktop.folder / "work/asked").touch()
            try:
                await asyncio.Event().wait()
            finally:
                self.has_ended.set()
            raise AssertionError

        has_ended = asyncio.Event()

    slow = Slow()
    wait = "until [ -e asked ]; do sleep 0.05; done; kill $!"
    push = f"git commit -q --allow-empty -m two; git push -q origin main & {wait}"
    result = await desktop.run(push, slow)
    await asyncio.wait_for(slow.has_ended.wait(), PATIENCE_S)
    assert len(slow.asked) == 1, result.text
    assert heads(server) == "main one\n"


async def test_a_key_that_cannot_sign_is_told(desktop: Desktop, tmp_path: Path) -> None:
    person = tmp_path / "person"
    (person / ".gitconfig").write_text(
        "[user]\nname = Ada\nemail = ada@example.org\nsigningkey = /nowhere/key\n[gpg]\nformat = ssh\n"
        "[commit]\ngpgsign = true\n"
    )
    make(tmp_path / "work")
    result = await desktop.run("git commit -q --allow-empty -m two", Ada("once"))
    assert "[sandbox: signing was blocked: ssh-keygen could not sign with /nowhere/key" in result.text
