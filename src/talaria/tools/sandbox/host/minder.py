"""One command and the process that minds it: adopts what the command leaves behind, and ends it with the command."""

import fcntl
import os
import resource
import select
import signal
import socket
import struct
import termios
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn

from talaria.tools.sandbox.host.connection_notes import ConnectionNotes, receive_listener, report_connections
from talaria.tools.sandbox.host.descendants import (
    UNHEEDED,
    adopt_orphans,
    control,
    let_go_of_pipes,
    reap,
    sweep,
    wake_on_child_exit,
)

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
    notes: int | None = None
    """Where the minder writes, in the end, what the program could not connect to; None: nobody asks."""


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
    ours, theirs = socket.socketpair() if program.notes is not None else (None, None)
    child = os.fork()
    if child == 0:
        _become(program, theirs)
    let_go_of_pipes()
    _close_descriptors_but([one for one in (ours.fileno() if ours else None, program.notes) if one is not None])
    notes = None
    if ours is not None and (listener := receive_listener(ours)) is not None:
        notes = ConnectionNotes(listener)
    code = _wait_for_child(child, notes)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    sweep()
    if notes is not None and program.notes is not None:
        os.write(program.notes, notes.encode())
    os._exit(code if code >= 0 else 128 - code)


def _close_descriptors_but(kept: Iterable[int]) -> None:
    """Those of other commands, too."""
    first = 3
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, MAX_DESCRIPTORS)


def _wait_for_child(child: int, notes: ConnectionNotes | None) -> int:
    """The exit code, once it has ended by itself or was made to."""
    woken = wake_on_child_exit(signal.SIGTERM)
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    if notes is not None:
        poll.register(notes.listener, select.POLLIN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
    while True:
        ready = dict(poll.poll())
        if notes is not None and notes.listener in ready and not notes.handle(ready[notes.listener]):
            poll.unregister(notes.listener)
        if woken in ready:
            signs = os.read(woken, 64)
            ended = reap(child)
            if child in ended:
                return ended[child]
            if signal.SIGTERM in signs:
                return -signal.SIGKILL


def _become(program: Program, minder: socket.socket | None) -> NoReturn:
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
        if minder is not None:
            report_connections(minder)
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
