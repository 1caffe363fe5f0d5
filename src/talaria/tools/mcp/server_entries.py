"""The entry of one MCP server, as config.yaml and a project's `.mcp.json` describe it."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from talaria.core.secret import Secret

PASSED_ON = ("PATH", "HOME", "LANG", "TERM", "TZ")
"""All that a server's process sees of our environment; its entry must name anything else."""

Seconds = Annotated[float, msgspec.Meta(gt=0)]
Transport = Literal["stdio", "http", "streamable-http", "streamable_http", "sse"]


class ToolFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """By the server's own names for its tools; `*` matches anything."""

    include: tuple[str, ...] = ()
    """Empty: all."""
    exclude: tuple[str, ...] = ()

    def admits(self, name: str) -> bool:
        is_included = not self.include or any(fnmatchcase(name, pattern) for pattern in self.include)
        return is_included and not any(fnmatchcase(name, pattern) for pattern in self.exclude)


class SandboxNeeds(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a server that is started here needs from this machine. It can reach nothing else."""

    network: tuple[str, ...] | str = ()
    """Hosts, such as api.acme.com or *.acme.com; `*` is the public internet."""
    read: tuple[str, ...] = ()
    """Additional files and folders. Relative paths start at the folder that the server starts in."""
    write: tuple[str, ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        return (self.network,) if isinstance(self.network, str) else self.network


class ServerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A server that is started here (`command`) or reached over HTTP (`url`)."""

    command: str | None = None
    args: tuple[str | int | float, ...] = ()
    env: dict[str, Secret] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, Secret] = {}
    type: Transport | None = None
    """Other programs need it. Here it follows from `command` or `url`, except for `sse`."""
    enabled: bool = True
    timeout: Seconds = 120.0
    """For one call, including the wait for a server that is away."""
    connect_timeout: Seconds = 60.0
    tools: ToolFilter = ToolFilter()
    sandbox: SandboxNeeds | bool | None = None
    """False: it runs outside, with all the person's rights. Unset: in the sandbox, unless an earlier version knew
    this entry."""

    def __post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise ValueError("an MCP server has either a `command` or a `url`")
        if self.url is not None and not re.match(r"https?://[^/\s]", self.url):
            raise ValueError("the `url` of an MCP server begins with http:// or https://")
        if self.url is not None and self.sandbox is not None:
            raise ValueError("an MCP server with a `url` runs elsewhere: `sandbox` is only for one with a `command`")

    @property
    def needs(self) -> SandboxNeeds:
        return self.sandbox if isinstance(self.sandbox, SandboxNeeds) else SandboxNeeds()

    def programs(self) -> Iterator[Path]:
        """The files that its command names."""
        for word in (self.command, *map(str, self.args)) if self.command else ():
            path = os.path.join(os.path.expanduser(self.cwd or ""), os.path.expanduser(word))  # noqa: PTH111, PTH118
            if os.path.isfile(path):  # noqa: PTH113  (a word may be anything: this never raises)
                yield Path(path).resolve()

    @property
    def place(self) -> str:
        """For people: where it is, without secrets."""
        if self.url is None:
            return " ".join([self.command or "", *map(str, self.args)])
        return re.sub(r"(?<=//)[^/@]*@", "", self.url).partition("?")[0]

    @property
    def secrets(self) -> frozenset[str]:
        return frozenset(value.reveal() for value in (*self.env.values(), *self.headers.values()))


def make_environment(entry: ServerEntry, environment: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a server's process."""
    passed = {name: environment[name] for name in PASSED_ON if name in environment}
    return {**passed, **{name: value.reveal() for name, value in entry.env.items()}}


def digest(entry: ServerEntry) -> str:
    """Differs for entries that may offer different tools. Reveals no secret."""
    kept = {
        **{name: getattr(entry, name) for name in ("command", "args", "cwd", "url")},
        **({} if entry.sandbox is None else {"sandbox": entry.sandbox}),
        **{f"env {name}": value.fingerprint() for name, value in entry.env.items()},
        **{f"header {name}": value.fingerprint() for name, value in entry.headers.items()},
    }
    return hashlib.sha256(msgspec.json.encode(kept, order="sorted")).hexdigest()[:32]


def redact_secrets(text: str, entry: ServerEntry) -> str:
    """What a server says about its failure may quote the entry's secrets."""
    if entry.url is not None:
        text = text.replace(entry.url, entry.place)
    for secret in sorted(entry.secrets, key=len, reverse=True):
        if len(secret) >= 4:
            text = text.replace(secret, "•••")
    return text
