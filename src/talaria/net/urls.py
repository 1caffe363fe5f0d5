"""URLs, and the addresses that may be dialled for them.

A URL is parsed once. What is checked, dialled and shown is put together from its parts, so no two parsers can disagree
about its host. A host name is looked up once, and every address is checked against IANA's registries of special
addresses; we have our own list because Python's `is_global` differs from release to release.
"""

import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Literal
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from talaria.core.aio import in_thread
from talaria.core.errors import BadConfig, ToolFailed

MAX_URL_CHARS = 8_000
MAX_HOST_CHARS = 253
_PORTS = {"http": 80, "https": 443}

_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*+):(?://(?P<authority>[^/?#]*+)(?P<path>[^?#]*+)(?P<query>\?[^#]*+)?)?", re.IGNORECASE
)
_AUTHORITY = re.compile(
    r"(?:\[(?P<v6>[0-9a-f:.]++)\]|(?P<name>[^:\[\]@]++))(?::(?P<port>[0-9]{1,5}+)?)?", re.IGNORECASE
)
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""With a last label like this, the C library reads the whole name as an IPv4 address, in unexpected notations."""
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


class WebUrl(msgspec.Struct, frozen=True):
    scheme: Literal["http", "https"]
    host: str
    """A name in lower-case ASCII without a trailing dot, or an address (IPv6 without brackets)."""
    port: int
    target: str
    """Path and query, ASCII without spaces."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.target}"

    @property
    def literal(self) -> IPv4Address | IPv6Address | None:
        """The host, if it is an address."""
        is_one = ":" in self.host or self.host.rpartition(".")[2].isdigit()
        return ip_address(self.host) if is_one else None

    def join(self, location: str) -> "WebUrl":
        """Where a redirect leads. Raises `ToolFailed`."""
        try:
            return parse_url(urljoin(str(self), _encodable(location).strip(" ")))
        except ValueError as fault:
            raise ToolFailed(f"{self.host} redirects to something that is not an address.") from fault


def parse_url(text: str) -> WebUrl:
    """Raises `ToolFailed`."""
    text = _encodable(text).strip(" ")
    if len(text) > MAX_URL_CHARS:
        raise ToolFailed(f"The address is longer than {MAX_URL_CHARS:,} characters.")
    if _CONTROLS.search(text):
        raise ToolFailed("The address contains control characters.")
    parts = _URL.match(text)
    if parts is None:
        raise ToolFailed(f"{text[:200]!r} is not an address; it must begin with https:// or http://.")
    scheme = parts["scheme"].lower()
    if scheme not in ("http", "https") or parts["authority"] is None:
        raise ToolFailed(f"Only addresses that begin with https:// or http:// can be fetched, not {scheme[:20]}:.")
    if "@" in parts["authority"]:
        raise ToolFailed("Addresses that contain a user name or password are not fetched.")
    authority = _AUTHORITY.fullmatch(parts["authority"])
    if authority is None:
        raise ToolFailed("The address has no valid host name.")
    port = int(authority["port"] or _PORTS[scheme])
    if not 0 < port < 65536:
        raise ToolFailed(f"{port} is not a valid port.")
    if not authority["v6"]:
        host = parse_host(authority["name"])
    else:
        try:
            host = IPv6Address(authority["v6"]).compressed
        except ValueError as fault:
            raise ToolFailed(f"{authority['v6'][:80]!r} is not a valid address.") from fault
    path = quote(parts["path"] or "/", safe="/%:@!$&'()*+,;=~")
    query = quote(parts["query"] or "", safe="?/%:@!$&'()*+,;=~")
    return WebUrl(scheme, host, port, path + query)


def _encodable(text: str) -> str:
    """Without lone surrogates, which headers and models may contain."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def parse_host(text: str) -> str:
    """A host name or IPv4 address in canonical form. Raises `ToolFailed`."""
    name = text
    if not text.isascii():
        if len(text) > MAX_HOST_CHARS:
            raise ToolFailed("The host name is too long.")
        import idna  # noqa: PLC0415  (its tables are large; few names need them)

        try:
            name = idna.encode(text, uts46=True).decode()
        except UnicodeError as fault:
            raise ToolFailed(f"{text!r} is not a valid host name.") from fault
    name = name.lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > MAX_HOST_CHARS or not all(map(_LABEL.fullmatch, labels)):
        raise ToolFailed(f"{text[:80]!r} is not a valid host name.")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return str(IPv4Address(name))
        except ValueError as fault:
            raise ToolFailed(f"{name[:80]!r} is not a valid host name.") from fault
    return name


def proxy_for(url: str) -> str | None:
    """The proxy for this URL in the environment (`HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY` and so on).

    Raises `BadConfig` for a proxy that we cannot use, because its owner may not want it bypassed.
    """
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415  (20 ms that only the first request pays)

    parts = urlsplit(url)
    proxies = getproxies()
    if not proxies or proxy_bypass(parts.netloc):
        return None
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and not proxy.startswith(("http://", "https://")):
        name = f"{parts.scheme}_proxy" if parts.scheme in proxies else "all_proxy"
        raise BadConfig(f"{name.upper()} is not a usable proxy: it must have the form http://host:port.")
    return proxy


Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_SPECIAL_V4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared; Alibaba's metadata
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's host, public only by its address
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
"""The rest is loopback, unspecified, link-local, ULA, multicast, local NAT64, or unassigned."""
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
"""The third quarter of an address whose last quarter is an IPv4 address."""


def is_public(address: Address) -> bool:
    """An address that embeds another one is judged by that one. Teredo and 6to4 have no servers, so they are not
    public."""
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
    """Where a fetch may go: to the public internet, and to what is listed here."""

    names: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    def permits(self, host: str, address: Address) -> bool:
        if host in self.names or is_public(address):
            return True
        plain = getattr(address, "ipv4_mapped", None) or address
        return any(plain in network for network in self.networks)


EVERYWHERE = Allowance(networks=(IPv4Network("0.0.0.0/0"), IPv6Network("::/0")))
"""For addresses that the operator named."""


def parse_allowance(entries: tuple[str, ...]) -> Allowance:
    """Raises `BadConfig`."""
    names: list[str] = []
    networks: list[Network] = []
    for entry in entries:
        try:
            networks.append(ip_network(entry.strip("[]")))
            continue
        except ValueError:
            pass
        try:
            names.append(parse_host(entry))
        except ToolFailed as fault:
            raise BadConfig(f"web.allow_private: {entry!r} is not a host name, address or network.") from fault
    return Allowance(frozenset(names), tuple(networks))


Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""Returns the addresses of a host name; none if it is unknown."""


async def system_lookup(host: str) -> Sequence[str]:
    """In a thread that may be abandoned, so that an unresponsive name server blocks nothing else."""

    def ask() -> list[str]:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return []
        return list(dict.fromkeys(str(place[0]) for *_, place in found))

    return await in_thread(ask)


async def vet_addresses(url: WebUrl, allowance: Allowance, lookup: Lookup) -> tuple[str, ...]:
    """The addresses that may be dialled for this host; none if its name is unknown here. Raises `ToolFailed` if any of
    them is not allowed, because others decide which one is tried first.
    """
    try:
        addresses = [url.literal] if url.literal else [ip_address(found) for found in await lookup(url.host)]
    except ValueError as fault:
        raise ToolFailed(f"The name server gave an invalid address for {url.host}.") from fault
    if not all(allowance.permits(url.host, address) for address in addresses):
        raise ToolFailed(f"{url.host} is not on the public internet, so it is not fetched.")
    return tuple(map(str, addresses))
