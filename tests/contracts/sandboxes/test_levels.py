"""What a level claims holds for a user as it does for root, and for the tool host as for its commands."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.contracts.sandboxes.users import a_user, only_as_root

from talaria.cli.health.escapes.escape_trial import DISK, RESOURCES
from talaria.cli.health.escapes.probes import ATTEMPTS, NEEDS
from talaria.core.messages import ToolResult
from talaria.core.redaction import Redactor
from talaria.tools.base import Scope
from talaria.tools.output import CapturedOutput
from talaria.tools.sandbox.bubblewrap import Bubblewrap
from talaria.tools.sandbox.host import landlock
from talaria.tools.sandbox.host.shell import ShellState
from talaria.tools.sandbox.running_command import SandboxCommand
from talaria.tools.sandbox.sandbox_policy import view_of
from talaria.tools.sandbox.sandbox_settings import Backend, TerminalSettings
from talaria.tools.workspaces import Workspaces

Use = Callable[..., Awaitable[ToolResult]]

MATRIX = """\
import asyncio, json, sys
from pathlib import Path
from talaria.tools.sandbox.chooser import SandboxChooser
from talaria.tools.sandbox.sandbox_settings import TerminalSettings
from talaria.cli.health.escapes.escape_trial import try_escapes

settings = TerminalSettings(backend=sys.argv[1])
sandbox = SandboxChooser(settings).sandbox
findings = asyncio.run(try_escapes(sandbox, Path(sys.argv[2]), settings))
print(json.dumps({one.name: [one.verdict(sandbox.level), one.has_succeeded, one.detail] for one in findings}))
"""
ONLY_ROOT_COULD = {
    "read a file of another user",
    "mount a file system",
    "have capabilities",
    "create a device",
    "open a disk or the memory",
    "change the mode of a device",
    "open a private key of the machine",
    "open kernel settings for writing",
}
"""Without a sandbox; the last is possible on some kernels. `type into the terminal` depends on one, too."""
DEPENDS_ON_THE_KERNEL = {"trace the agent", "create a user namespace", "type into the terminal"}


def findings_of_a_user(backend: str, program: str = MATRIX) -> dict[str, tuple[str, bool | None, str]]:
    with a_user() as user:
        return json.loads(user.run("-c", program, backend, str(user.folder)))


@only_as_root
@pytest.mark.parametrize(
    "backend",
    ["bubblewrap", *(pytest.param(one, marks=pytest.mark.long) for one in ("landlock", "local"))],
    indirect=True,
)
def test_no_escape_of_a_user_succeeds_at_the_claimed_level(backend: Backend) -> None:
    findings = findings_of_a_user(backend)
    assert {name: found for name, found in findings.items() if found[0] == "fail"} == {}
    if backend == "local":  # where nothing stands in the way, all of it succeeds
        needs = {attempt.name for attempt in NEEDS}
        tried = {attempt.name for attempt in (*ATTEMPTS, *RESOURCES)} - needs - ONLY_ROOT_COULD - DEPENDS_ON_THE_KERNEL
        by_the_host = {
            "use descriptors left open",
            "outlive the command",
            "write .git/commondir",
            "write too large a file",
            DISK.name,
        }
        assert {name for name in tried if not findings[name][1]} <= by_the_host


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that no command may change, with files that have the names of those that the tool host keeps."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        place = Path(folder).resolve()
        for name in ("begin", "peek", "state", "cwd", "kept", "id"):
            (place / name).write_text(f"{name}\n# whole\n")
            (place / name).chmod(0o600)
        yield place


def look(folder: Path) -> dict[str, tuple[int, int, str]]:
    return {one.name: ((found := one.stat()).st_mode, found.st_mtime_ns, one.read_text()) for one in folder.iterdir()}


SWAP_STATE = """\
cd "$TMPDIR/../shell"
mv state state.1 && ln -s {outside} state
"""
KEEP_SWAPPING = """\
import os, sys, time
place, outside, ends_at = sys.argv[1], sys.argv[2], time.monotonic() + float(sys.argv[3])
os.chdir(place)
while time.monotonic() < ends_at:
    os.rename("state", "aside")
    os.symlink(outside, "state")
    os.unlink("state")
    os.rename("aside", "state")
