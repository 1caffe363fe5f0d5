"""Which addresses are on the public internet, by IANA's registries of special ones. Python's `is_global` differs from
release to release; a list of our own does not.

From a host name to the addresses that may be dialled: looked up once, and every single one checked.
"""

import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import msgspec

from talaria.core.aio import in_thread
from talaria.core.errors import BadConfig, ToolFailed
from talaria.net.urls import WebUrl, host_of

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_SPECIAL_V4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared; Alibaba's metadata
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's host, public only by its number
        "169.254.0.0/16",  # link-local; the metadata of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
_GLOBAL_V6 = IPv6Network("2000::/3")
"""All else is loopback, unspecified, link-local, ULA, multicast, local NAT64, or not given out."""
_SPECIAL_V6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)
"""The third quarter of an address whose last one is IPv4."""


def is_public(address: Address) -> bool:
    """An address that carries another one is judged by that. Teredo and 6to4, where nobody serves, are not public."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _SPECIAL_V4)
    if address.scope_id is not None:
        return False
    last = IPv4Address(int(address) & 0xFFFFFFFF)
    if address.ipv4_mapped is not None or address in _NAT64:
        return is_public(last)
    if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP and not is_public(last):
        return False
    return address in _GLOBAL_V6 and not any(address in network for network in _SPECIAL_V6)


class Allowance(msgspec.Struct, frozen=True):
    """Where a fetch may go: to the public internet, and to what is listed."""

    names: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    def permits(self, host: str, address: Address) -> bool:
        if host in self.names or is_public(address):
            return True
        plain = getattr(address, "ipv4_mapped", None) or address
        return any(plain in network for network in self.networks)


EVERYWHERE = Allowance(networks=(IPv4Network("0.0.0.0/0"), IPv6Network("::/0")))
"""For addresses that the operator named."""


def allowance(entries: tuple[str, ...]) -> Allowance:
    """Raises `BadConfig`."""
    read = [_entry(entry) for entry in entries]
    return Allowance(
        frozenset(entry for entry in read if isinstance(entry, str)),
        tuple(entry for entry in read if not isinstance(entry, str)),
    )


def _entry(entry: str) -> str | Network:
    try:
        return ip_network(entry.strip("[]"))
    except ValueError:
        pass
    try:
        return host_of(entry)
    except ToolFailed as fault:
        raise BadConfig(f"web.allow_private: {entry!r} is no host name, address or network.") from fault


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
