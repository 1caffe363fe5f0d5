"""What a call asks for outside the sandbox: the person decides, and exactly that is opened for as long as they say."""

import socket
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from tests.contracts.sandboxes.desktop import Ada, Desktop, until

from talaria.core.questions import Instead
from talaria.store.base import Store
from talaria.tools.base import PRIVATE, Claim
from talaria.tools.sandbox import landlocked


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A folder of the person, beside the project."""
    folder = tmp_path / "person/beside"
    folder.mkdir(parents=True)
    (folder / "theirs").write_text("kept")
    return folder


async def test_writes_outside_the_project_fail_instead_of_being_lost(desktop: Desktop, beside: Path) -> None:
    result = await desktop.run(f"touch ~/foo; touch {beside}/foo; touch /srv/foo; mkdir -p ~/.cache/x; echo end", None)
    assert result.text.count("Read-only file system") + result.text.count("No such file") >= 3
    result = await desktop.run("touch ~/foo", None)
    person = desktop.folder / "person"
    assert "Read-only file system" in result.text
    assert f"[sandbox: writing {person}/foo was probably blocked" in result.text
    assert [*person.iterdir()] == [beside]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("error: failed to create directory `/srv/a/b`: Read-only file system (os error 30)", "/srv/a/b"),
        ("touch: cannot touch \u2018/srv/a\u2019: Read-only file system", "/srv/a"),
        ("OSError: [Errno 30] Read-only file system: '/srv/my file'", "/srv/my file"),
        ("Error: EROFS: read-only file system, open '/srv/a'", "/srv/a"),
        ("/bin/bash: line 2: out/new: Read-only file system", "{beside}/new"),
        ("go: open /srv/a: read-only file system", "/srv/a"),
        ("/bin/bash: line 2: /srv/my file: Read-only file system", "/srv/my file"),
    ],
)
async def test_what_programs_say_is_read(desktop: Desktop, beside: Path, said: str, told: str) -> None:
    (desktop.folder / "work").mkdir()
    (desktop.folder / "work/out").symlink_to(beside)
    (desktop.folder / "work/said").write_text(said)
    result = await desktop.run("cat said; exit 1", None)
    assert f"[sandbox: writing {told.format(beside=beside)} was probably blocked" in result.text


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            'psql: error: connection to server on socket "/var/run/postgresql/.s.PGSQL.5432" failed: No such file',
            "/var/run/postgresql/.s.PGSQL.5432",
        ),
        (
            "ERROR 2002: Can't connect to local server through socket '/run/mysqld/mysqld.sock' (2)",
            "/run/mysqld/mysqld.sock",
        ),
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?", "/var/run/docker.sock"),
        ("dial unix /var/run/docker.sock: connect: no such file or directory", "/var/run/docker.sock"),
        ("Could not connect to Redis at /run/redis/redis.sock: No such file or directory", "/run/redis/redis.sock"),
        ('connection to server on socket "/tmp/.s.PGSQL.5432" failed: No such file', ""),
        ("listening on unix socket /run/app.sock", ""),
        ("websocket /chat failed", ""),
    ],
)
async def test_a_socket_that_programs_name_in_vain_is_told_at_landlock(
    desktop: Desktop, store: Store, said: str, told: str
) -> None:
    """At the strict level it is known without their words: `test_sockets.py`."""
    if (reason := landlocked.fault()) is not None:
        pytest.skip(f"commands in Landlock: {reason}")
    (desktop.folder / "work").mkdir()
    (desktop.folder / "work/said").write_text(said)
    there = Desktop(store, await store.owners.join("landlock"), desktop.folder, "landlock")
    try:
        text = (await there.run("cat said; exit 1", None)).text
    finally:
        await there.close()
    assert (f"[sandbox: the socket {told} was probably blocked;" in text) is bool(told)
    assert ("socket" in text.partition("[exit code 1]")[2]) is bool(told)


@pytest.mark.parametrize(
    ("command", "host"),
    [
        ("ssh -o BatchMode=yes git@code.example.org", "code.example.org was probably"),
        ("curl --noproxy '*' -sS https://code.example.org", "code.example.org was probably"),
        ("git clone git://code.example.org/x", "code.example.org was probably"),
        ("python3 -c \"import socket; socket.create_connection(('db.example.org', 25))\"", "a host was probably"),
        ("exec 3<>/dev/tcp/192.0.2.1/80", "192.0.2.1:80 was"),
        ("echo 'dial tcp: lookup db.example.org: no such host'; exit 1", "db.example.org was probably"),
        ("echo 'java.net.UnknownHostException: repo.maven.apache.org'; exit 1", "repo.maven.apache.org was probably"),
        ("echo 'could not translate host name \"db.example.org\" to address'; exit 1", "db.example.org was probably"),
        ("echo lookup failed: no such key; exit 1", ""),
    ],
)
async def test_a_program_that_connects_without_the_proxy_is_told_why_it_fails(
    desktop: Desktop, command: str, host: str
) -> None:
    text = (await desktop.run(command, None)).text
    assert (f"[sandbox: {host} blocked: only programs that use the proxy" in text) is bool(host)
    assert ("[sandbox:" in text) is bool(host)


async def test_scratch_lasts_from_command_to_command(desktop: Desktop) -> None:
    await desktop.run("echo kept > /tmp/note", None)
    assert "kept" in (await desktop.run("cat /tmp/note", None)).text


async def test_a_folder_is_opened_while_the_shell_goes_on(desktop: Desktop, beside: Path) -> None:
    await desktop.run("export word=kept; echo note > /tmp/note", None)
    ada = Ada("once")
    command = f"echo $word; cat /tmp/note {beside}/theirs; echo new > {beside}/made; touch {beside}/../other"
    result = await desktop.run(command, ada, needs=[f"write {beside}"], reason="the tests want it")
    assert result.text.startswith("kept\nnote\nkept"), result.text
    assert "Read-only file system" in result.text  # what is around it stays closed
    assert (beside / "made").read_text() == "new\n"
    assert not (beside.parent / "other").exists()
    (question,) = ada.asked
    assert question.headline == f"Let commands read, change and delete everything in {beside}?"
    assert (question.title, question.model_words) == ("Open a folder?", 'The model says: "the tests want it"')
    after = await desktop.run(f"cat {beside}/theirs; touch {beside}/again; echo $word", None)
    assert "again" not in {file.name for file in beside.iterdir()}, "once is for one command"
    assert after.text.count("kept") == 1


async def test_a_yes_for_longer_holds_without_being_asked_for(desktop: Desktop, beside: Path, store: Store) -> None:
    ada = Ada("project")
    await desktop.run("true", ada, needs=[f"write {beside}"])
    await desktop.run(f"touch {beside}/a", None)
    await desktop.run(f"touch {beside}/b", None, session="s2")
    await desktop.run(f"touch {beside}/c", None, project="other", session="s1x")
    assert {file.name for file in beside.iterdir()} == {"theirs", "a", "b"}
    (grant,) = await store.grants.list()
    assert grant.what == f"write {beside}"
    await store.grants.revoke(grant.id)
    await desktop.run(f"touch {beside}/d", None)
    assert not (beside / "d").exists()


async def test_what_other_programs_obey_stays_guarded_in_an_opened_folder(desktop: Desktop, beside: Path) -> None:
    for name in ("hooks", "objects", "refs"):
        (beside / ".git" / name).mkdir(parents=True)
    (beside / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (beside / ".git/config").write_text("[core]\n")
    command = f"cd {beside}; echo x > new; echo x >> .git/config; echo x > .git/hooks/pre-commit; mv .git old"
    await desktop.run(command, Ada("session"), needs=[f"write {beside}"])
    assert (beside / "new").exists()
    assert (beside / ".git/config").read_text() == "[core]\n"
    assert not (beside / ".git/hooks/pre-commit").exists()


@pytest.mark.parametrize(
    ("need", "sentence"),
    [
        ("write {person}/nothing", "does not exist"),
        ("write {person}/nothing/at/all/", "does not exist"),
        ("write {person}/.aws/", "holds too much"),
        ("write {person}/link/", "is a link"),
        ("write ../person", "leads upwards"),
        ("write {person}/link", "is a link"),
        ("write {person}", "holds too much"),
        ("write /", "holds too much"),
        ("write /etc/ssl", "holds too much"),
        ("write {person}/.ssh", "holds too much"),
        ("network *.example.org", "stands for many hosts"),
        ("network localhost", "is this machine itself"),
        ("network a b", "is not the name of a host"),
        ("port 0", "is not a port"),
        ("port http", "is not a port"),
        ("publish 70000", "is not a port"),
        ("unsandboxed please", "cannot be asked for"),
        ("everything", "cannot be asked for"),
        ("", "cannot be asked for"),
    ],
)
async def test_what_cannot_be_asked_for_is_told_in_one_sentence(
    desktop: Desktop, beside: Path, need: str, sentence: str
) -> None:
    person = beside.parent
    (person / "link").symlink_to(beside)
    (person / ".ssh").mkdir()
    result = await desktop.run("true", Ada(), needs=[need.format(person=person)])
    assert result.is_error
    assert sentence in result.text
    assert result.text.count("\n") == 0


async def test_a_folder_that_is_missing_is_made_with_the_same_yes(desktop: Desktop, beside: Path) -> None:
    new = beside.parent / "new"
    for command in (f"mkdir {new}", f"git init {new}", f"mkdir -p {new}/a/b"):
        assert f'needs: ["write {new}/"]' in (await desktop.run(command, None)).text
    (beside / "work").mkdir()
    blocked = await desktop.run("touch ../x", None, project="person/beside/work", session="s2")
    assert f'needs: ["write {beside}"]' in blocked.text
    assert "write in the project or /tmp instead]" in (await desktop.run("touch ~/x", None)).text, (
        "all of a home is too much"
    )
    refused = await desktop.run(f"touch {new}/x", Ada("no"), needs=[f"write {new}/"])
    assert refused.is_error
    assert not new.exists()
    ada = Ada("session")
    await desktop.run(f"touch {new}/x", ada, needs=[f"write {new}/"])
    assert ada.asked[0].headline == f"Let commands make the folder {new}, and read, change and delete everything in it?"
    await desktop.run(f"touch {new}/y; touch {beside.parent}/other", None)
    assert sorted(file.name for file in new.iterdir()) == ["x", "y"]
    assert not (beside.parent / "other").exists()


async def test_a_no_says_what_to_do_instead(desktop: Desktop, beside: Path) -> None:
    ada = Ada(Instead("write it to build/"))
    result = await desktop.run(f"touch {beside}/x", ada, needs=[f"write {beside}"])
    assert result.is_error
    assert "Do this instead: write it to build/" in result.text
    assert not (beside / "x").exists()


async def test_a_service_of_the_machine_is_reached_by_port(desktop: Desktop, port: int) -> None:
    fetch = f"curl -sS --noproxy '*' --max-time 5 http://127.0.0.1:{port}/"
    blocked = await desktop.run(fetch, None)
    assert "reached" not in blocked.text
    assert f"[sandbox: port {port} of this machine was blocked" in blocked.text
    ada = Ada("session")
    assert "reached" in (await desktop.run(fetch, ada, needs=[f"port {port}"])).text
    assert ada.asked[0].headline == f"Let commands connect to whatever listens on port {port} of this machine?"
    assert "reached" in (await desktop.run(f"{fetch}; {fetch}", None)).text
    with socket.create_server(("127.0.0.1", 0)) as other:
        number = other.getsockname()[1]
        assert (
            "reached" not in (await desktop.run(f"curl -sS --noproxy '*' -m 5 http://127.0.0.1:{number}/", None)).text
        )


async def test_a_server_inside_is_published_with_one_yes_and_not_in_a_chat(desktop: Desktop) -> None:
    serve = "echo inside > index.html; exec python3 -m http.server 8123 --bind 127.0.0.1"
    ada = Ada("once")
    result = await desktop.run(serve, ada, needs=["publish 8123"], background=True)
    link = result.text.partition("port 8123 is served at ")[2].partition(" ")[0]
    assert link.startswith("http://127.0.0.1:")
    assert ada.asked[0].headline == "Let commands be reached from this machine on port 8123?"

    def is_reached() -> bool:
        with suppress(OSError), urllib.request.urlopen(link, timeout=5) as answer:
            assert answer.read() == b"inside\n"
            return True
        return False

    await until(is_reached)
    refused = await desktop.run("true", Ada("once"), needs=["publish 8123"], asker="telegram:1", session="s2")
    assert "not in a chat" in refused.text


async def test_a_command_leaves_the_sandbox_by_its_own_words(desktop: Desktop, beside: Path, store: Store) -> None:
    ada = Ada("once")
    result = await desktop.run(f"cat {beside}/theirs", ada, needs=["unsandboxed"], reason="it must")
    assert result.text.startswith("kept")
    (question,) = ada.asked
    assert question.headline == "Run this command outside the sandbox, with your rights: your files, keys and network?"
    assert question.content == f"cat {beside}/theirs"
    assert question.offered == ("no", "once"), "`cat` and a path are not a program and its subcommand"
    assert not await store.grants.list()


async def test_a_yes_to_commands_that_begin_so_covers_just_those(desktop: Desktop, beside: Path, store: Store) -> None:
    await desktop.run(f"git init {beside}/repo", Ada("project"), needs=["unsandboxed"])
    (grant,) = await store.grants.list()
    assert grant.what == "unsandboxed git init"
    assert not (await desktop.run(f"git init {beside}/second", None, needs=["unsandboxed"])).is_error
    assert (beside / "second/.git").is_dir()
    for other in (f"git clone {beside}/repo x", f"git init {beside}/x; true", f"git -C {beside} init y"):
        assert (await desktop.run(other, None, needs=["unsandboxed"])).is_error


async def test_nothing_that_sandboxed_commands_left_takes_part_outside(
    desktop: Desktop, beside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = desktop.folder / "work"
    monkeypatch.setenv("PATH", f"{project}/bin:/usr/bin:/bin")
    caught = f"touch {beside}/caught"
    plant = f"mkdir bin; printf '#!/bin/sh\\n{caught}' > bin/git; chmod +x bin/git; git() {{ {caught}; }}"
    await desktop.run(f"{plant}; alias git='{caught}'; export BASH_ENV=$PWD/bin/git", None)
    control = await desktop.run("git init sub", None)
    assert "caught" in control.text, "inside, the planted program is the one that runs"
    await desktop.run(f"git init {beside}/repo", Ada("once"), needs=["unsandboxed"])
    assert (beside / "repo/.git").is_dir()
    assert not (beside / "caught").exists()


@pytest.mark.parametrize("heard", [PRIVATE, Claim(is_untrusted=True)])
@pytest.mark.parametrize("need", ["network example.org", "write {beside}", "port 5432", "unsandboxed"])
async def test_after_strangers_or_private_data_only_once_is_offered(
    desktop: Desktop, beside: Path, need: str, heard: Claim
) -> None:
    ada = Ada("no")
    await desktop.run("git push origin", ada, needs=[need.format(beside=beside)], heard=heard)
    assert ada.asked[0].offered == ("no", "once")


async def test_with_nobody_there_the_answer_is_no(desktop: Desktop, beside: Path) -> None:
    for need in (f"write {beside}", "port 5432", "unsandboxed", "publish 8000", "network example.org"):
        assert (await desktop.run("true", None, needs=[need])).is_error


async def test_a_grant_for_what_has_gone_is_not_in_the_way(desktop: Desktop, beside: Path, tmp_path: Path) -> None:
    await desktop.run("true", Ada("session"), needs=[f"write {beside}"])
    beside.rename(tmp_path / "person/moved")
    assert "still" in (await desktop.run("echo still", None)).text
    beside.symlink_to(tmp_path / "person/moved")
    await desktop.run(f"touch {beside}/x", None)
    assert not (tmp_path / "person/moved/x").exists()


async def test_landlock_says_what_it_cannot_do(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if (reason := landlocked.fault()) is not None:
        pytest.skip(f"commands in Landlock: {reason}")
    (tmp_path / "person/beside").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    beside = tmp_path / "person/beside"
    desktop = Desktop(store, await store.owners.join("test"), tmp_path, "landlock")
    try:
        pool = "python3 -c 'import multiprocessing as m; m.Pool(2)'"
        assert "semaphores and shared memory" in (await desktop.run(pool, None)).text
        fetch = "python3 -c 'import urllib.request as u; u.urlopen(\"http://pypi.org\")'"
        assert "there is no network at the landlock level" in (await desktop.run(fetch, None)).text
        for need in ("network pypi.org", "  network pypi.org", "port 5432", "publish 8000"):
            assert "bubblewrap" in (await desktop.run("true", Ada(), needs=[need])).text
        for fetch in ("connect(1, '127.0.0.1')", "createServer().listen(0)"):
            refused = (await desktop.run(f"node -e \"require('net').{fetch}\"", None)).text
            assert "there is no network at the landlock level" in refused or "node: command not found" in refused
        refused = (await desktop.run("echo lost > ~/note", None)).text
        assert "write in the project or $TMPDIR instead" in refused
        assert "needs:" not in refused, "nobody can open the home of a session"
        refused = (await desktop.run("git config --global user.name Zoe", None)).text
        assert "was probably blocked; write in the project" in refused, "nobody can open Talaria's own home"
        assert f"writing {beside}/x was probably blocked" in (await desktop.run(f"touch {beside}/x", None)).text
        allowed = await desktop.run(f"touch {beside}/x", Ada("session"), needs=[f"write {beside}"])
        assert (beside / "x").exists()
        assert not allowed.is_error
        await desktop.run(f"touch {beside}/y", None)
        assert (beside / "y").exists()
        venv = "python3 -m venv --without-pip v && v/bin/python -c 'import sys; print(sys.prefix)'"
        assert (await desktop.run(venv, None)).text.startswith(f"{desktop.folder}/work/v\n")
    finally:
        await desktop.close()
