"""One command and its minder: a process that adopts what the command leaves behind, and ends it with the command."""

import fcntl
import os
import resource
import select
import signal
import socket
import struct
import termios
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn

from talaria.tools.sandbox.host import seccomp
from talaria.tools.sandbox.host.connection_notes import ConnectionNotes, report_connections
from talaria.tools.sandbox.host.descendants import (
    IGNORED,
    PR_SET_PDEATHSIG,
    adopt_orphans,
    control,
    reap,
    release_pipes,
    sweep,
    wake_on_child_exit,
)

NOT_STARTED = 126
MAX_DESCRIPTORS = 4096
"""More than the tool host ever has open."""
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
    """Added to ours."""
    confine: Callable[[], None]
    """Called last before the program begins: from then on it can do only what is allowed."""
    notes: int | None = None
    """Where the minder writes, in the end, what the program could not connect to; None: nobody wants to know."""


def mind(program: Program) -> int:
    """Start it under a minder and return the minder's pid. Its exit code is the program's; SIGTERM ends all of it.

    Raises `OSError` if there are too many processes.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)  # before there is a minder, so that it misses no signal
    minder = -1
    try:
        minder = os.fork()
        if minder == 0:
            _run_minder(program)
        return minder
    finally:
        if minder == 0:
            os._exit(NOT_STARTED)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)


def _run_minder(program: Program) -> NoReturn:
    control(PR_SET_PDEATHSIG, signal.SIGTERM)  # it ends with its parent
    adopt_orphans()
    os.setsid()
    ours, theirs = socket.socketpair() if program.notes is not None else (None, None)
    child = os.fork()
    if child == 0:
        _become(program, theirs)
    release_pipes()
    first = 3
    for kept in sorted(one for one in (ours.fileno() if ours else None, program.notes) if one is not None):
        os.closerange(first, kept)
        first = kept + 1
    os.closerange(first, MAX_DESCRIPTORS)  # also those of other commands
    notes = None
    if ours is not None and (listener := seccomp.receive_listener(ours)) is not None:
        notes = ConnectionNotes(listener)
    woken = wake_on_child_exit(signal.SIGTERM)
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    if notes is not None:
        poll.register(notes.listener, select.POLLIN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
    code = None
    while code is None:
        ready = dict(poll.poll())
        if notes is not None and notes.listener in ready and not notes.handle(ready[notes.listener]):
            poll.unregister(notes.listener)
        if woken in ready:
            signs = os.read(woken, 64)
            code = reap(child).get(child, -signal.SIGKILL if signal.SIGTERM in signs else None)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    sweep()
    if notes is not None and program.notes is not None:
        os.set_blocking(program.notes, False)  # it is read once we have ended; a user with many pipes gets small ones
        with suppress(BlockingIOError):
            os.write(program.notes, notes.encode())
    os._exit(code if code >= 0 else 128 - code)


def _become(program: Program, minder: socket.socket | None) -> NoReturn:
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for sign in (*IGNORED, signal.SIGCHLD):
            signal.signal(sign, signal.SIG_DFL)
        if program.has_terminal:
            fcntl.ioctl(program.descriptors[0], termios.TIOCSCTTY, 0)
        # copied above 2 first, so that none is overwritten before it is in its place
        copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3) for descriptor in program.descriptors]
        for target, descriptor in enumerate(copies):
            os.dup2(descriptor, target)
        os.chdir(program.cwd)
        for name, most in program.limits.items():
            kind = getattr(resource, f"RLIMIT_{name}")
            _, hard = resource.getrlimit(kind)
            limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (limit, limit))
        if program.niceness:
            os.nice(program.niceness)
        program.confine()
        if minder is not None:
            report_connections(minder)
        os.execve(program.argv[0], list(program.argv), dict(program.environment))  # noqa: S606
    except BaseException as fault:  # noqa: BLE001  (whatever it is: nothing of ours may run on in the command's place)
        reason = fault.strerror if isinstance(fault, OSError) else fault
        os.write(2, f"cannot start {program.argv[0]} in {program.cwd}: {reason}\n".encode("utf-8", "replace"))
    os._exit(NOT_STARTED)


def set_size(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