"""


@pytest.mark.parametrize("backend", ["landlock"], indirect=True)
async def test_a_link_in_place_of_the_tool_hosts_folder_leads_it_nowhere(
    use: Use, workspaces: Workspaces, scope: Scope, outside: Path
) -> None:
    before = look(outside)
    await use("terminal", command="export A=1")
    await use("terminal", command=SWAP_STATE.format(outside=outside))
    await use("terminal", command="export A=2")
    await workspaces.close(scope.session)
    assert look(outside) == before


@pytest.mark.parametrize("backend", ["landlock"], indirect=True)
@pytest.mark.parametrize("duration_s", [1, pytest.param(60, marks=pytest.mark.long)])
async def test_a_folder_that_is_swapped_all_the_time_leads_the_tool_host_nowhere(
    use: Use, workspaces: Workspaces, scope: Scope, cwd: Path, outside: Path, duration_s: int
) -> None:
    before = look(outside)
    (cwd / "swap.py").write_text(KEEP_SWAPPING)
    swap = f'python3 -I swap.py "$TMPDIR/../shell" {outside} {duration_s}'
    await use("terminal", command=swap, background=True)
    ends_at = time.monotonic() + duration_s
    while time.monotonic() < ends_at:
        await use("terminal", command="export A=1", timeout_s=20)
    await workspaces.close(scope.session)
    assert look(outside) == before


def test_the_state_of_the_shell_is_kept_only_in_the_folder_that_was_made(tmp_path: Path, outside: Path) -> None:
    """Also where nothing else stands in the way of the tool host."""
    before = look(outside)
    state = ShellState(str(tmp_path / "state"), str(tmp_path))
    state.make()
    (tmp_path / "state").rename(tmp_path / "aside")
    (tmp_path / "state").symlink_to(outside)
    state.take(is_place_kept=True)
    state.remove()
    assert look(outside) == before
    assert [*(tmp_path / "aside").iterdir()] == []


def test_a_folder_for_the_state_that_somebody_else_made_is_not_used(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "state").symlink_to(outside)
    with pytest.raises(FileExistsError):
        ShellState(str(tmp_path / "state"), str(tmp_path)).make()


CONFINED = """\
import json, os, sys
from talaria.tools.sandbox.host.confining import confine
places, victim, is_confined = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3] == "confined"
if is_confined:
    confine(places, ())
for name, attempt in {
    "delete": lambda: os.unlink(f"{victim}/begin"),
    "write": lambda: open(f"{victim}/peek", "a").close(),
    "rename": lambda: os.replace(f"{victim}/state", f"{victim}/kept"),
    "mode": lambda: os.chmod(f"{victim}/id", 0o640),
}.items():
    try:
        attempt()
        print(name)
    except OSError:
        pass
"""


@pytest.mark.skipif(landlock.abi() < 1, reason="this kernel has no Landlock")
@pytest.mark.parametrize("confined", [True, False])
def test_the_tool_host_itself_changes_nothing_outside(tmp_path: Path, outside: Path, confined: bool) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    places = {"reads": ["/usr", "/proc", sys.base_prefix], "writes": [str(scratch)], "scratch": str(scratch)}
    words = (json.dumps(places), str(outside), "confined" if confined else "")
    done = subprocess.run([sys.executable, "-c", CONFINED, *words], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ([] if confined else ["delete", "write", "rename", "mode"])


@pytest.mark.skipif(landlock.abi() < 6, reason="Landlock is too old here to keep signals in")
@pytest.mark.parametrize("backend", ["landlock"], indirect=True)
async def test_a_command_reaches_neither_the_tool_host_nor_terminals(use: Use) -> None:
    host = "$(ps -o ppid= -p $PPID)"
    for process in (host, f"$(ps -o ppid= -p {host})"):
        assert "not permitted" in (await use("terminal", command=f"kill -9 {process}")).text
    assert "Permission denied" in (await use("terminal", command="exec 3<>/dev/ptmx")).text
    assert "0 40 120" in (await use("terminal", command="stty size; echo $? $(stty size)", pty=True)).text


CHANGES = {
    "chmod": "chmod 777 {0}/id",
    "through a link": "ln -s {0}/id l; chmod 777 l",
    "through a linked folder": "ln -s {0} f; chmod 777 f/id",
    "by way of the parent": "cd /; chmod 777 .{0}/id",
    "touch": "touch -d 2001-01-01 {0}/id",
    "touch a link": "ln -s {0}/id l; touch -d 2001-01-01 l",
    "attribute": 'python3 -c \'import os; os.setxattr("{0}/id", "user.x", b"1")\'',
    "the old calls": 'python3 -c \'import ctypes; c = ctypes.CDLL(None).syscall; c(90, b"{0}/id", 511); '
    'c(132, b"{0}/id", None); c(92, b"{0}/id", -1, -1)\'',
    "a descriptor": 'python3 -c \'import os; os.chmod(f"/proc/self/fd/" + str(os.open("{0}/id", os.O_PATH)), 511)\'',
}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the old calls are those of x86_64")
@pytest.mark.parametrize("backend", ["landlock", "local"], indirect=True)
async def test_modes_and_times_outside_stay_as_they_are(use: Use, backend: Backend, cwd: Path, outside: Path) -> None:
    """Without a sandbox each of the commands changes something."""
    for name, command in CHANGES.items():
        (outside / "id").chmod(0o600)
        os.utime(outside / "id", ns=(5, 5))
        before = (outside / "id").stat().st_mode, (outside / "id").stat().st_mtime_ns, os.listxattr(outside / "id")
        await use("terminal", command=f"cd $(mktemp -d -p {cwd}); {command.format(outside)}", independent=True)
        after = (outside / "id").stat().st_mode, (outside / "id").stat().st_mtime_ns, os.listxattr(outside / "id")
        assert (before == after) is (backend == "landlock"), name
        if "user.x" in after[2]:
            os.removexattr(outside / "id", "user.x")


RACE = """\
import os, sys, threading
outside, turns = sys.argv[1], int(sys.argv[2])
open("mine", "w").close()
os.symlink(f"{outside}/id", "theirs")
os.symlink("mine", "name")
done = False

