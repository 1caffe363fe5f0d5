"""Everything that a process has started, wherever it went: found and measured through /proc, and ended without a gap
to slip through. Also what a process that minds others must set up for itself. Imports nothing of ours.
"""

import os
import signal
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PAUSE_S = 0.005
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LONGEST_S = 5.0
"""What is still alive then cannot be ended by us."""
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)


def wake_on_child_exit(*others: signal.Signals) -> int:
    """A descriptor that brings the number of each SIGCHLD, and of `others`. From now on no signal in `IGNORED` ends
    this process; programs that it starts must have them restored."""
    reading, writing = os.pipe()
    for descriptor in (reading, writing):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for sign in (signal.SIGCHLD, *others):
        signal.signal(sign, lambda _, __: None)  # `SIG_IGN` would not wake us
    for sign in IGNORED:
        if sign not in others:  # even for a moment: one that has come already, and is blocked, would be forgotten
            signal.signal(sign, signal.SIG_IGN)
    return reading


def read_given_environment() -> dict[bytes, bytes]:
    """As this process received it: Python may have added to its own."""
    try:
        with open("/proc/self/environ", "rb") as file:
            lines = file.read().split(b"\0")
    except OSError:
        return dict(os.environb)
    return dict(line.split(b"=", 1) for line in lines if b"=" in line)


def release_pipes() -> None:
    """They belong to the program that was started: nobody who waits for their end should have to wait for us."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)


def adopt_orphans() -> None:
    """Become the parent of what a child leaves behind, even if that left its group and session."""
    control(PR_SET_CHILD_SUBREAPER, 1)
    control(PR_SET_DUMPABLE, 0)  # commands must not look into us


def control(option: int, value: int) -> None:
    """Call `prctl`, where there is one."""
    if sys.platform != "linux":
        return
    import ctypes  # noqa: PLC0415

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """The living ones."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state != b"Z":
                    children.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def sweep(spared: Collection[int] = ()) -> dict[int, int]:
    """End all our descendants except those `spared` and theirs. They are stopped first, so that none can fork away.

    Returns the exit codes of children that ended meanwhile: those `spared` may be among them."""
    ended: dict[int, int] = {}
    if not os.path.isdir("/proc/self"):
        return ended
    deadline = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline:
        kept = {below for pid in spared for below in (pid, *descendants(pid))}
        left = [pid for pid in descendants(os.getpid()) if pid not in kept]
        if not left:
            break
        for sign in (signal.SIGSTOP, signal.SIGKILL):
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, sign)
        ended.update(reap())
        time.sleep(PAUSE_S)
    return ended


def reap(*awaited: int) -> dict[int, int]:
    """Reap every child that has ended. Returns their exit codes, or only those of `awaited`."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if not awaited or pid in awaited:
                ended[pid] = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return ended


def memory_used(roots: Iterable[int], limit_bytes: int) -> dict[int, int]:
    """In bytes, by the root process of each command. Memory that several processes share counts for each of them. Only
    if that goes over the limit is it measured again, with each share counted once."""
    families = {root: tuple(_descend(root)) for root in roots}
    used = {root: sum(map(_resident, family)) for root, family in families.items()}
    if sum(used.values()) <= limit_bytes:
        return used
    return {root: sum(map(_proportional, family)) for root, family in families.items()}


def _descend(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
                children = file.read().split()
                for child in children:
                    yield from _descend(int(child))


def _resident(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
    return 0


def _proportional(pid: int) -> int:
    """Its part of what it shares with others; all of it where nobody may look so closely."""
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) << 10 for line in file if line.startswith(("Pss:", "SwapPss:")))
    return _resident(pid)
