"""The remotes that a repository's settings name: the only places that a credential is sent to."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from talaria.core.errors import ToolFailed
from talaria.net.urls import parse_url
from talaria.tools.git_config import parse_config

_SCP = re.compile(r"(?:(?P<user>[A-Za-z0-9._-]+)@)?(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*):(?P<path>(?!//)[^\s]+)")
_SSH = re.compile(
    r"ssh://(?:(?P<user>[A-Za-z0-9._-]+)@)?(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*)(?::(?P<port>[0-9]{1,5}))?(?P<path>/[^\s]+)"
)
_HTTPS = re.compile(r"https://(?:[^@/\\\s]*@)?(?P<place>[^/@\s]+)(?P<path>/[A-Za-z0-9._~/+-]*[A-Za-z0-9._~+-])/*")
_KEYS = re.compile(r"(?:remote\..+\.(?:url|pushurl)|submodule\..+\.url)", re.DOTALL)
_REPOSITORY = re.compile(r"/?(?P<name>[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+?)(?:\.git)?/?")


class Remote(msgspec.Struct, frozen=True):
    scheme: Literal["https", "ssh"]
    host: str
    path: str
    """As the server receives it; for https without a slash at its end."""
    port: int
    """0: the default of ssh."""
    user: str = ""
    """For ssh; empty: the one in the person's settings."""
    folder: Path = Path()
    """The `.git` folder of the repository that has this remote."""

    @property
    def address(self) -> str:
        """For people and in grants; without a login."""
        if self.scheme == "https":
            port = "" if self.port == 443 else f":{self.port}"
            return f"https://{self.host}{port}{self.path}"
        user = f"{self.user}@" if self.user else ""
        if self.port or self.path.startswith("/"):
            port = f":{self.port}" if self.port else ""
            return f"ssh://{user}{self.host}{port}{self.path if self.path.startswith('/') else f'/{self.path}'}"
        return f"{user}{self.host}:{self.path}"

    @property
    def name(self) -> str | None:
        """`OWNER/NAME`, as GitHub and the like name a repository."""
        found = _REPOSITORY.fullmatch(self.path)
        return found["name"] if found else None


def parse_remote(address: str, folder: Path = Path()) -> Remote | None:
    """None: no credential could be sent to this address."""
    if ".." in address or not address.isprintable():
        return None
    if found := _HTTPS.fullmatch(address):
        try:
            url = parse_url(f"https://{found['place']}/")
        except ToolFailed:
            return None
        return Remote("https", url.host, found["path"], url.port, folder=folder)
    if found := _SSH.fullmatch(address):
        return Remote("ssh", found["host"].lower(), found["path"], int(found["port"] or 0), found["user"] or "", folder)
    if "://" not in address and (found := _SCP.fullmatch(address)):
        return Remote("ssh", found["host"].lower(), found["path"], 0, found["user"] or "", folder)
    return None


def find_remotes(settings: Mapping[Path, bytes]) -> Iterator[Remote]:
    """`settings`: the content of repositories' settings by file, as only the person can have written them."""
    for file, content in settings.items():
        for key, value in parse_config(content):
            remote = parse_remote(value, file.parent) if _KEYS.fullmatch(key) else None
            if remote is not None:
                yield remote
