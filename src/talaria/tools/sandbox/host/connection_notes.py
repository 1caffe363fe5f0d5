"""What a command tried to connect to that is not in the sandbox: ports of this machine, socket files, other machines.

A filter reports each `connect` to the command's minder, which notes the destination and lets the call continue. So the
report afterwards says what was tried, whatever the program printed. No decision depends on these notes: they only
inform.

A signal that reaches the caller before the minder has received the report interrupts the call (EINTR), which seldom
happens without a filter. So the minder receives it first and looks afterwards.
"""

import json
import os
import select
import socket
import stat
import struct
from contextlib import suppress

from talaria.tools.sandbox.host import seccomp

MAX_ATTEMPTS = 32
"""Different ones, for one command."""
MAX_PATH_CHARS = 256
"""Of a socket, so that all attempts fit into a pipe."""
MAX_LOOKS = 100
"""At the sockets of the sandbox, for one command, because each takes milliseconds. If a command tries closed ports more
often, nothing is noted."""
_MAX_ADDRESS_BYTES = 128
_LISTENS = "0A"
_NAME_LOOKUP = 53
"""Libraries look up names on this port, and programs say themselves which name was not found."""
_LOOPBACK_IPV4, _ANY_IPV4 = 127, bytes(4)
_HERE_IPV6 = (bytes(16), bytes(15) + b"\x01")
_IPV4_INSIDE = bytes(10) + b"\xff\xff"


def report_connections(channel: socket.socket) -> None:
    """A command calls it before it begins. If the kernel cannot do it, the channel ends and nothing is reported."""
    with channel, suppress(OSError):
        seccomp.send_listener(channel, seccomp.report_connecting())


class ConnectionNotes:
    """Of one command."""

    def __init__(self, listener: int) -> None:
        self.listener = listener
        self._failing: dict[str, None] = {}
        self._served: set[int] = set()
        self._looks = 0

    def handle(self, ready: int) -> bool:
        """`ready`: what `poll` returned for the listener. False: no process is left that could connect."""
        if not ready & select.POLLIN:
            return False
        with suppress(OSError):  # the caller has ended meanwhile, or may not be inspected
            notice = seccomp.receive(self.listener)
            try:
                with suppress(OSError, ValueError, struct.error):
                    self._note(notice)
            finally:
                seccomp.let_continue(self.listener, notice)
        return True

    def _note(self, notice: seccomp.ReportedCall) -> None:
        _, at, size, *_ = notice.arguments
        memory = os.open(f"/proc/{notice.thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            seccomp.check_waiting(self.listener, notice)
            address = os.pread(memory, min(size, _MAX_ADDRESS_BYTES), at & seccomp.ADDRESS_BITS)
        finally:
            os.close(memory)
        (family,) = struct.unpack_from("=H", address)
        if family == socket.AF_UNIX:
            path = address[2:].partition(b"\0")[0]
            if not path:  # without a path, those outside cannot be reached
                return
            if not path.startswith(b"/"):
                path = os.path.join(os.fsencode(os.readlink(f"/proc/{notice.thread}/cwd")), path)
            shown = os.path.normpath(path).decode("utf-8", "replace")
            name, is_there = f"socket {shown}", not shown.isprintable() or len(shown) > MAX_PATH_CHARS
            with suppress(OSError):
                is_there = is_there or stat.S_ISSOCK(os.stat(path).st_mode)
        elif family in (socket.AF_INET, socket.AF_INET6):
            (port,) = struct.unpack_from("!H", address, 2)
            if port in (0, _NAME_LOOKUP):
                return
            host = address[4:8] if family == socket.AF_INET else address[8:24].removeprefix(_IPV4_INSIDE)
            if len(host) == len(_ANY_IPV4):
                is_here, shown = host[0] == _LOOPBACK_IPV4 or host == _ANY_IPV4, socket.inet_ntop(socket.AF_INET, host)
            else:
                is_here, shown = host in _HERE_IPV6, f"[{socket.inet_ntop(socket.AF_INET6, host)}]"
            name = f"port {port}" if is_here else f"host {shown}:{port}"
            if is_here and port not in self._served and self._looks < MAX_LOOKS:
                self._looks += 1
                self._served |= _list_served()
            is_there = is_here and port in self._served  # once it was, nobody looks again
        else:
            return
        if is_there:
            self._failing.pop(name, None)  # the program waited for a server, which has started
        elif len(self._failing) < MAX_ATTEMPTS:
            self._failing[name] = None

    def encode(self) -> bytes:
        """As JSON; null if there was too much to look at."""
        return json.dumps([*self._failing] if self._looks < MAX_LOOKS else None, ensure_ascii=False).encode()


def _list_served() -> set[int]:
    """The ports on which processes of this sandbox listen, at any address."""
    served: set[int] = set()
    for protocol, table, counts in (("TCP", "tcp", "sockstat"), ("TCP6", "tcp6", "sockstat6")):
        with suppress(OSError):
            with open(f"/proc/self/net/{counts}", encoding="ascii") as file:
                used = next((int(line.split()[2]) for line in file if line.startswith(f"{protocol}: inuse ")), 0)
            if not used:
                continue  # the kernel would go through all of its table, to find nothing
            with open(f"/proc/self/net/{table}", encoding="ascii") as file:
                next(file)
                rows = (line.split(maxsplit=4) for line in file)
                served.update(int(local.rpartition(":")[2], 16) for _, local, _, state, _ in rows if state == _LISTENS)
    return served
