"""Limits the processes, memory and processor time of a sandbox with control groups of its own; where none can be made,
only the number of processes, by a limit of the user.

A group belongs to the process that holds the lock on its folder. The kernel releases the lock when that process dies,
and the next one that makes a group removes what dead owners have left. Imports nothing of ours.
"""

import fcntl
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

PREFIX = "talaria-"
REMOVAL_S = 3.0
_PAUSE_S = 0.002
_ATTEMPTS = 5
_USUAL_SHARES = 1024
"""In the first version of control groups: the same as a weight of 100 in the second."""

Join = Callable[[int], None]
"""Applies the limits to this process and all that descend from it; 0: to the caller. Raises `OSError`."""


class Enforced(NamedTuple):
    join: Join | None
    """None: no limit can be enforced here."""
    limited: frozenset[str]
    """Which of `pids`, `memory` and `cpu`."""
    memory_group: Path | None = None

    def out_of_memory(self) -> int:
        """How often the kernel has killed a process because all of them together used too much memory."""
        for name in ("memory.events", "memory.oom_control") if self.memory_group else ():
            with suppress(OSError, ValueError):
                lines = Path(f"{self.memory_group}/{name}").read_text().splitlines()
                return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
        return 0


@contextmanager
def enforce_limits(processes: int, memory_bytes: int = 0, cpu_weight: int = 0) -> Generator[Enforced]:
    """0: not limited. A weight counts against 100 for each other program, and only while the processors are busy. At
    the end, all that is left in a control group is killed."""
    # the group for pids is made last, so it is removed first: then nothing can fork away
    wanted = {"cpu": cpu_weight, "memory": memory_bytes, "pids": processes}
    with ExitStack() as stack:
        groups: dict[Path, Path | None] = {}
        """By their parent folders."""
        found: dict[str, Path] = {}
        for controller, most in wanted.items():
            for parent in _candidates(controller, [name for name in wanted if wanted[name]]) if most else ():
                if parent not in groups:
                    if _is_unified(parent) and any(map(_is_unified, groups)):
                        continue  # in the second version, a process is in one group only
                    groups[parent] = stack.enter_context(_group(parent))
                group = groups[parent]
                if group is not None and _is_set(group, controller, most):
                    found[controller] = group
                    break
        folders = [*dict.fromkeys(found.values())]
        is_below = sys.platform == "linux" and os.getuid() != 0  # a limit of users does not apply to root
        by_user = processes if is_below and "pids" not in found else 0
        join = partial(_join, folders, by_user) if folders or by_user else None
        limited = frozenset((*found, *(("pids",) if by_user else ())))
        yield Enforced(join, limited, found.get("memory"))


def places(mounts: str, memberships: str, controller: str = "pids") -> Iterator[Path]:
    """The folders below which a control group might have this controller, nearest first. `mounts` and `memberships`:
    /proc/self/mountinfo and /proc/self/cgroup."""
    own: dict[str, str] = {}
    for _, names, path in (line.split(":", 2) for line in memberships.splitlines()):
        own.update(dict.fromkeys(names.split(","), path))
    for line in mounts.splitlines():
        _, _, _, root, top, *_ = line.split()
        kind, _, options = line.partition(" - ")[2].split()
        is_unified = kind == "cgroup2"
        path = own.get("") if is_unified else own.get(controller) if controller in options.split(",") else None
        if path is not None:
            is_below = path.startswith(root) and ".." not in path
            nearest = Path(top + path.removeprefix(root.rstrip("/"))) if is_below else Path(top)
            yield nearest
            yield from (parent for parent in nearest.parents if is_unified and parent.is_relative_to(top))


