"""Hosts: the one that a call would reach, and patterns for hosts in settings."""

from typing import Any

from talaria.core.errors import ModelCorrectable
from talaria.net.urls import parse_url
from talaria.tools.base import Claim, Scope


def claim_host(arguments: Any, _: Scope) -> Claim:
    """For a tool that opens its argument `url`. An invalid address has no host, and fails when it is opened."""
    try:
        host = parse_url(arguments.url).host
    except ModelCorrectable:
        host = ""
    return Claim(hosts=(host,), is_untrusted=True)


def host_matches(host: str, pattern: str) -> bool:
    """`*.name` matches the name itself and everything below it, `*` any host."""
    host, pattern = host.lower().rstrip("."), pattern.lower()
    if pattern.startswith("*."):
        return host == pattern[2:] or host.endswith(pattern[1:])
    return pattern in ("*", host)
