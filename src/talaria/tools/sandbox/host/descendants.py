"""All that a process has started, wherever it went: found through /proc, ended without a gap to slip through.

And what whoever minds it has to see to for itself. Imports nothing of ours.
"""

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
UNHEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)


def wake_on_child_exit(*others: signal.Signals) -> int:
    """What can be read when one has ended: the signal's number, as of `others`. Signals end us no more: whoever is
    started must get them back."""
    reading, writing = os.pipe()
    for descriptor in (reading, writing):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for sign in UNHEEDED:
        signal.signal(sign, signal.SIG_IGN)
    for sign in (signal.SIGCHLD, *others):
        signal.signal(sign, _pass)
    return reading


def _pass(*_: object) -> None:
    return None


def read_given_environment() -> dict[bytes, bytes]:
    """As it was given to this process: Python may have added to its own."""
    try:
        with open("/proc/self/environ", "rb") as file:
            lines = file.read().split(b"\0")
    except OSError:
        return dict(os.environb)
    return dict(line.split(b"=", 1) for line in lines if b"=" in line)


def let_go_of_pipes() -> None:
    """They are those of what was started: who waits for their end must not wait for us."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)


def adopt_orphans() -> None:
    """So that what a child leaves behind becomes ours, also where it left its group and session."""
    control(PR_SET_CHILD_SUBREAPER, 1)
    control(PR_SET_DUMPABLE, 0)  # a command is not to look into us


def control(option: int, value: int) -> None:
    """By `prctl`, where there is one."""
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


def sweep(spared: Callable[[], frozenset[int]] = frozenset) -> None:
    """End all our descendants but those `spared` and theirs. They are stopped first: who sleeps cannot fork away."""
    if not os.path.isdir("/proc/self"):
        return
    deadline = time.monotonic() + LONGEST_S
    while (left := _find_remaining(spared())) and time.monotonic() < deadline:
        for sign in (signal.SIGSTOP, signal.SIGKILL):
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, sign)
        reap()
        time.sleep(PAUSE_S)


def _find_remaining(spared: frozenset[int]) -> list[int]:
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
