"""What a person can open in the sandbox: a host, and how a yes to it is kept.

A permission is asked about in words of ours that say its effect; what the model says of it comes second. Where a yes
lasts it is a grant (`store/permissions.py`) of the tool name `SANDBOX`, which no tool of a model has.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from talaria.model.errors import BadArguments
from talaria.store.permissions import Grant

SANDBOX = "sandbox"
"""In place of a tool's name, in grants and approvals."""
EVERYWHERE = ""
"""In place of a project, in a grant that holds in all of them."""

REGISTRIES: dict[str, tuple[str, ...]] = {
    "the Python package index": ("pypi.org", "files.pythonhosted.org"),
    "the npm registry": ("registry.npmjs.org",),
    "the Yarn registry": ("registry.yarnpkg.com",),
    "the Rust package registry": ("crates.io", "index.crates.io", "static.crates.io"),
    "the Go module proxy": ("proxy.golang.org", "sum.golang.org"),
    "Maven Central": ("repo.maven.apache.org", "repo1.maven.org"),
    "the Ruby package registry": ("rubygems.org", "index.rubygems.org"),
    "Debian's package archive": ("deb.debian.org", "security.debian.org"),
}
"""Package registries take more than one host: one yes covers them together."""

_HOST = re.compile(r"(?=.{1,253}$)(?!-)[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63})*")


class Permission(msgspec.Struct, frozen=True):
    kind: Literal["network"]
    what: tuple[str, ...]
    """Hosts."""

    @property
    def effect(self) -> str:
        """What becomes possible, as an infinitive: read by whoever decides."""
        name = next((name for name, hosts in REGISTRIES.items() if hosts == self.what), None)
        hosts = " and ".join(self.what)
        return f"reach {name} ({hosts}) over the network" if name else f"reach {hosts} over the network"

    @property
    def key(self) -> str:
        """As grants keep it."""
        return f"{self.kind} {' '.join(self.what)}"


def network(host: str) -> Permission:
    """With the other hosts of the same package registry. Raises `BadArguments` for what is not one host."""
    name = host.strip().lower().rstrip(".")
    if "*" in name:
        raise BadArguments(f"{host!r} stands for many hosts; name one of them, such as pypi.org.")
    if not _HOST.fullmatch(name) and not _is_address(name):
        raise BadArguments(f"{host!r} is not the name of a host.")
    return Permission("network", next((hosts for hosts in REGISTRIES.values() if name in hosts), (name,)))


def is_granted(permission: Permission, grants: Sequence[Grant], project: str) -> bool:
    """By all that one person has granted: here, in this conversation or everywhere."""
    open_here = {
        word
        for grant in grants
        if grant.tool == SANDBOX and (grant.session is not None or grant.cwd in (project, EVERYWHERE))
        for word in _words(grant.what, permission.kind)
    }
    return open_here.issuperset(permission.what)


def _words(what: str, kind: str) -> Iterator[str]:
    given, *words = what.split(" ")
    if given == kind:
        yield from words


def _is_address(name: str) -> bool:
    import ipaddress  # noqa: PLC0415  (names are what people reach)

    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
