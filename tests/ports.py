"""Ports that nobody else gets while a test needs them."""

import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def reserved_port(host: str = "127.0.0.1") -> Generator[int]:
    """Connections to it are refused until a server of the test listens there, which it may do as often as it likes.

    It is bound and not listened on: so nobody else is given it, and a server that asks for it gets it all the same
    (with `SO_REUSEADDR`, which servers set). Elsewhere than on Linux it would not, so there the port is only free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # "::" is every address, also of IPv4
        held.bind((host, 0))
        port = int(held.getsockname()[1])
        if sys.platform != "linux":
            held.close()
        yield port
