"""Each grant opens exactly what it says, as long as it says, whatever commands try with it."""

import asyncio
import gc
import shlex
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import aclosing, suppress
from pathlib import Path

import msgspec
import pytest
from tests.contracts.sandboxes.conftest import Alone, calling
from tests.contracts.sandboxes.desktop import Ada, Desktop, make, until
from tests.descriptors import count_descriptors, descriptors_fall_to

from talaria.core.clock import SystemClock
from talaria.core.ids import SessionId
from talaria.runtime.sandbox_report import SandboxState, describe_sandbox
from talaria.store.base import Store
from talaria.tools.base import PRIVATE, Scope
from talaria.tools.builtin.terminal import terminal_tools
from talaria.tools.sandbox import landlocked, ports
from talaria.tools.sandbox.sandbox_policy import view_of
from talaria.tools.sandbox.sandbox_settings import Backend, TerminalSettings
from talaria.tools.workspaces import Workspaces


@pytest.fixture
def person(tmp_path: Path) -> Path:
    return tmp_path / "person"


@pytest.fixture
def beside(person: Path, desktop: Desktop) -> Path:
    """A folder of the person, beside the project."""
    assert desktop.folder == person.parent
    folder = person / "beside"
    folder.mkdir()
    return folder


@pytest.fixture
def service() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def repository(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "init", "-q", "-b", "main", folder], check=True)
    return folder


async def revoke(store: Store) -> None:
    for grant in await store.grants.list():
        await store.grants.revoke(grant.id)


async def test_once_is_once_although_something_runs_in_the_background(desktop: Desktop, beside: Path) -> None:
    await desktop.run("sleep 1000", None, background=True)
    await desktop.run(f"touch {beside}/now", Ada("once"), needs=[f"write {beside}"])
    await desktop.run(f"touch {beside}/later", None)
    assert [file.name for file in beside.iterdir()] == ["now"]


async def test_a_process_keeps_what_it_was_given_while_others_run(desktop: Desktop, beside: Path) -> None:
    follow = f"until [ -e go ]; do sleep 0.02; done; touch {beside}/kept; echo wrote"
    await desktop.run(follow, Ada("once"), needs=[f"write {beside}"], background=True)
    await desktop.run("true", None)
    await desktop.run("touch go", None)
    await until((beside / "kept").exists)


async def test_a_folder_is_closed_when_its_grant_is_revoked_also_to_whoever_is_in_it(
    desktop: Desktop, beside: Path, store: Store
) -> None:
    repository(beside)
    await desktop.run("true", Ada("session"), needs=[f"write {beside}"])
    inside = "until [ -e $OLDPWD/go ]; do sleep 0.02; done; touch late .git/hooks/pre-commit; touch $OLDPWD/tried"
    await desktop.run(f"cd {beside}; {inside}", None, background=True)
    await revoke(store)
    assert "Read-only" in (await desktop.run(f"touch {beside}/later || touch {beside.parent}/x; touch go", None)).text
    await until((desktop.folder / "work/tried").exists)
    assert [file.name for file in beside.iterdir()] == [".git"]
    assert not (beside / ".git/hooks/pre-commit").exists()


async def test_a_folder_that_cannot_be_closed_is_told_instead_of_left_open(
    desktop: Desktop, beside: Path, store: Store
) -> None:
    await desktop.run("true", Ada("session"), needs=[f"write {beside}"])
    await desktop.run(f"exec 5> {beside}/held; touch opened; exec sleep 1000", None, background=True)
    await until((desktop.folder / "work/opened").exists)
    await revoke(store)
    refused = await desktop.run(f"touch {beside}/later", None)
    assert refused.is_error
    assert "cannot be opened or closed while commands run in the background" in refused.text
    assert not (beside / "later").exists()


@pytest.mark.parametrize("is_revoked", [True, False], ids=["revoked", "no admin any more"])
async def test_a_host_is_closed_to_what_runs_when_its_grant_does_not_count_any_more(
    desktop: Desktop, store: Store, is_revoked: bool
) -> None:
    fetch = "curl -s -o /dev/null -w '%{http_connect}%{http_code}\\n' --noproxy '' -m 20 http://127.0.0.1:9/"
    ada = Ada("session")
    await desktop.run(fetch, ada)
    wait = f"{fetch} > first; touch waits; until [ -e go ]; do sleep 0.02; done; {fetch} > second; touch tried"
    await desktop.run(wait, ada, background=True)
    work = desktop.folder / "work"
    await until((work / "waits").exists)
    if is_revoked:
        await revoke(store)
    else:
        ada.is_admin = False
    (work / "go").touch()
    await until((work / "tried").exists)
    assert (work / "first").read_text() == "000502\n", "let through to where nobody listens"
    assert (work / "second").read_text() == "000403\n"


