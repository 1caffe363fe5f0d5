"""Limits of processes and memory: real ones, in real control groups or under the limit of a user."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from talaria.testing.patience import PATIENCE_S
from talaria.tools.sandbox import resource_limits
from talaria.tools.sandbox.resource_limits import PREFIX, enforce_limits, places

MOST = 20
NOBODY = 65534
BOMB = """
import os, signal, sys
print("ready", flush=True)
sys.stdin.readline()
children = []
try:
    while len(children) < 60:
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            signal.pause()
        children.append(child)
except BlockingIOError:
    pass
print(len(children), flush=True)
sys.stdin.readline()
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""
OWNER = """
with enforce_limits(20) as limit:
    limit.join(int(sys.argv[1]))
    print("joined", flush=True)
    signal.pause()
"""
OF_USER = """
import subprocess
with enforce_limits(20) as limit:
    process = subprocess.Popen(sys.argv[1:], stdin=-1, stdout=-1, text=True, cwd="/")
    process.stdout.readline()
    limit.join(process.pid)
    process.stdin.write("go\\n")
    process.stdin.flush()
    print(process.stdout.readline(), process.communicate("end\\n")[0])
"""
BOMBING = ("-I", "-S", "-c", BOMB)


class Bomb:
    """Goes off at a word; nothing of it is left at the end."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert self._read() == "ready"

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go(self) -> int:
        """How many it came to."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return int(self._read())

    def group(self) -> Path | None:
        found = re.search(rf"{PREFIX}\w+", Path(f"/proc/{self.process.pid}/cgroup").read_text())
        told = places(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())
        return next((place / found[0] for place in told if found and (place / found[0]).exists()), None)


@contextmanager
def bomb(*before: str) -> Generator[Bomb]:
    command = (*before, sys.executable, *BOMBING)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as process:
        try:
            yield Bomb(process)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _has_groups() -> bool:
    with enforce_limits(MOST) as limit, bomb() as going:
        if limit.join is not None:
            limit.join(going.process.pid)
        return going.group() is not None


@pytest.fixture(scope="module")
def groups() -> None:
    if not _has_groups():
        pytest.skip("no control groups can be made here")


@pytest.mark.usefixtures("groups")
def test_fork_bomb_is_stopped_at_the_limit_and_its_group_removed() -> None:
    with bomb() as going:
        with enforce_limits(MOST) as limit:
            assert limit.join is not None
            limit.join(going.process.pid)
            group = going.group()
            assert group is not None
            assert going.go() == MOST - 1
            assert len((group / "cgroup.procs").read_text().split()) == MOST
        assert not group.exists()
        assert going.process.wait(timeout=PATIENCE_S) == -signal.SIGKILL


@pytest.mark.usefixtures("groups")
def test_descendants_that_are_there_already_join_too() -> None:
    with enforce_limits(MOST) as limit, bomb("/bin/sh", "-c", '"$@"; true', "sh") as going:
        assert limit.join is not None
        limit.join(going.process.pid)
        assert going.go() == MOST - 2


@pytest.mark.usefixtures("groups")
def test_process_joins_by_itself_before_it_begins() -> None:
    with enforce_limits(MOST) as limit:
        assert limit.join is not None
        done = subprocess.run(
            [sys.executable, *BOMBING],
            input="go\nend\n",
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            preexec_fn=partial(limit.join, 0),
        )
        assert done.stdout.split() == ["ready", str(MOST - 1)]


