"""Hostile commands get no more of the person's logins and keys than the person was shown."""

import asyncio
import shlex
import subprocess
from base64 import b64encode
from pathlib import Path

import pytest
from tests.contracts.sandboxes.desktop import Ada, Desktop, git, until
from tests.contracts.sandboxes.git_server import LOGIN, GitServer
from tests.contracts.sandboxes.github_server import TOKEN, GitHubServer

from talaria.core.questions import Answer, Instead, Question
from talaria.store.base import Store
from talaria.testing.patience import PATIENCE_S

PROXY = '--proxy "http://git:talaria@${TALARIA_PROXY#http://}" --noproxy "" --path-as-is -k -s'
BROKER = """
import json, os, socket, struct, sys
from urllib.parse import urlsplit
proxy = urlsplit(os.environ["TALARIA_PROXY"])
HOST = "broker.talaria.internal:1"
def ask(request):
    connection = socket.create_connection((proxy.hostname, proxy.port))
    connection.sendall(f"CONNECT {HOST} HTTP/1.1\\r\\nHost: {HOST}\\r\\n\\r\\n".encode())
    answer = b""
    while not answer.endswith(b"\\r\\n\\r\\n"):
        answer += connection.recv(1)
    body = json.dumps(request).encode()
    connection.sendall(struct.pack(">I", len(body)) + body)
    return connection
"""


def heads(server: GitServer) -> list[str]:
    return git(server.folder / "shop.git", "for-each-ref", "--format=%(refname:short) %(subject)").splitlines()


def python(program: str) -> str:
    return f"python3 -c {shlex.quote(BROKER + program)}"


def packet(line: str) -> str:
    return f"{len(line.encode()) + 4:04x}{line}"


async def test_no_login_is_used_where_nobody_could_allow_anything(desktop: Desktop, server: GitServer) -> None:
    """Control: with somebody there the refs are listed, and the push is asked about."""
    push = "git commit -q --allow-empty -m two; git push -q origin main"
    guest = Ada()
    guest.is_admin = False
    for person in (None, guest):
        result = await desktop.run(push, person)
        assert "nobody is here to allow it" in result.text
    assert {given for _, _, given in server.requests} <= {None}
    await desktop.run(push, Ada("once"))
    assert heads(server) == ["main two"]


async def test_processes_in_the_background_use_only_what_lasts(desktop: Desktop, server: GitServer) -> None:
    push = "git commit -q --allow-empty -m {0}; git push -q origin main; echo > {0}"
    work = desktop.folder / "work"
    ada = Ada("project")
    await desktop.run(push.format("unasked"), ada, background=True)
    await until((work / "unasked").exists)
    assert (heads(server), ada.asked) == (["main one"], [])
    await desktop.run("git push -q origin main", ada)
    await desktop.run(push.format("granted"), ada, background=True)
    await until((work / "granted").exists)
    assert heads(server) == ["main granted"]
    assert len(ada.asked) == 1


async def test_options_for_the_server_are_not_pushed_along(desktop: Desktop, server: GitServer) -> None:
    git(server.folder / "shop.git", "config", "receive.advertisePushOptions", "true")
    result = await desktop.run(
        "git commit -q --allow-empty -m two; git push -o merge_request.merge -q origin main", Ada()
    )
    assert "refused: options for the server" in result.text
    assert heads(server) == ["main one"]