async def test_a_port_is_closed_when_its_grant_is_revoked_and_connections_end(
    desktop: Desktop, service: socket.socket, store: Store
) -> None:
    port = service.getsockname()[1]
    await desktop.run("true", Ada("session"), needs=[f"port {port}"])
    hold = f"exec 5<>/dev/tcp/127.0.0.1/{port}; touch connected; cat <&5; touch ended; exec sleep 1000"
    await desktop.run(hold, None, background=True)
    work = desktop.folder / "work"
    await until((work / "connected").exists)
    await revoke(store)
    later = await desktop.run(f"exec 5<>/dev/tcp/127.0.0.1/{port} && echo in", None)
    assert "refused" in later.text
    await until((work / "ended").exists)


@pytest.mark.parametrize("moment", range(12, 60, 6))
async def test_an_interruption_while_something_is_opened_leaves_nothing_open(
    desktop: Desktop, service: socket.socket, person: Path, moment: int
) -> None:
    database = person / "db.sock"
    port = service.getsockname()[1]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(database))
        listener.listen()
        needs = [f"port {port}", f"socket {database}", "publish 8127"]
        await desktop.run("true", None)  # the sandbox has begun, and no port was opened yet
        before = count_descriptors()
        running = asyncio.create_task(desktop.run("sleep 1000", Ada("once", "once", "once"), needs=needs))
        await asyncio.sleep(moment / 1000)  # somewhere in the middle of it
        running.cancel()
        await asyncio.wait([running])
        told = await desktop.run(f"exec 5<>/dev/tcp/127.0.0.1/{port} && echo open", None)
        assert "open" not in told.text.splitlines()
        await descriptors_fall_to(before + 1)  # to the program that opens ports, which lasts
        gc.collect()  # what was forgotten in its place is reported now


async def test_a_port_is_not_opened_by_an_earlier_yes_once_private_data_was_read(
    desktop: Desktop, service: socket.socket
) -> None:
    port = service.getsockname()[1]
    connect = f"exec 5<>/dev/tcp/127.0.0.1/{port} && echo in"
    assert "in\n" in (await desktop.run(connect, Ada("session"), needs=[f"port {port}"])).text
    assert "refused" in (await desktop.run(connect, None, heard=PRIVATE)).text
    ada = Ada("no")
    await desktop.run(connect, ada, heard=PRIVATE, needs=[f"port {port}"])
    assert ada.asked[0].offered == ("no", "once")


async def test_a_server_is_shown_once_on_this_address_and_as_long_as_it_runs(desktop: Desktop) -> None:
    serve = "python3 -m http.server 8124 --bind 127.0.0.1 & until [ -e stop ]; do sleep 0.02; done; kill $!"
    result = await desktop.run(serve, Ada("once"), needs=["publish 8124"], background=True)
    link = result.text.partition("port 8124 is served at ")[2].partition(" ")[0]
    port = int(link.rpartition(":")[2].strip("/"))

    def is_reached(address: str = link) -> bool:
        with suppress(OSError):
            urllib.request.urlopen(address, timeout=5).close()
            return True
        return False

    await until(is_reached)
    for other in ("127.0.0.2", "[::1]"):
        assert not await asyncio.to_thread(is_reached, f"http://{other}:{port}/")
    await desktop.run("true", None)
    assert await asyncio.to_thread(is_reached), "while the process runs"
    await desktop.run("touch stop", None)
    await until(lambda: not desktop.workspaces.has_background(SessionId("s1")))
    await desktop.run("python3 -m http.server 8124 --bind 127.0.0.1 & touch again; wait", None, background=True)
    await until((desktop.folder / "work/again").exists)
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(socket.create_connection, ("127.0.0.1", port), 5)


async def test_leaving_the_sandbox_takes_nothing_else_along(desktop: Desktop) -> None:
    await desktop.run("git status", Ada("session"), needs=["unsandboxed"])
    result = await desktop.run("git status", Ada("no"), needs=["unsandboxed", "publish 8000"])
    assert "needs nothing else" in result.text