@pytest.mark.usefixtures("groups")
def test_what_a_dead_owner_left_is_ended_by_the_next_and_what_a_living_one_has_is_not() -> None:
    source = Path(resource_limits.__file__).read_text() + OWNER
    with enforce_limits(MOST) as living, bomb() as spared, bomb() as left:
        assert living.join is not None
        living.join(spared.process.pid)
        command = [sys.executable, "-I", "-S", "-c", source, str(left.process.pid)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "joined\n"
            group = left.group()
            owner.kill()
        assert group is not None
        with enforce_limits(MOST):
            assert not group.exists()
            assert left.process.wait(timeout=PATIENCE_S) == -signal.SIGKILL
        assert spared.group() is not None
        assert spared.go() == MOST - 1


def has_memory_groups() -> bool:
    memberships = Path("/proc/self/cgroup")
    if not memberships.exists():
        return False
    found = places(Path("/proc/self/mountinfo").read_text(), memberships.read_text(), "memory")
    return any(
        os.access(place / "cgroup.procs", os.W_OK)
        and ((place / "memory.limit_in_bytes").exists() or "memory" in (place / "cgroup.subtree_control").read_text())
        for place in found
    )


@pytest.mark.skipif(not has_memory_groups(), reason="no control group can limit memory here")
def test_memory_is_limited_by_a_group() -> None:
    with enforce_limits(MOST, memory_bytes=64 << 20, cpu_weight=50) as limit:
        assert limit.join is not None
        assert limit.out_of_memory() == 0
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", "held = bytearray(b'x') * (200 << 20)"],
            check=False,
            preexec_fn=partial(limit.join, 0),
        )
        assert done.returncode == -signal.SIGKILL
        assert limit.out_of_memory() == 1
    assert limit.out_of_memory() == 0  # nothing of it is left


@pytest.fixture
def as_nobody() -> None:
    if sys.platform != "linux" or os.getuid() != 0 or not Path("/usr/bin/python3").exists():
        pytest.skip("only root can become somebody else")


def of_user(*command: str) -> list[str]:
    source = Path(resource_limits.__file__).read_text() + OF_USER
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-S", "-c", source, *command],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd="/",
        user=NOBODY,
        group=NOBODY,
        extra_groups=(),
    )
    return done.stdout.split()


@pytest.mark.usefixtures("as_nobody")
def test_user_without_groups_has_so_many_more_than_now() -> None:
    with ExitStack() as others:
        for _ in range(2 * MOST):
            other = others.enter_context(subprocess.Popen(["sleep", "60"], user=NOBODY))
            others.callback(other.kill)
        (made,) = of_user("/usr/bin/python3", *BOMBING)
    assert MOST // 2 < int(made) < 3 * MOST  # others come and go under the same user


@pytest.mark.usefixtures("as_nobody")
def test_in_a_user_namespace_only_its_own_processes_count() -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-U", "true"], check=False, user=NOBODY).returncode != 0:
        pytest.skip("no user namespaces here")
    assert of_user(unshare, "-U", "/usr/bin/python3", *BOMBING) == [str(MOST - 1)]


def test_root_without_groups_is_told_that_nothing_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> bool:
        return False

    monkeypatch.setattr(os, "access", refused)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    with enforce_limits(MOST) as limit:
        assert limit.join is None


V1 = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
39 31 0:36 {root} /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
"""
V2 = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid,relatime shared:4 master:2 - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.mark.parametrize(
    ("mounts", "root", "memberships", "expected"),
    [
        (V1, "/", "2:cpu,cpuacct:/a\n8:pids:/user/one\n0::/\n", ["pids/user/one"]),
        (V1, "/docker/1", "8:pids:/docker/1\n", ["pids"]),
        (V1, "/docker/1", "8:pids:/docker/1/inner\n", ["pids/inner"]),
        (V1, "/docker/1", "8:pids:/elsewhere\n", ["pids"]),
        (V1, "/", "2:cpu,cpuacct:/a\n", []),
        (
            V2,
            "/",
            "0::/user.slice/app.slice/one\n",
            ["user.slice/app.slice/one", "user.slice/app.slice", "user.slice", ""],
        ),
        (V2, "/", "0::/\n", [""]),
        (V2, "/", "0::/../elsewhere\n", [""]),
        (V1 + V2, "/", "8:pids:/one\n0::/two\n", ["pids/one", "two", ""]),
    ],
)
def test_groups_are_made_below_the_own_one_or_its_parents(
    mounts: str, root: str, memberships: str, expected: list[str]
) -> None:
    found = [*places(mounts.format(root=root), memberships)]
    assert found == [Path("/sys/fs/cgroup", below) for below in expected]


def test_a_controller_that_shares_its_folder_with_another_is_found_too() -> None:
    memberships = "2:cpu,cpuacct:/a\n8:pids:/one\n"
    assert [*places(V1.format(root="/"), memberships, "cpu")] == [Path("/sys/fs/cgroup/cpu,cpuacct/a")]
    assert [*places(V1.format(root="/"), memberships, "memory")] == []
