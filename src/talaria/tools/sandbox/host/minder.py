"""One command and the process that minds it: adopts what the command leaves behind, and ends it with the command."""

import fcntl
import os
import resource
import signal
import struct
import termios
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn

from talaria.tools.sandbox.host.descendants import UNHEEDED, adopt_orphans, control, let_go_of_pipes, reap, sweep

NOT_STARTED = 126
MAX_DESCRIPTORS = 4096
"""More than the tool host ever has open."""
PR_SET_PDEATHSIG = 1
_AWAITED = frozenset({signal.SIGCHLD, signal.SIGTERM})


class Program(NamedTuple):
    """What a minder starts."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    cwd: str
    descriptors: tuple[int, int, int]
    has_terminal: bool
    limits: Mapping[str, int]
    """By the name of the resource: `FSIZE`, `NPROC`."""
    niceness: int
    """More than ours."""
    confine: Callable[[], None]
    """Called last before the program begins: from then on only what is allowed can be done."""


def mind(program: Program) -> int:
    """Start it behind a minder; the minder's pid. Its exit code is the program's; SIGTERM ends all of it.

    Raises `OSError`, when there are too many processes.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)  # before there is a minder: no word to it is lost
    minder = -1
    try:
        minder = os.fork()
        if minder == 0:
            _live(program)
        return minder
    finally:
        if minder == 0:
            os._exit(NOT_STARTED)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)


def _live(program: Program) -> NoReturn:
    control(PR_SET_PDEATHSIG, signal.SIGTERM)  # it ends with its parent
    adopt_orphans()
    os.setsid()
    child = os.fork()
    if child == 0:
        _become(program)
    let_go_of_pipes()
    os.closerange(3, MAX_DESCRIPTORS)  # of other commands
    code = _wait_for_child(child)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    sweep()
    os._exit(code if code >= 0 else 128 - code)


def _wait_for_child(child: int) -> int:
    """The exit code, once it has ended by itself or was made to."""
    while True:
        sign = signal.sigwait(_AWAITED)
        ended = reap(child)
        if child in ended:
            return ended[child]
        if sign == signal.SIGTERM:
            return -signal.SIGKILL


def _become(program: Program) -> NoReturn:
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for sign in (*UNHEEDED, signal.SIGCHLD):
            signal.signal(sign, signal.SIG_DFL)
        if program.has_terminal:
            fcntl.ioctl(program.descriptors[0], termios.TIOCSCTTY, 0)
        for target, descriptor in enumerate(_out_of_the_way(program.descriptors)):
            os.dup2(descriptor, target)
        os.chdir(program.cwd)
        for name, value in program.limits.items():
            _limit(getattr(resource, f"RLIMIT_{name}"), value)
        if program.niceness:
            os.nice(program.niceness)
        program.confine()
        os.execve(program.argv[0], list(program.argv), dict(program.environment))  # noqa: S606
    except BaseException as fault:  # noqa: BLE001  (whatever it is: nothing of ours may go on in the command's place)
        reason = fault.strerror if isinstance(fault, OSError) else fault
        os.write(2, f"cannot start {program.argv[0]} in {program.cwd}: {reason}\n".encode("utf-8", "replace"))
    os._exit(NOT_STARTED)


def _out_of_the_way(descriptors: tuple[int, int, int]) -> list[int]:
    """Above 2, so that none is overwritten before it was copied."""
    return [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3) for descriptor in descriptors]


def _limit(kind: int, value: int) -> None:
    _, most = resource.getrlimit(kind)
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(kind, (value, value))


def set_size(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