async def test_guards_stay_where_a_folder_around_the_project_is_opened_and_closed(
    desktop: Desktop, person: Path, store: Store
) -> None:
    project = repository(person / "around/work")
    await desktop.run("true", None, project="person/around/work")
    tried = "touch ../made; touch .git/hooks/pre-commit; echo x >> .git/config; git config user.name Bob; touch inside"
    opened = await desktop.run(tried, Ada("session"), project="person/around/work", needs=[f"write {person}/around"])
    assert "was moved to" not in opened.text, "not even for a moment"
    assert not (project / ".git/hooks/pre-commit").exists()
    assert (person / "around/made").exists()
    assert "name = Bob" in (project / ".git/config").read_text()
    await revoke(store)
    closed = await desktop.run("touch ../later; touch inside", None, project="person/around/work")
    assert not (person / "around/later").exists()
    assert not closed.is_error
    assert (project / "inside").exists()


@pytest.mark.parametrize("inner", [".git", ".git/hooks"])
async def test_guards_stay_where_a_folder_in_what_is_open_is_asked_for(
    desktop: Desktop, beside: Path, inner: str
) -> None:
    repository(beside)
    work = repository(desktop.folder / "work")
    for place in (beside, work):
        wanted = [f"write {place}", f"write {place}/{inner}"]
        await desktop.run("true", Ada("session", "session"), needs=wanted)
        await desktop.run(f"touch {place}/.git/hooks/pre-commit", None)
        assert not (place / ".git/hooks/pre-commit").exists()


async def test_there_is_no_moment_before_what_is_guarded_in_a_folder_is_guarded(desktop: Desktop, beside: Path) -> None:
    repository(beside)
    plant = f"touch ready; while :; do : > {beside}/.git/hooks/pre-commit; done 2>/dev/null"
    await desktop.run(plant, None, background=True)
    await until((desktop.folder / "work/ready").exists)
    opened = await desktop.run(f"touch {beside}/made", Ada("session"), needs=[f"write {beside}"])
    assert not opened.is_error
    assert (beside / "made").exists()
    assert not (beside / ".git/hooks/pre-commit").exists()


async def test_our_own_code_is_not_opened_by_a_yes(desktop: Desktop) -> None:
    place = Path(msgspec.__file__).parent
    await desktop.run("true", None)
    refused = await desktop.run(f"touch {place}/written", Ada("session"), needs=[f"write {place}"])
    was_written = (place / "written").exists()
    (place / "written").unlink(missing_ok=True)
    assert not was_written
    assert "Read-only" in refused.text


async def test_a_link_in_place_of_an_opened_folder_leads_nowhere(desktop: Desktop, beside: Path, person: Path) -> None:
    """Also if it is put there after the folder was looked at."""
    (person / "private").mkdir()
    (desktop.folder / "work").mkdir()
    beside.rmdir()
    beside.symlink_to(person / "private")
    view = view_of(desktop.folder / "work", desktop.folder / "home", TerminalSettings(), {}, shared=(beside,))
    assert view.writes == ()
    listed = TerminalSettings(write=(str(beside),))
    assert view_of(desktop.folder / "work", desktop.folder / "home", listed, {}).writes == (person / "private",)


@pytest.mark.parametrize("name", ["caf\u00e9 \u4e2d", "two\nlines", 'it\'s "quoted"', "a\\b $HOME `x`", "-rf", " "])
async def test_a_grant_is_for_exactly_the_folder_of_that_name(desktop: Desktop, beside: Path, name: str) -> None:
    folder, other = beside / name, beside / "b"
    for one in (folder, other):
        one.mkdir()
    ada = Ada("project")
    await desktop.run("true", ada, needs=[f"write {beside}/{name}/"])
    assert "\n" not in ada.asked[0].headline
    for place in (folder, other, beside):
        await desktop.run(f"touch {shlex.quote(str(place))}/made", None)
        await desktop.run(f"touch {shlex.quote(str(place))}/too", None, session="s2")
    assert {file.name for file in folder.iterdir()} == {"made", "too"}
    assert {file.name for file in beside.iterdir()} == {name, "b"}
    assert not [*other.iterdir()]


