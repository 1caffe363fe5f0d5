"""The sandbox port: a place where a tool host runs, and how much of this machine is within its reach."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from socket import socket
from typing import Literal, Protocol

import msgspec

from talaria.tools.sandbox.commands import Command, Sink, Started

Level = Literal["strict", "landlock", "seatbelt", "container", "remote", "none"]
"""What is claimed: `strict` is bubblewrap; `none` runs on the machine as it is, so every command is asked about."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    processes: int = 512
    file_bytes: int = 4 << 30
    scratch_bytes: int = 1 << 30
    """Of each of the folders that are thrown away with the session: /tmp, the private home."""
    reserve_bytes: int = 256 << 20
    """When the disk of the project has less room than this, commands are ended."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a session's commands see. All paths are resolved and exist."""

    project: Path
    """Readable and writable; where the first command begins."""
    writes: tuple[Path, ...] = ()
    reads: tuple[Path, ...] = ()
    """Besides the system's own programs and libraries."""
    guarded: tuple[Path, ...] = ()
    """Inside of what is writable, and nevertheless only to be read."""
    own: tuple[Path, ...] = ()
    """Code that we run ourselves, inside of what is writable or around it: only to be read, whatever else is said."""
    hidden: tuple[Path, ...] = ()
    """Inside of what is readable, and nevertheless not there."""
    unwanted: tuple[Path, ...] = ()
    """In the project; does not exist, and moves to quarantine when a command has made it."""
    home: Path
    """Of the person; commands see an empty one in its place."""
    environment: Mapping[str, str] = {}
    is_read_only: bool = False
    """The project, too, and `writes`."""
    has_egress: bool = False
    """Whether there is a way out, through a proxy of ours."""
    limits: Limits = Limits()


class Host(Protocol):
    """A tool host that runs."""

    @property
    def is_alive(self) -> bool: ...
    @property
    def listener(self) -> socket | None:
        """Where commands go for a way out, if the view gives them one."""
        ...

    def start(self, command: Command, sink: Sink) -> Started: ...


class Sandbox(Protocol):
    @property
    def level(self) -> Level: ...
    @property
    def about(self) -> str:
        """What a person should know of it, in few words."""
        ...

    def opened(self, view: View) -> AbstractAsyncContextManager[Host]:
        """A tool host in it; when the context ends, nothing of it is left. Raises `ToolFailed`."""
        ...