def swap():
    while not done:
        for target in ("theirs", "mine"):
            os.symlink(target, "new")
            os.rename("new", "name")

thread = threading.Thread(target=swap)
thread.start()
made = refused = 0
for turn in range(turns):
    try:
        os.chmod("name", 0o777)
        made += 1
    except PermissionError:
        refused += 1
done = True
thread.join()
print(f"made={made > 0} refused={refused > 0}")
"""


@pytest.mark.parametrize("backend", ["landlock"], indirect=True)
@pytest.mark.parametrize("turns", [400, pytest.param(40_000, marks=pytest.mark.long)])
async def test_a_name_that_is_swapped_all_the_time_is_never_changed_outside(
    use: Use, cwd: Path, outside: Path, turns: int
) -> None:
    before = look(outside)
    (cwd / "race.py").write_text(RACE)
    result = await use("terminal", command=f"python3 -I race.py {outside} {turns}", timeout_s=300)
    assert result.text.startswith("made=True refused=True\n")
    assert look(outside) == before


WORK = (
    "echo '#!/bin/sh' > s; echo 'echo done' >> s; chmod +x s; ./s",
    "mkdir a; touch -d 2001-01-01 a/b; tar cf t.tar a; rm -r a; tar xpf t.tar; [ a/b -ot t.tar ] && echo done",
    "echo a > a; cp -a a b; install -m 640 a c; [ $(stat -c %a c) = 640 ] && echo done",
    "ln -s nowhere l; touch -h -d @5 l; chown -h $(id -u) l; [ $(stat -c %Y l) = 5 ] && echo done",
    "git init -q x; echo a > x/a; chmod +x x/a; git -C x add a && git -C x status --short | grep -q a && echo done",
    "python3 {project}/change.py",
    "chmod 644 missing 2>&1 | grep -q 'No such file' && echo done",
)
CHANGE = """
import os, stat
file, folder = os.open("n", os.O_CREAT), os.open(".", 0)
os.fchmod(file, 0o600)
os.chmod(f"/proc/self/fd/{file}", 0o640)
os.utime(file)
os.chown("n", -1, os.getgid(), dir_fd=folder)
os.chmod("n", 0o644, dir_fd=folder)
os.mkdir("d")
os.chdir("d")
os.chmod(".", 0o711)
os.chmod("..", 0o755)
modes = [stat.S_IMODE(os.stat(name).st_mode) for name in ("../n", ".", "..")]
print("done" if modes == [0o644, 0o711, 0o755] else modes)
"""


@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"], indirect=True)
async def test_modes_and_times_in_the_project_are_the_commands_own(use: Use, cwd: Path) -> None:
    (cwd / "change.py").write_text(CHANGE)
    for work in WORK:
        command = f"cd $(mktemp -d -p {cwd}); {work.replace('{project}', str(cwd))}"
        assert (await use("terminal", command=command, independent=True)).text.startswith("done\n"), work


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
@pytest.mark.usefixtures("backend")
async def test_commands_run_in_a_home_with_talarias_own_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    person, own = tmp_path / "ann", tmp_path / "ann/.talaria"
    own.mkdir(parents=True)
    for name in ("config.yaml", ".env"):
        (own / name).write_text("secret")
    monkeypatch.setenv("HOME", str(person))
    output = CapturedOutput(tmp_path / "output", Redactor())
    async with Bubblewrap().open(view_of(person, own, TerminalSettings(), os.environ)) as host:
        await host.start(SandboxCommand(command="echo here; cat .talaria/.env"), output).wait()
    output.close()
    assert "here\n" in output.text()
    assert "secret" not in output.text()