def memory_of_machine() -> int:
    """In bytes, or as much as a control group around us allows; 0: not known."""
    try:
        found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (OSError, ValueError):
        return 0
    for place in _places("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):
                found.append(int((place / name).read_text()))
    return min(found)


def _places(controller: str) -> list[Path]:
    try:
        return [*places(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text(), controller)]
    except (OSError, ValueError):
        return []


def _candidates(controller: str, wanted: Sequence[str]) -> list[Path]:
    """Where a new group has this controller: first where it has most of what is wanted, then the nearest."""
    inherited: dict[Path, Sequence[str]] = {}
    for place in _places(controller):
        if os.access(place / "cgroup.procs", os.W_OK):  # in the first version, a folder is for one controller
            is_unified = _is_unified(place)
            inherited[place] = (place / "cgroup.subtree_control").read_text().split() if is_unified else (controller,)
    found = [place for place, names in inherited.items() if controller in names]
    return sorted(found, key=lambda place: -sum(name in inherited[place] for name in wanted))


def _is_unified(place: Path) -> bool:
    """Whether all controllers are in one folder, as in the second version of control groups."""
    return (place / "cgroup.subtree_control").exists()


def _is_set(group: Path, controller: str, most: int) -> bool:
    """Whether the group could be made to limit it."""
    files: Mapping[str, tuple[tuple[str, int], ...]] = {
        "pids": (("pids.max", most),),
        "memory": (("memory.max", most), ("memory.limit_in_bytes", most)),
        "cpu": (("cpu.weight", most), ("cpu.shares", most * _USUAL_SHARES // 100)),
    }
    if not any((group / name).exists() and _is_written(group / name, value) for name, value in files[controller]):
        return False
    if controller == "memory":  # what does not fit into memory must not fill the swap space
        for name, value in (("memory.swap.max", 0), ("memory.memsw.limit_in_bytes", most)):
            if (group / name).exists():
                _is_written(group / name, value)
    return True


@contextmanager
def _group(parent: Path) -> Generator[Path | None]:
    """None: it cannot be made there."""
    for left in parent.glob(f"{PREFIX}*"):
        lock = _lock(left)
        if lock is not None:
            _remove(left)
            os.close(lock)
    for _ in range(_ATTEMPTS):  # a process that sweeps may take it for a leftover before it is locked
        folder = parent / f"{PREFIX}{os.urandom(8).hex()}"
        try:
            folder.mkdir()
        except OSError:
            break
        lock = _lock(folder)
        if lock is None:
            continue
        try:
            yield folder
        finally:
            _remove(folder)
            os.close(lock)
        return
    yield None


def _join(folders: Sequence[Path], processes_of_user: int, pid: int) -> None:
    for member in _family(pid):
        for folder in folders:
            (folder / "cgroup.procs").write_text(str(member))
        if not processes_of_user:
            continue
        most = processes_of_user
        try:
            is_ours = Path(f"/proc/{member or 'self'}/ns/user").readlink() == Path("/proc/self/ns/user").readlink()
        except PermissionError:
            is_ours = True  # then the limit is the wider one
        if is_ours:  # the kernel counts by user namespace, so all processes of the user count
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    if process.stat().st_uid == os.getuid():
                        most += sum(1 for _ in (process / "task").iterdir())
        if sys.platform == "linux":
            resource.prlimit(member, resource.RLIMIT_NPROC, (most, most))


def _lock(folder: Path) -> int | None:
    """The descriptor that holds the lock; None: another process has it, or has removed the folder."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folder.exists():
            return lock
    os.close(lock)
    return None


def _remove(folder: Path) -> None:
    """With all its processes. They cannot fork away, because no more are allowed."""
    if (folder / "pids.max").exists():
        _is_written(folder / "pids.max", 0)
    deadline = time.monotonic() + REMOVAL_S
    while time.monotonic() < deadline:
        with suppress(OSError):
            for pid in map(int, (folder / "cgroup.procs").read_text().split()):
                if pid > 0:  # others are not in our namespace
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
        with suppress(OSError):
            folder.rmdir()
        if not folder.exists():
            return
        time.sleep(_PAUSE_S)


def _is_written(file: Path, number: int) -> bool:
    with suppress(OSError):
        return file.write_text(str(number)) > 0
    return False


def _family(pid: int) -> Iterator[int]:
    """A process, then its descendants, listed once it has joined: any later ones are then born into the group."""
    yield pid
    for tasks in Path(f"/proc/{pid}/task").glob("*/children") if pid else ():
        with suppress(OSError):
            for child in map(int, tasks.read_text().split()):
                yield from _family(child)