async def test_a_grant_is_of_one_person_one_conversation_and_one_place(desktop: Desktop, beside: Path) -> None:
    await desktop.run("true", Ada("session"), needs=[f"write {beside}"], asker="telegram:1", session="s2")
    await desktop.run(f"touch {beside}/theirs", Ada(), asker="telegram:2", session="s2")
    await desktop.run(f"touch {beside}/other", None, asker="telegram:1", session="s1")
    assert not [*beside.iterdir()]
    await desktop.run(f"touch {beside}/own", None, asker="telegram:1", session="s2")
    assert [file.name for file in beside.iterdir()] == ["own"]


async def test_a_grant_does_not_follow_a_project_that_was_moved_or_replaced_by_a_link(
    desktop: Desktop, beside: Path
) -> None:
    await desktop.run("true", Ada("project"), needs=[f"write {beside}"])
    await desktop.close()
    (desktop.folder / "work").rename(desktop.folder / "moved")
    await desktop.run(f"touch {beside}/moved", None, project="moved")
    await desktop.close()
    (desktop.folder / "elsewhere").mkdir()
    (desktop.folder / "work").symlink_to(desktop.folder / "elsewhere")
    await desktop.run(f"touch {beside}/linked", None, project="work")
    assert not [*beside.iterdir()]


async def test_links_in_an_opened_folder_lead_nowhere(desktop: Desktop, beside: Path, person: Path) -> None:
    (person / "private").mkdir()
    (person / "private/file").write_text("hush")
    plant = f"cd {beside}; ln -s {person}/private out; ln -s ../private/file file; cat out/file file; touch out/new"
    planted = await desktop.run(plant, Ada("session", "session"), needs=[f"write {beside}"])
    assert "hush" not in planted.text
    asked = await desktop.run("true", Ada(), needs=[f"write {beside}/out"])
    assert "is a link" in asked.text
    await desktop.close()
    later = await desktop.run(f"cat {beside}/file; touch {beside}/out/new; touch {beside}/made", None)
    assert "hush" not in later.text
    assert (beside / "made").exists()
    assert [file.name for file in (person / "private").iterdir()] == ["file"]


async def test_a_yes_to_commands_outside_covers_no_hook_that_commands_have_made(
    desktop: Desktop, beside: Path, person: Path
) -> None:
    """In a bare repository, in a folder that was opened, and while something runs that could make one."""
    await desktop.run("git push", Ada("session"), needs=["unsandboxed"])
    caught = person / "caught"
    hook = f"printf '#!/bin/sh\\ntouch {caught}' > hook; chmod +x hook"
    commit = "git init -q; git -c user.name=a -c user.email=a@b -c commit.gpgsign=false commit -q --allow-empty -m x"
    await desktop.run(f"{commit}; git init -q --bare evil; {hook}; cp hook evil/hooks/pre-receive", None)
    push = "git push ./evil HEAD:refs/heads/main"
    assert (await desktop.run(push, None, needs=["unsandboxed"])).is_error
    made = f"cd {beside}; {commit}; {hook}; cp hook .git/hooks/pre-push; git clone -q --bare . x.git"
    await desktop.run(made, Ada("session"), needs=[f"write {beside}"])
    elsewhere = "git push x.git HEAD:refs/heads/main"
    assert (await desktop.run(elsewhere, None, needs=["unsandboxed"], workdir=str(beside))).is_error
    await desktop.run("sleep 1000", None, background=True)
    ada = Ada("no")
    await desktop.run("git push origin", ada, needs=["unsandboxed"])
    assert "commands run in the background, and could change the files" in ada.asked[0].reason
    assert not caught.exists()
    await desktop.run(push, Ada("once"), needs=["unsandboxed"], workdir=str(desktop.folder / "work"))
    assert caught.exists(), "a yes to exactly this is a yes: so the attempt can succeed"


