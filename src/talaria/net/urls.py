"""Addresses of pages, taken apart once. What is checked, dialled and shown is put together from the parts again, so
that no two readers of one text can disagree about its host.

Which proxy the environment names for an address (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`).
"""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Literal
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec

from talaria.core.errors import BadConfig, ToolFailed

MAX_URL_CHARS = 8_000
MAX_HOST_CHARS = 253
_PORTS = {"http": 80, "https": 443}

_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*+):(?://(?P<place>[^/?#]*+)(?P<path>[^?#]*+)(?P<query>\?[^#]*+)?)?", re.IGNORECASE
)
_PLACE = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]++)\]|(?P<name>[^:\[\]@]++))(?::(?P<port>[0-9]{1,5}+)?)?", re.IGNORECASE)
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""A last label like this makes the C library read the whole name as an IPv4 address, in forms that nobody expects."""
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


class WebUrl(msgspec.Struct, frozen=True):
    scheme: Literal["http", "https"]
    host: str
    """A name in lower-case ASCII without a dot at its end, or an address (IPv6 without brackets)."""
    port: int
    target: str
    """Path and query, ASCII without spaces."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.target}"

    @property
    def literal(self) -> IPv4Address | IPv6Address | None:
        """The address, where the host is one."""
        is_one = ":" in self.host or self.host.rpartition(".")[2].isdigit()
        return ip_address(self.host) if is_one else None

    def joined(self, location: str) -> "WebUrl":
        """Where a redirect leads. Raises `ToolFailed`."""
        try:
            return parse(urljoin(str(self), _encodable(location).strip(" ")))
        except ValueError as fault:
            raise ToolFailed(f"{self.host} redirects to something that is no address.") from fault


def parse(text: str) -> WebUrl:
    """Raises `ToolFailed`."""
    text = _encodable(text).strip(" ")
    if len(text) > MAX_URL_CHARS:
        raise ToolFailed(f"The address is longer than {MAX_URL_CHARS:,} characters.")
    if _CONTROLS.search(text):
        raise ToolFailed("The address holds control characters.")
    parts = _URL.match(text)
    if parts is None:
        raise ToolFailed(f"{text[:200]!r} is no address; it must begin with https:// or http://.")
    scheme = parts["scheme"].lower()
    if scheme not in ("http", "https") or parts["place"] is None:
        raise ToolFailed(f"Only addresses that begin with https:// or http:// can be fetched, not {scheme[:20]}:.")
    host, port = _place(parts["place"], _PORTS[scheme])
    path = quote(parts["path"] or "/", safe="/%:@!$&'()*+,;=~")
    query = quote(parts["query"] or "", safe="?/%:@!$&'()*+,;=~")
    return WebUrl(scheme, host, port, path + query)


def _encodable(text: str) -> str:
    """Without lone surrogates: headers and models can bring them."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _place(text: str, usual_port: int) -> tuple[str, int]:
    if "@" in text:
        raise ToolFailed("An address with a user name or password in it is not fetched.")
    parts = _PLACE.fullmatch(text)
    if parts is None:
        raise ToolFailed("The address has no valid host name.")
    port = int(parts["port"] or usual_port)
    if not 0 < port < 65536:
        raise ToolFailed(f"{port} is no port.")
    return _v6(parts["v6"]) if parts["v6"] else host_of(parts["name"]), port


def host_of(text: str) -> str:
    """A host name or IPv4 address in its one form. Raises `ToolFailed`."""
    name = (text if text.isascii() else _a_labels(text)).lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > MAX_HOST_CHARS or not all(map(_LABEL.fullmatch, labels)):
        raise ToolFailed(f"{text[:80]!r} is no valid host name.")
    if _NUMBER.fullmatch(labels[-1]):
        return _v4(name)
    return name


def _a_labels(text: str) -> str:
    if len(text) > MAX_HOST_CHARS:
        raise ToolFailed("The host name is too long.")
    import idna  # noqa: PLC0415  (its tables are large; few names need them)

    try:
        return idna.encode(text, uts46=True).decode()
    except UnicodeError as fault:
        raise ToolFailed(f"{text!r} is no valid host name.") from fault


def _v4(name: str) -> str:
    try:
        return str(IPv4Address(name))
    except ValueError as fault:
        raise ToolFailed(f"{name[:80]!r} is no valid host name.") from fault


def _v6(text: str) -> str:
    try:
        return IPv6Address(text).compressed
    except ValueError as fault:
        raise ToolFailed(f"{text[:80]!r} is no valid address.") from fault


def proxy_for(url: str) -> str | None:
    """Raises `BadConfig` for a proxy that we cannot use: going around it might not be what its owner wants."""
    parts = urlsplit(url)
    proxies = getproxies()
    if not proxies or proxy_bypass(parts.netloc):
        return None
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and not proxy.startswith(("http://", "https://")):
        name = f"{parts.scheme}_proxy" if parts.scheme in proxies else "all_proxy"
        raise BadConfig(f"{name.upper()} is no proxy that can be used: it must have the form http://host:port.")
    return proxy
