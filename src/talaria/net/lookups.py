"""From a host name to the addresses that may be dialled: looked up once, and every single one checked."""

import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address

from talaria.core.errors import ToolFailed
from talaria.net.addresses import Address, Allowance
from talaria.net.urls import WebUrl
from talaria.waiting import in_thread

Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""The addresses of a host name; none if it is not known."""


async def system_lookup(host: str) -> Sequence[str]:
    """In a thread that may be abandoned: a name server that does not answer holds up nobody else."""

    def ask() -> list[str]:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return []
        return list(dict.fromkeys(str(place[0]) for *_, place in found))

    return await in_thread(ask)


async def vetted(url: WebUrl, allowance: Allowance, lookup: Lookup) -> tuple[str, ...]:
    """What may be dialled for this host; nothing if its name is not known here. Raises `ToolFailed` if any of its
    addresses is out of bounds: which one is tried first is not ours to say.
    """
    literal = url.literal
    addresses = [literal] if literal else [_read(found, url.host) for found in await lookup(url.host)]
    if not all(allowance.permits(url.host, address) for address in addresses):
        raise ToolFailed(f"{url.host} is not on the public internet; it is not fetched.")
    return tuple(map(str, addresses))


def _read(found: str, host: str) -> Address:
    try:
        return ip_address(found)
    except ValueError as fault:
        raise ToolFailed(f"The address of {host} cannot be read.") from fault