@pytest.mark.parametrize("way", ["https", "ssh"])
async def test_what_follows_a_push_that_names_nothing_is_not_passed_on(
    desktop: Desktop, server: GitServer, by_ssh: str, way: str
) -> None:
    work = desktop.folder / "work"
    new = git(work, "commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "hidden").strip()
    old = git(work, "rev-parse", "HEAD").strip()
    body = "0000" + packet(f"{old} {new} refs/heads/main\0 report-status") + "0000"
    if way == "https":
        git(work, "remote", "set-url", "origin", f"{server.address}/shop.git")
        sent = f"curl {PROXY} --data-binary @body '{server.address}/shop.git/git-receive-pack'"
    else:
        to, _, path = by_ssh.removeprefix("ssh://").partition("/")
        user, _, port = to.partition(":")
        sent = f"/run/talaria/git/programs/ssh -p {port} {user} \"git-receive-pack '/{path}'\" < body"
    (work / "body").write_bytes(body.encode())
    result = await desktop.run(sent, Ada())
    assert "it names no ref, yet sends more" in result.text
    assert heads(server) == ["main one"]


async def test_the_length_of_a_request_is_told_in_one_way(desktop: Desktop, server: GitServer) -> None:
    """A server that counts otherwise than we do would read another push."""
    head = "-H 'Transfer-Encoding: chunked' -H 'Content-Length: 4' -H 'Content-Type: x'"
    sent = f"curl {PROXY} -X POST {head} --data-binary 0000 {server.address}/shop.git/git-receive-pack"
    await desktop.run(sent, Ada())
    assert [target for _, target, _ in server.requests] == ["/shop.git/git-receive-pack"]
    assert not server.ambiguous


async def test_a_host_that_is_listed_is_not_asked_about(desktop: Desktop, server: GitServer, store: Store) -> None:
    listing = Desktop(store, await store.owners.join("test"), desktop.folder, network=("127.0.0.2",))
    try:
        await listing.run(f"git ls-remote {server.address}/other.git", None)
    finally:
        await listing.close()
    assert [given for _, target, given in server.requests if "other" in target] == [None]


async def test_a_login_that_the_person_adds_later_counts(desktop: Desktop, server: GitServer, tmp_path: Path) -> None:
    logins = tmp_path / "person/.git-credentials"
    known = logins.read_text()
    logins.unlink()
    missing = await desktop.run("git ls-remote origin", Ada("session"))
    assert "git has no login for it" in missing.text
    logins.write_text(known)
    assert "refs/heads/main" in (await desktop.run("git ls-remote origin", Ada())).text


@pytest.mark.parametrize("where", ["helper", "linked file"])
async def test_no_program_or_setting_that_commands_can_change_runs_outside(
    desktop: Desktop, server: GitServer, tmp_path: Path, where: str
) -> None:
    """Control: elsewhere the same program runs."""
    person, ran = tmp_path / "person", tmp_path / "ran"
    settings = (person / ".gitconfig").read_text().replace("helper = store\n", "")

    def use(folder: Path) -> None:
        (folder / "helper").write_text("#!/bin/sh\n")
        (folder / "helper").chmod(0o755)
        (person / ".gitconfig").write_text(f"{settings}[credential]\nhelper = !{folder}/helper quietly\n")

    fill = f"printf '#!/bin/sh\\ntouch {ran}\\n' > helper; git ls-remote origin"
    if where == "helper":
        use(tmp_path / "work")
    else:
        (tmp_path / "work/ssh").write_text("")
        (person / ".ssh").mkdir()
        (person / ".ssh/config").symlink_to(tmp_path / "work/ssh")
    result = await desktop.run(fill, Ada("once"))
    assert "which commands can change" in result.text
    assert not ran.exists()
    if where == "helper":
        use(person)
        (person / "helper").write_text(f"#!/bin/sh\ntouch {ran}\n")
        await desktop.run("git ls-remote origin", Ada("once"))
        assert ran.exists()


async def test_commands_do_not_choose_the_key_that_signs(desktop: Desktop, server: GitServer) -> None:
    result = await desktop.run("git config user.signingkey /work/key", Ada())
    assert "user.signingkey was not saved" in result.text


TOKENS = [
    "pr list --json number --jq '$ENV.GH_ENTERPRISE_TOKEN'",
    "pr list --json number --jq 'env|tostring'",
    "pr list --json number --template '{{env}}{{.GH_ENTERPRISE_TOKEN}}'",
]


async def test_gh_tells_neither_its_login_nor_another_repository(desktop: Desktop, github: GitHubServer) -> None:
    listed = "; ".join(f"gh {words}" for words in TOKENS)
    result = await desktop.run(
        f"{listed}; gh pr view https:/o/other/pull/1; gh issue list -S repo:o/other", Ada("once")
    )
    assert TOKEN not in result.text
    assert result.text.count("talaria: ") >= 4


async def test_a_login_of_an_enterprise_goes_to_its_host_alone(
    desktop: Desktop, github: GitHubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GH_HOST", "git.example")
    await desktop.run("gh pr list", Ada("once"))
    assert not any(TOKEN in given for given in github.credentials)


async def test_what_strangers_write_at_a_forge_counts_as_such(desktop: Desktop, github: GitHubServer) -> None:
    ada, gate = Ada("project", "once"), desktop.gate()
    await desktop.run("gh pr list", ada, gate=gate)
    await desktop.run("gh issue comment 1 --body=x", ada, gate=gate)
    assert ada.asked[1].offered == ("no", "once")
    assert "content from strangers" in ada.asked[1].reason


async def test_a_yes_to_one_push_is_none_to_another_with_the_same_beginning(
    desktop: Desktop, server: GitServer
) -> None:
    ada = Ada("once")
    await desktop.run("git commit -q --allow-empty -m two; git push -q origin main", ada)
    new = git(server.folder / "shop.git", "rev-parse", "main").strip()
    assert new in (ada.asked[0].content or "")


async def test_endless_input_and_silent_clients_neither_fill_memory_nor_keep_the_session_open(
    desktop: Desktop, github: GitHubServer
) -> None:
    flood = python(
        "connections = [ask({'kind': 'sign'}) for _ in range(3)]\n"
        "silent = [socket.create_connection((proxy.hostname, proxy.port)) for _ in range(3)]\n"
        "try:\n"
        "    for _ in range(1000): connections[0].sendall(bytes(1 << 16))\n"
        "except OSError:\n"  # nobody takes that much
        "    open('ready', 'w').close()\n"
        "import time; time.sleep(600)\n"
    )
    await desktop.run(flood, Ada(), background=True)
    await until((desktop.folder / "work/ready").exists)
    async with asyncio.timeout(PATIENCE_S):
        await desktop.close()


async def test_nothing_is_left_when_the_session_closes_during_a_question(
    desktop: Desktop, server: GitServer, by_ssh: str
) -> None:
    class Slow(Ada):
        async def allow(self, question: Question) -> Answer | Instead:
            self.asked.append(question)
            await asyncio.Event().wait()
            raise AssertionError

    slow = Slow()
    push = asyncio.create_task(desktop.run("git commit -q --allow-empty -m two; git push -q origin main", slow))
    await until(lambda: bool(slow.asked))

    def ours() -> list[str]:
        listed = subprocess.run(("ps", "-ewwo", "args"), capture_output=True, text=True, check=True).stdout.splitlines()
        return [line for line in listed if "-oBatchMode=yes" in line and str(server.folder) in line]

    assert ours(), "control"
    push.cancel()
    await asyncio.wait([push])
    await desktop.close()
    await until(lambda: not ours())
    assert heads(server) == ["main one"]


async def test_the_login_is_nowhere_in_the_sandbox(desktop: Desktop, server: GitServer) -> None:
    seen = "cat /proc/*/environ /proc/*/cmdline; grep -rs hush-hush /run /tmp ~ . ; GIT_CURL_VERBOSE=1 GIT_TRACE=1 "
    result = await desktop.run(f"{seen} git fetch origin", Ada("once"))
    assert LOGIN not in result.text
    assert b64encode(LOGIN.encode()).decode() not in result.text
