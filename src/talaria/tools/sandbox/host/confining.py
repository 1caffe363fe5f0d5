"""Where no sandbox is around the tool host (level landlock), it confines itself before its first command.

So it can do no more than its commands, whatever they put in its way. This makes two processes: the tool host, and its
parent, which carries out changes of modes and the like (`metadata.py`).
"""

import errno
import os
import signal
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from talaria.tools.sandbox.host import landlock, metadata, seccomp
from talaria.tools.sandbox.host.descendants import PR_SET_DUMPABLE, PR_SET_PDEATHSIG, control

TERMINALS = ("/dev/ptmx", "/dev/pts")
"""Only the tool host makes terminals."""


def confine(wanted: Mapping[str, Any], channel: Iterable[int]) -> Callable[[], None]:
    """Returns in the tool host, with what a command must call before it begins. Raises `OSError`.

    A command gets a domain of its own, so that it reaches no terminals, and cannot signal the tool host.
    """
    of_commands = landlock.ruleset(wanted["reads"], wanted["writes"])
    writable = (*wanted["writes"], *TERMINALS)
    of_host = landlock.ruleset(wanted["reads"], writable, (os.path.dirname(wanted["scratch"]),))
    landlock.enter(of_host)
    os.close(of_host)
    control(PR_SET_DUMPABLE, 0)  # commands must not look into us
    ours, theirs = socket.socketpair()
    host = os.fork()
    if host != 0:  # this process answers for metadata until the tool host has ended, and then ends as that
        theirs.close()
        for descriptor in {of_commands, *channel}:
            os.close(descriptor)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        listener = seccomp.receive_listener(ours)
        if listener is not None:
            metadata.serve(listener, tuple(wanted["writes"]), host)
        _, status = os.waitpid(host, 0)
        code = os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)
    ours.close()
    control(PR_SET_PDEATHSIG, signal.SIGKILL)
    with theirs:
        abi = landlock.abi()
        try:
            seccomp.send_listener(theirs, seccomp.offline(abi, seccomp.NOTIFY))
        except OSError as fault:
            if fault.errno != errno.EBUSY:
                raise
            seccomp.install(seccomp.offline(abi))  # another process already listens: then no metadata can be changed
    return lambda: landlock.enter(of_commands)
