"""Where no sandbox stands around the tool host (level landlock): it shuts itself in before its first command.

So it can do no more than its commands, whatever they put in its way. Two processes come of it: the tool host, and its
parent, which answers for changes of modes and the like (`metadata.py`).
"""

import errno
import os
import signal
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from talaria.tools.sandbox.host import landlock, metadata, seccomp
from talaria.tools.sandbox.host.descendants import PR_SET_DUMPABLE, control

TERMINALS = ("/dev/ptmx", "/dev/pts")
"""Only the tool host makes any."""
PR_SET_PDEATHSIG = 1


def confine(wanted: Mapping[str, Any], channel: Iterable[int]) -> Callable[[], None]:
    """Returns in the tool host: what a command has to call before it begins. Raises `OSError`.

    A command gets a domain of its own, so that it reaches neither terminals nor the tool host with its signals.
    """
    of_commands = landlock.ruleset(wanted["reads"], wanted["writes"])
    writable = (*wanted["writes"], *TERMINALS)
    of_host = landlock.ruleset(wanted["reads"], writable, (os.path.dirname(wanted["scratch"]),))
    landlock.enter(of_host)
    os.close(of_host)
    control(PR_SET_DUMPABLE, 0)  # a command is not to look into us
    ours, theirs = socket.socketpair()
    host = os.fork()
    if host != 0:
        theirs.close()
        for descriptor in {of_commands, *channel}:
            os.close(descriptor)
        _supervise(ours, host, wanted["writes"])
    ours.close()
    control(PR_SET_PDEATHSIG, signal.SIGKILL)
    with theirs:
        _install_filter(theirs)
    return lambda: landlock.enter(of_commands)


def _install_filter(supervisor: socket.socket) -> None:
    abi = landlock.abi()
    try:
        listener = seccomp.install_with_listener(seccomp.offline(abi, seccomp.NOTIFY))
    except OSError as fault:
        if fault.errno != errno.EBUSY:
            raise
        seccomp.install(seccomp.offline(abi))  # somebody outside listens already: then nothing is changed at all
        return
    socket.send_fds(supervisor, [b"+"], [listener])
    os.close(listener)


def _supervise(channel: socket.socket, host: int, roots: Iterable[str]) -> NoReturn:
    """Until the tool host has ended, and then as that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with channel:
        _, listeners, _, _ = socket.recv_fds(channel, 1, 1)
    if listeners:
        metadata.serve(listeners[0], tuple(roots), host)
    _, status = os.waitpid(host, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)