@pytest.mark.parametrize(
    ("plant", "push"),
    [
        ("true", "git push evil HEAD:refs/heads/main"),
        ("true", "git push file://$PWD/evil.git HEAD:refs/heads/main"),
        ("echo URL: $PWD/evil.git > .git/remotes/mine", "git push mine HEAD:refs/heads/main"),
        ("echo $PWD/evil.git > .git/branches/mine", "git push mine HEAD:refs/heads/main"),
        ("true", "git push old HEAD:refs/heads/main"),
    ],
    ids=["without its suffix", "by a URL", "by .git/remotes", "by .git/branches", "by what the person has"],
)
async def test_a_yes_from_before_reaches_no_repository_on_this_machine_by_another_name(
    desktop: Desktop, person: Path, plant: str, push: str
) -> None:
    work = repository(desktop.folder / "work")
    (work / ".git/remotes").mkdir()
    (work / ".git/remotes/old").write_text(f"URL: {work}/evil.git\n")
    await desktop.run("git push", Ada("session"), needs=["unsandboxed"])
    hook = f"printf '#!/bin/sh\\ntouch {person}/caught' > evil.git/hooks/pre-receive; chmod +x evil.git/hooks/*"
    commit = "git -c user.name=a -c user.email=a@b -c commit.gpgsign=false commit -q --allow-empty -m x"
    planted = f"{commit}; git init -q --bare evil.git; {hook}; mkdir -p .git/branches; {plant}"
    assert "[exit code 0]" in (await desktop.run(planted, None)).text
    words = push.replace("$PWD", str(work))
    await desktop.run(words, None, needs=["unsandboxed"])
    assert not (person / "caught").exists()
    await desktop.run("git push ./evil.git HEAD:refs/heads/other", Ada("once"), needs=["unsandboxed"])
    assert (person / "caught").exists(), "a yes to exactly this is a yes: so the attempt can succeed"


async def test_a_rebase_that_commands_have_begun_is_not_continued_outside_by_a_yes_from_before(
    desktop: Desktop, person: Path
) -> None:
    """Its list of steps is a file of theirs, and a step can be any command."""
    make(desktop.folder / "work")
    ada = Ada("once")
    await desktop.run("git rebase main", ada, needs=["unsandboxed"])
    assert ada.asked[0].offered == ("no", "once")
    commit = "git -c user.name=a -c user.email=a@b -c commit.gpgsign=false commit -qam"
    conflict = f"echo 2 > file; {commit} 2; git switch -qc topic HEAD~1; echo 3 > file; {commit} 3; git rebase main"
    steps = f"echo 'exec touch {person}/caught' >> .git/rebase-merge/git-rebase-todo"
    assert "[exit code 0]" in (await desktop.run(f"{conflict}; {steps} && git checkout -q --ours file", None)).text
    assert (await desktop.run("git rebase --skip", None, needs=["unsandboxed"])).is_error
    assert not (person / "caught").exists()
    await desktop.run("git rebase --skip", Ada("once"), needs=["unsandboxed"])
    assert (person / "caught").exists(), "a yes to exactly this is a yes: so the attempt can succeed"


async def test_where_a_hook_would_run_a_yes_to_commands_outside_is_for_once(desktop: Desktop, person: Path) -> None:
    """The hook is the person's, and what it runs may be somebody else's."""
    work = repository(desktop.folder / "work")
    await desktop.run("git push", Ada("session"), needs=["unsandboxed"])
    await desktop.close()
    (work / ".git/hooks/pre-push").write_text("#!/bin/sh\nsh ./checks\n")
    (work / ".git/hooks/pre-push").chmod(0o755)
    await desktop.run(f"echo touch {person}/caught > checks", None)
    ada = Ada("no")
    await desktop.run("git push", ada, needs=["unsandboxed"])
    assert ada.asked[0].offered == ("no", "once")
    assert f"git would run the hook {work}/.git/hooks/pre-push" in ada.asked[0].reason
    assert not (person / "caught").exists()


@pytest.mark.parametrize(
    "line",
    [
        "'/a/b\\0c': Read-only file system",
        "'~nobody-here/x': Read-only file system",
        "'%s': Read-only file system" % ("/" * 19_000),
        "Read-only file system '" + "/x" * 9_000,
        "127.0.0.1:80 " * 1_500,
        "refused " * 2_400,
    ],
    ids=["NUL", "nobody", "slashes", "no end", "addresses", "refusals"],
)
async def test_what_a_program_says_of_itself_breaks_nothing_and_takes_no_time(desktop: Desktop, line: str) -> None:
    (desktop.folder / "work").mkdir()
    (desktop.folder / "work/said").write_text(line)
    began = time.process_time()
    result = await desktop.run("printf '%b' \"$(cat said)\"; exit 3", None)
    assert "[exit code 3]" in result.text
    assert time.process_time() - began < 5, "of our own process"


