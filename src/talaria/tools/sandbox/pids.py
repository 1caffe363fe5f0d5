"""How many processes a sandbox may have: by a control group of its own; where none can be made, by a limit of the user.

A group belongs to whoever holds the lock on its folder; the kernel frees that lock when the owner dies, and the next
one who makes a group removes what dead owners have left.
"""

import fcntl
import os
import resource
import secrets
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

PREFIX = "talaria-"
REMOVAL_S = 3.0
_PAUSE_S = 0.002
_ATTEMPTS = 5

Join = Callable[[int], None]
"""Makes it hold from now on for this process and all that descend from it; 0: the one that calls. Raises `OSError`."""


@contextmanager
def process_limit(most: int) -> Generator[Join | None]:
    """None: nothing can hold it here. At the end whatever is left in a control group is killed."""
    with ExitStack() as stack:
        groups = (stack.enter_context(_group(parent, most)) for parent in _candidates())
        is_below = sys.platform == "linux" and os.getuid() != 0  # root stands above a limit of users
        yield next(filter(None, groups), None) or (partial(_limit_user, most) if is_below else None)


def places(mounts: str, memberships: str) -> Iterator[Path]:
    """Below which a control group might count processes, nearest first; from /proc/self/mountinfo and cgroup."""
    own = {names: path for _, names, path in (line.split(":", 2) for line in memberships.splitlines())}
    for line in mounts.splitlines():
        _, _, _, root, top, *_ = line.split()
        kind, _, options = line.partition(" - ")[2].split()
        is_unified = kind == "cgroup2"
        path = own.get("") if is_unified else own.get("pids") if "pids" in options.split(",") else None
        if path is not None:
            is_below = path.startswith(root) and ".." not in path
            nearest = Path(top + path.removeprefix(root.rstrip("/"))) if is_below else Path(top)
            yield nearest
            yield from (parent for parent in nearest.parents if is_unified and parent.is_relative_to(top))


def _candidates() -> list[Path]:
    try:
        found = [*places(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())]
    except OSError:
        return []
    return [place for place in found if os.access(place / "cgroup.procs", os.W_OK)]


@contextmanager
def _group(parent: Path, most: int) -> Generator[Join | None]:
    """None: it cannot be made there, or does not count processes."""
    _sweep(parent)
    made = _made(parent)
    if made is None:
        yield None
        return
    folder, lock = made
    try:
        yield partial(_join_group, folder) if _is_written(folder / "pids.max", most) else None
    finally:
        _remove(folder)
        os.close(lock)


def _join_group(folder: Path, pid: int) -> None:
    for member in _family(pid):
        (folder / "cgroup.procs").write_text(str(member))


def _made(parent: Path) -> tuple[Path, int] | None:
    """A new group and the lock on it."""
    for _ in range(_ATTEMPTS):  # one who sweeps may take it for left behind before it is locked
        folder = parent / f"{PREFIX}{secrets.token_hex(8)}"
        try:
            folder.mkdir()
        except OSError:
            return None
        lock = _locked(folder)
        if lock is not None:
            return folder, lock
    return None


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        lock = _locked(folder)
        if lock is not None:
            _remove(folder)
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """The descriptor that holds the lock; None: somebody else has it, or has removed the folder."""
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
    """With all its processes. They cannot fork away: there is no room for one more."""
    _is_written(folder / "pids.max", 0)
    deadline = time.monotonic() + REMOVAL_S
    while time.monotonic() < deadline:
        with suppress(OSError):
            for pid in map(int, (folder / "cgroup.procs").read_text().split()):
                if pid > 0:  # others are not in our namespace
                    _kill(pid)
        with suppress(OSError):
            folder.rmdir()
        if not folder.exists():
            return
        time.sleep(_PAUSE_S)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _is_written(file: Path, number: int) -> bool:
    with suppress(OSError):
        return file.write_text(str(number)) > 0
    return False


def _limit_user(most: int, pid: int) -> None:
    """Counted in the user namespace of a process: only the sandbox if it has one of its own, else all of the user's."""
    for member in _family(pid):
        in_all = most + (_tasks_of_user() if _is_among_us(member) else 0)
        if sys.platform == "linux":
            resource.prlimit(member, resource.RLIMIT_NPROC, (in_all, in_all))


def _is_among_us(pid: int) -> bool:
    """Also if nobody may look: the limit is then the wider one."""
    try:
        return Path(f"/proc/{pid or 'self'}/ns/user").readlink() == Path("/proc/self/ns/user").readlink()
    except PermissionError:
        return True


def _tasks_of_user() -> int:
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if process.stat().st_uid == os.getuid():
                count += sum(1 for _ in (process / "task").iterdir())
    return count


def _family(pid: int) -> Iterator[int]:
    """A process, then its descendants: looked for once it has joined, so that whoever comes later is born into it."""
    yield pid
    for tasks in Path(f"/proc/{pid}/task").glob("*/children") if pid else ():
        with suppress(OSError):
            for child in map(int, tasks.read_text().split()):
                yield from _family(child)
