"""What one command can use up at most."""

import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from talaria.core.messages import ToolResult
from talaria.tools.sandbox.host.command_loop import QUICKEST_TICK_S, TICK_S, tick_s

Use = Callable[..., Awaitable[ToolResult]]


@pytest.fixture
def small_disk(cwd: Path) -> Iterator[Path]:
    """The project on a disk of 300 MB; 256 of them are to stay free."""
    if os.geteuid() != 0:
        pytest.skip("a full disk: only root can mount a small one")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", cwd], check=True)
    yield cwd
    subprocess.run(["umount", "--lazy", cwd], check=True)


@pytest.mark.usefixtures("small_disk")
async def test_a_command_that_fills_the_disk_is_stopped_before_it_is_full(use: Use, cwd: Path) -> None:
    fill = "i=0; while true; do head -c 5000000 /dev/zero > file$i; i=$((i+1)); sleep 0.02; done"
    result = await use("terminal", command=fill, timeout_s=60)
    assert result.text.endswith("[stopped, because the disk is nearly full]")
    free = os.statvfs(cwd)
    assert free.f_bavail * free.f_frsize > 100_000_000


@pytest.mark.usefixtures("small_disk")
async def test_one_file_cannot_fill_the_disk_however_fast_it_is_made(use: Use, cwd: Path) -> None:
    result = await use("terminal", command="fallocate -l 200M large || truncate -s 200M large; ls -s large")
    assert "File too large" in result.text
    free = os.statvfs(cwd)
    assert free.f_bavail * free.f_frsize > 200_000_000


@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"], indirect=True)
async def test_no_disk_is_filled_at_once_without_writing(use: Use, cwd: Path) -> None:
    """On ext4 and the like the call takes no time, whatever the size; the tool host could not see it in time."""
    reserve = "fallocate -l 1M one; fallocate -nl 1M two; fallocate -zl 1M two"
    allocate = "import os, sys; os.posix_fallocate(os.open(sys.argv[1], os.O_CREAT | os.O_RDWR), 0, 1 << 20)"
    result = await use("terminal", command=f"touch two; {reserve}; python3 -c '{allocate}' three")
    assert result.text.count("fallocate failed") == 3
    assert {name: (cwd / name).stat().st_blocks for name in ("one", "two")} == {"one": 0, "two": 0}
    assert (cwd / "three").stat().st_size == 1 << 20  # libraries write instead
    freed = await use("terminal", command="head -c 1M /dev/zero > full; fallocate -p -l 1M full; echo $?")
    assert freed.text.startswith("0\n")


def test_the_less_room_there_is_the_more_often_the_disk_is_looked_at() -> None:
    assert tick_s(100 << 30) == TICK_S
    assert QUICKEST_TICK_S < tick_s(1 << 30) < TICK_S
    assert tick_s(0) == tick_s(-1) == QUICKEST_TICK_S


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
@pytest.mark.parametrize("place", ["/tmp", "/var/tmp", "$HOME", "/dev/shm"])
async def test_folders_that_are_thrown_away_are_limited(use: Use, place: str) -> None:
    result = await use("terminal", command=f"df --output=size -B1M {place} | tail -1")
    assert int(result.text.split()[0]) <= 1024


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
@pytest.mark.parametrize("place", ["/", "/dev", "/run", "/etc", "/usr"])
async def test_nothing_is_written_elsewhere(use: Use, place: str) -> None:
    assert "Read-only file system" in (await use("terminal", command=f"touch {place}/x")).text


async def test_a_file_has_a_largest_size(use: Use) -> None:
    result = await use("terminal", command="truncate -s 5G large; ls -l large")
    assert "File too large" in result.text


WATCH = """\
import ctypes, os
count = 0
while ctypes.CDLL(None).inotify_init() >= 0:
    count += 1
print(count)
"""


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
async def test_commands_cannot_use_up_the_inotify_instances_of_the_person(use: Use, cwd: Path) -> None:
    (cwd / "watch.py").write_text(WATCH)
    persons = int(Path("/proc/sys/user/max_inotify_instances").read_text())
    result = await use("terminal", command="ulimit -n 4000; python3 watch.py; cat /proc/sys/user/max_inotify_watches")
    instances, watches = map(int, result.text.split()[:2])
    assert 0 < instances <= min(64, persons // 2)
    assert 0 < watches <= int(Path("/proc/sys/user/max_inotify_watches").read_text()) // 2
    assert int(Path("/proc/sys/user/max_inotify_instances").read_text()) == persons


@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"], indirect=True)
async def test_the_mode_of_a_device_cannot_be_changed(use: Use) -> None:
    """To what it is: nothing is harmed where it can be. The devices themselves can be used."""
    result = await use("terminal", command="chmod $(stat -c %a /dev/null) /dev/null; echo x > /dev/null && echo used")
    assert "chmod: changing permissions of '/dev/null'" in result.text
    assert "\nused\n" in result.text
