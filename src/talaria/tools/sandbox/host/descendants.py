"""All that a process has started, wherever it went: found through /proc, ended without a gap to slip through."""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

PR_SET_CHILD_SUBREAPER = 36
PR_SET_DUMPABLE = 4
PAUSE_S = 0.005
LONGEST_S = 5.0
"""What then still lives cannot be ended by us."""


def adopt_orphans() -> None:
    """So that what a child leaves behind becomes ours, also where it left its group and session."""
    if sys.platform != "linux":
        return
    import ctypes  # noqa: PLC0415

    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        library.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # a command is not to look into us


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


def sweep(spared: Callable[[], frozenset[int]] = frozenset) -> None:
    """End all our descendants but those `spared` and theirs. They are stopped first: who sleeps cannot fork away."""
    if not os.path.isdir("/proc/self"):
        return
    deadline = time.monotonic() + LONGEST_S
    while (left := _left(spared())) and time.monotonic() < deadline:
        for sign in (signal.SIGSTOP, signal.SIGKILL):
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, sign)
        reap()
        time.sleep(PAUSE_S)


def _left(spared: frozenset[int]) -> list[int]:
    kept = {below for pid in spared for below in (pid, *descendants(pid))}
    return [pid for pid in descendants(os.getpid()) if pid not in kept]


def reap(*awaited: int) -> dict[int, int]:
    """Take in every child that has ended; the exit codes of those."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if not awaited or pid in awaited:
                ended[pid] = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return ended
