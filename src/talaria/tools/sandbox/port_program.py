"""Opens sockets in the network namespace of a running sandbox, and passes them on. A program of its own, because only a
process with a single thread can enter a user namespace.

Its standard input is a socket. Each message there is `listen PORT` or `connect PORT`; the answer is `ok` with sockets,
or the reason why not. It ends when the other end is closed. Imports nothing of ours.
"""

import ctypes
import fcntl
import os
import socket
import sys

CONNECT_S = 5.0
BACKLOG = 64
MAX_ORDER_BYTES = 64
_NS_GET_USERNS = 0xB701
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))

libc = ctypes.CDLL(None, use_errno=True)


def join(namespace: int, kind: int) -> None:
    if libc.setns(namespace, kind) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def listen(port: int) -> list[socket.socket]:
    """On both loopback addresses, or on the one that exists."""
    made: list[socket.socket] = []
    fault: OSError | None = None
    for family, address in _LOOPBACKS:
        try:
            made.append(socket.create_server((address, port), family=family, backlog=BACKLOG))
        except OSError as failed:
            fault = fault or failed
    if not made and fault is not None:
        raise fault
    return made


def connect(port: int) -> list[socket.socket]:
    fault = OSError(0, "no address")
    for _, address in _LOOPBACKS:
        try:
            return [socket.create_connection((address, port), CONNECT_S)]
        except OSError as failed:
            fault = failed
    raise fault


def main() -> None:
    orders = socket.socket(fileno=os.dup(0))
    network = os.open(f"/proc/{int(sys.argv[1])}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    join(fcntl.ioctl(network, _NS_GET_USERNS), _CLONE_NEWUSER)
    join(network, _CLONE_NEWNET)
    while order := orders.recv(MAX_ORDER_BYTES):
        what, port = order.decode("ascii").split()
        try:
            made = {"listen": listen, "connect": connect}[what](int(port))
        except OSError as fault:
            orders.send((fault.strerror or str(fault)).encode())
            continue
        socket.send_fds(orders, [b"ok"], [one.fileno() for one in made])
        for one in made:
            one.close()


if __name__ == "__main__":
    main()
