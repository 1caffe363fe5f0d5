"""Starts one command and ends all of it. Run as a process of its own, between us and a server's:

    main(LIFELINE, COMMAND, [ARGUMENT …])

LIFELINE is the reading end of a pipe whose writing end only we hold. When that closes, because we let go of it or
because we are dead, the command gets a moment to end by itself (its stdin has closed with us), then SIGTERM, then
SIGKILL, and so does everything that it has started, also what left its process group.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress

from talaria.tools.sandbox.host.descendants import (
    IGNORED,
    adopt_orphans,
    descendants,
    read_given_environment,
    reap,
    release_pipes,
    sweep,
    wake_on_child_exit,
)

STAGES: tuple[tuple[signal.Signals | None, float], ...] = (
    (None, 0.3),
    (signal.SIGTERM, 1.0),
    (signal.SIGKILL, 1.0),
)
"""What is done about a command that has not ended, and the seconds it then has."""
LONGEST_S = sum(seconds for _, seconds in STAGES)
POLL_S = 0.02
NOT_STARTED = 126


def main() -> None:
    sys.exit(run(int(sys.argv[1]), sys.argv[2:]) & 0xFF)


def run(lifeline: int, command: list[str]) -> int:
    woken, environment = wake_on_child_exit(), read_given_environment()  # only the end of the lifeline ends us
    adopt_orphans()
    try:
        child = os.posix_spawnp(command[0], command, environment, setpgroup=0, setsigdef=IGNORED)
    except OSError as fault:
        os.write(2, f"{command[0]}: {fault.strerror}".encode())
        return NOT_STARTED
    release_pipes()
    code = _watch(child, lifeline, woken)
    _signal_all(child, signal.SIGKILL)  # what is left when the command itself is gone has no more to do
    sweep()
    return code


def _watch(child: int, lifeline: int, woken: int) -> int:
    """The command's exit code, once it has ended by itself or was made to."""
    while True:
        ready, _, _ = select.select([lifeline, woken], [], [])
        with suppress(BlockingIOError):
            os.read(woken, 4096)
        code = reap(child).get(child)
        if code is not None:
            return code
        if lifeline in ready:
            return _end(child)


def _end(child: int) -> int:
    for sign, seconds in STAGES:
        if sign is not None:
            _signal_all(child, sign)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            code = reap(child).get(child)
            if code is not None:
                return code
            time.sleep(POLL_S)
    return NOT_STARTED


def _signal_all(child: int, sign: signal.Signals) -> None:
    if not os.path.isdir("/proc/self"):  # noqa: PTH112
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, sign)
        return
    for pid in descendants(os.getpid()):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, sign)