async def test_a_refusal_does_not_tell_where_links_outside_lead(desktop: Desktop, person: Path) -> None:
    (person / "of-nobody's-business").mkdir(parents=True)
    (person / "link").symlink_to(person / "of-nobody's-business")
    result = await desktop.run(f"echo \"'{person}/link/x': Read-only file system\"; exit 1", None)
    assert f"writing {person}/link/x was probably blocked" in result.text
    assert "business" not in result.text


async def test_a_server_that_takes_no_connection_does_not_confuse_ports(
    desktop: Desktop, service: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late answer to one order is not taken for that to the next."""
    monkeypatch.setattr(ports, "ANSWER_S", 0.5)
    full = (
        "import pathlib, socket, threading\n"
        "listener = socket.create_server(('127.0.0.1', 8126), backlog=0)\n"
        "held = [socket.socket() for _ in range(8)]\n"
        "for one in held: one.setblocking(False); one.connect_ex(('127.0.0.1', 8126))\n"
        "pathlib.Path('full').touch()\n"
        "threading.Event().wait()\n"
    )
    (desktop.folder / "work").mkdir()
    (desktop.folder / "work/full.py").write_text(full)
    shown = await desktop.run("python3 full.py", Ada("once"), needs=["publish 8126"], background=True)
    link = shown.text.partition("8126 is served at ")[2].partition(" ")[0]
    port = int(link.rpartition(":")[2].strip("/"))
    await until((desktop.folder / "work/full").exists)

    def ask() -> bytes:
        with socket.create_connection(("127.0.0.1", port)) as client:
            return client.recv(1)

    assert await asyncio.to_thread(ask) == b"", "nobody answers"
    number = service.getsockname()[1]
    connect = f"exec 5<>/dev/tcp/127.0.0.1/{number} && echo in"
    assert "in\n" in (await desktop.run(connect, Ada("once"), needs=[f"port {number}"])).text


@pytest.mark.parametrize(
    ("listed", "sentence"),
    [
        (TerminalSettings(backend="landlock", ports=(5432,)), "terminal.ports lists ports of this machine"),
        (TerminalSettings(backend="landlock", network=("pypi.org",)), "the sandbox that works here has no network"),
    ],
    ids=["ports", "network"],
)
@pytest.mark.parametrize("backend", ["landlock"], indirect=True)
async def test_what_landlock_cannot_open_is_told_in_one_sentence(
    backend: Backend, scope: Scope, tmp_path: Path, listed: TerminalSettings, sentence: str
) -> None:
    assert listed.backend == backend
    async with aclosing(Workspaces(listed, tmp_path / "home", SystemClock())) as workspaces:
        use = calling(scope, terminal_tools(workspaces), Alone())
        refused = await use("terminal", command="true")
    assert refused.is_error
    assert sentence in refused.text
    assert "\n" not in refused.text


async def test_what_was_opened_at_the_strict_level_keeps_no_command_from_running_at_landlock(
    desktop: Desktop, beside: Path, service: socket.socket, store: Store
) -> None:
    if (reason := landlocked.fault()) is not None:
        pytest.skip(f"commands in Landlock: {reason}")
    port = service.getsockname()[1]
    needs = [f"write {beside}", f"port {port}", "publish 8127", "network pypi.org"]
    opened = await desktop.run("true", Ada("project", "project", "project", "project"), needs=needs)
    assert not opened.is_error, opened.text
    await desktop.close()
    there = Desktop(store, await store.owners.join("landlock"), desktop.folder, "landlock")
    try:
        assert "[exit code 0]" in (await there.run(f"touch {beside}/made", None)).text
    finally:
        await there.close()


async def test_a_listed_port_is_no_hindrance_where_commands_reach_every_port(scope: Scope, tmp_path: Path) -> None:
    listed = TerminalSettings(backend="local", ports=(5432,))
    async with aclosing(Workspaces(listed, tmp_path / "home", SystemClock())) as workspaces:
        use = calling(scope, terminal_tools(workspaces), Alone())
        assert not (await use("terminal", command="true")).is_error


@pytest.mark.parametrize(
    ("need", "sentence"),
    [
        ("write ~nobody-here/x", "names a user that does not exist here"),
        ("write {person}/.ssh/id", "holds too much to be opened"),
        ("write {person}/.bashrc", "runs when the person logs in"),
        ("write {person}/.config/autostart/", "runs when the person logs in"),
        ("write {person}/file/below", "is not a usable path"),
        ("write {person}/a\0b", "is not a usable path"),
        ("port -1", "is not a port"),
        ("network [::1]", "is this machine itself"),
    ],
)
async def test_what_is_asked_for_badly_is_told_in_one_sentence(
    desktop: Desktop, person: Path, need: str, sentence: str
) -> None:
    for name in ("file", ".bashrc"):
        (person / name).touch()
    refused = await desktop.run("true", Ada(), needs=[need.format(person=person)])
    assert refused.is_error
    assert sentence in refused.text


@pytest.mark.parametrize(
    ("name", "path", "fault"),
    [
        ("read", "/", "which contains all of"),
        ("write", "/", "which contains all of"),
        ("write", "{person}/..", "which contains all of"),
        ("read", "{home}", "which belongs to Talaria itself"),
        ("write", "{home}/x", "which belongs to Talaria itself"),
    ],
)
async def test_what_cannot_be_listed_is_told_in_one_sentence(
    desktop: Desktop, person: Path, name: str, path: str, fault: str
) -> None:
    path = path.format(person=person, home=desktop.folder / "home")
    read, write = ((path,) if one == name else () for one in ("read", "write"))
    settings = TerminalSettings(backend="bubblewrap", read=read, write=write)
    desktop.workspaces = Workspaces(settings, desktop.folder / "home", SystemClock())
    refused = await desktop.run("true", None)
    assert refused.is_error
    assert f"terminal.{name} lists {path}, {fault}" in refused.text
    assert "\n" not in refused.text


async def test_a_file_that_is_listed_can_be_written_unless_it_runs_at_log_in(desktop: Desktop, person: Path) -> None:
    for name in ("file", ".bashrc"):
        (person / name).write_text("before")
    settings = TerminalSettings(backend="bubblewrap", write=(f"{person}/file", f"{person}/.bashrc"))
    desktop.workspaces = Workspaces(settings, desktop.folder / "home", SystemClock())
    await desktop.run(f"echo after > {person}/file; echo after > {person}/.bashrc", None)
    assert [(person / name).read_text() for name in ("file", ".bashrc")] == ["after\n", "before"]


async def test_at_landlock_a_folder_with_hooks_stays_closed_because_nothing_can_guard_them(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (reason := landlocked.fault()) is not None:
        pytest.skip(f"commands in Landlock: {reason}")
    beside = repository(tmp_path / "person/beside")
    (beside / "sub").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    config = (beside / ".git/config").read_bytes()
    desktop = Desktop(store, await store.owners.join("test"), tmp_path, "landlock")
    try:
        plant = f"touch {beside}/.git/hooks/pre-commit; echo x >> {beside}/.git/config; touch {beside}/sub/made"
        told = await desktop.run(plant, Ada("once"), needs=[f"write {beside}"])
        assert f"[{beside} stays closed: other programs obey {beside}/.git" in told.text
        assert not (beside / "sub/made").exists()
        await desktop.run(plant, Ada("session"), needs=[f"write {beside}/sub"])
        assert (beside / "sub/made").exists()
    finally:
        await desktop.close()
    assert not (beside / ".git/hooks/pre-commit").exists()
    assert (beside / ".git/config").read_bytes() == config


def test_no_yes_opens_the_folders_of_all_people_in_chats(tmp_path: Path) -> None:
    people = tmp_path / "people"
    workspaces = Workspaces(TerminalSettings(), tmp_path / "home", SystemClock(), people=people)
    assert not workspaces.may_be_shared(people)
    assert not workspaces.may_be_shared(tmp_path)
    assert workspaces.may_be_shared(tmp_path / "other")


async def test_no_name_of_a_folder_passes_for_another_grant(
    desktop: Desktop, beside: Path, person: Path, store: Store
) -> None:
    folder = beside / "x\n  abcd1234  network pypi.org (in every project)"
    folder.mkdir()
    await desktop.run("true", Ada("project"), needs=[f"write {folder}"])
    state = SandboxState(level="strict", about="bubblewrap", project=desktop.folder / "work", home=person)
    lines = (await describe_sandbox(state, store.grants, SessionId("s1"), 0.0, None, is_whole=True)).splitlines()
    assert sum("pypi.org" in line for line in lines) == 1
    assert not any(line.strip().startswith("abcd1234") for line in lines)
