"""Runs one command and ends all its processes. It is a process of its own, between us and the server's:

    main(LIFELINE, COMMAND, [ARGUMENT …])

LIFELINE is the read end of a pipe whose write end only we hold. When that closes, because we closed it or died, the
command gets a moment to end by itself (its stdin has closed, too), then SIGTERM, then SIGKILL. So does everything that
it started, even outside its process group.
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
"""The signals for a command that does not end, and the seconds it has after each."""
LONGEST_S = sum(seconds for _, seconds in STAGES)
POLL_S = 0.02
NOT_STARTED = 126


def main() -> None:
    sys.exit(run(int(sys.argv[1]), sys.argv[2:]) & 0xFF)


def run(lifeline: int, command: list[str]) -> int:
    woken, environment = wake_on_child_exit(), read_given_environment()  # only the lifeline's end stops us
    adopt_orphans()
    try:
        child = os.posix_spawnp(command[0], command, environment, setpgroup=0, setsigdef=IGNORED)
    except OSError as fault:
        os.write(2, f"{command[0]}: {fault.strerror}".encode())
        return NOT_STARTED
    release_pipes()
    code = None
    while code is None:
        ready, _, _ = select.select([lifeline, woken], [], [])
        with suppress(BlockingIOError):
            os.read(woken, 4096)
        code = reap(child).get(child)
        if code is None and lifeline in ready:
            break
    for number, seconds in STAGES if code is None else ():
        if number is not None:
            _signal_all(child, number)
        deadline = time.monotonic() + seconds
        while code is None and time.monotonic() < deadline:
            code = reap(child).get(child)
            if code is None:
                time.sleep(POLL_S)
        if code is not None:
            break
    _signal_all(child, signal.SIGKILL)  # the rest has no purpose without the command
    sweep()
    return NOT_STARTED if code is None else code


def _signal_all(child: int, number: signal.Signals) -> None:
    if not os.path.isdir("/proc/self"):  # noqa: PTH112
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, number)
        return
    for pid in descendants(os.getpid()):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
