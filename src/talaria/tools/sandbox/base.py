"""The sandbox port: where a tool host runs, and how much of this machine it can reach."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from talaria.tools.sandbox.running_command import OutputSink, RunningCommand, SandboxCommand

if TYPE_CHECKING:
    from talaria.tools.sandbox.ports import Ports

Level = Literal["strict", "landlock", "seatbelt", "container", "remote", "none"]
"""What is claimed: `strict` is bubblewrap; with `none`, the person is asked about every command."""


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    processes: int = 512
    file_bytes: int = 4 << 30
    scratch_bytes: int = 1 << 30
    """Of each folder that is discarded with the session: /tmp, the private home."""
    reserve_bytes: int = 256 << 20
    """Commands are ended when the project's disk has less free space than this."""
    memory_bytes: int = 0
    """For all commands together; 0: not limited."""
    cpu_weight: int = 100
    """For all commands together, against 100 for each other program, while the processors are busy."""


class Bind(msgspec.Struct, frozen=True):
    """Something of this machine that commands see under another path. Both paths are resolved; the source exists."""

    source: Path
    at: Path
    is_writable: bool = False


class SandboxPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a session's commands see. All paths are resolved and exist."""

    project: Path
    """Readable and writable; the first command begins there."""
    root: Path | None = None
    """The root of the repository around the project, one of `writes`; None: there is none, or it is the project."""
    git_folders: tuple[Path, ...] = ()
    """Git folders outside `top`: of the repository whose linked worktree or submodule this is. Some of `writes`."""
    writes: tuple[Path, ...] = ()
    reads: tuple[Path, ...] = ()
    """In addition to the system's programs and libraries."""
    guarded: tuple[Path, ...] = ()
    """Inside what is writable, but read-only."""
    own: tuple[Path, ...] = ()
    """Code that we run ourselves, inside what is writable or around it: read-only, whatever else applies."""
    hidden: tuple[Path, ...] = ()
    """Inside what is readable, but not visible."""
    unwanted: tuple[Path, ...] = ()
    """In the project; does not exist, and is quarantined if a command makes it."""
    home: Path
    """The person's; commands see an empty one in its place."""
    has_scratch_home: bool = False
    """What is written there is discarded in the end; otherwise it cannot be written at all."""
    binds: tuple[Bind, ...] = ()
    """Only a sandbox that can mount (`strict`) shows them in their places; in others, what is writable is where it
    really is, and the rest is missing."""
    environment: Mapping[str, str] = {}
    is_read_only: bool = False
    """Including the project and `writes`."""
    has_egress: bool = False
    """Whether commands reach hosts, through the egress proxy."""
    proxied: Mapping[str, str] = {}
    """More variables that name this proxy; `{proxy}` in them stands for its host and port."""
    limits: SandboxLimits = SandboxLimits()

    @property
    def top(self) -> Path:
        """The folder in which changes to policy files are detected: files that other programs obey."""
        return self.root or self.project

    @property
    def shared(self) -> tuple[Path, ...]:
        """All folders and files that commands can write, unless `is_read_only`; none is inside another."""
        places = dict.fromkeys((self.project, *self.writes))
        return tuple(place for place in places if places.keys().isdisjoint(place.parents))


class Guarded(msgspec.Struct, frozen=True, kw_only=True):
    """The result of guarding places in a running sandbox."""

    done: tuple[Path, ...] = ()
    """Read-only from now on, also for what already runs."""
    failed: tuple[tuple[Path, str], ...] = ()
    """Perhaps not guarded, and why. Trying again does not help; a new sandbox guards all of them."""
    stopped: tuple[str, ...] = ()
    """Command lines of processes that held one of them while it was not guarded, and were killed."""
    linked: tuple[Path, ...] = ()
    """Files with a second name (hard links), under which commands may still write them."""
    redirected: tuple[Path, ...] = ()
    """Files in whose place commands see a link."""


class ToolHost(Protocol):
    """A running tool host."""

    @property
    def is_alive(self) -> bool: ...
    @property
    def listener(self) -> socket | None:
        """Where commands connect to the egress proxy, if the policy has one."""
        ...

    @property
    def ports(self) -> "Ports | None":
        """None: this level has no network of its own, so there are no ports to open."""
        ...

    def start(self, command: SandboxCommand, sink: OutputSink) -> RunningCommand: ...
    async def guard(self, places: Sequence[Path], links: Mapping[Path, Path] = ...) -> Guarded:
        """Make files and folders in what is writable read-only, while commands run. Cheap if they already are.
        `links`: by guarded file, the link in the sandbox that commands see in its place."""
        ...

    async def share(self, place: Path, guarded: Sequence[Path] = ()) -> str:
        """Let commands write to a folder or file from now on, except for what is guarded in it. Returns why that cannot
        be done while they run; empty: it is done."""
        ...

    async def withdraw(self, place: Path) -> str:
        """Undo `share`: even a process with an open file there can no longer write. Returns why that cannot be done."""
        ...

    def find_unguarded(self, places: Sequence[Path]) -> tuple[Path, ...]:
        """Which of these guarded places have lost their guard, because somebody outside has replaced them; none at
        levels without guards. Reads a file of the kernel: not on the loop."""
        ...


class ProgramLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """How to start one program in a sandbox, with any standard input, output and error."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    cwd: str = "/"
    pass_fds: Sequence[int] = ()
    channel: socket | None = None
    """Brings the listening socket of the proxy when the program is about to begin."""
    other_end: socket | None = None
    """Of the channel; close it once the program has started, so that its end is noticed."""
    listener: socket | None = None
    """The same socket, if it is known beforehand."""


class ProgramSandbox(Protocol):
    """Runs one program that uses its own pipes, where `Sandbox` runs the commands of a session."""

    @property
    def level(self) -> Level: ...
    def program(self, view: SandboxPolicy, argv: Sequence[str], cwd: str) -> AbstractAsyncContextManager[ProgramLaunch]:
        """Valid until the context ends; end the program first. The folder `view.project` is its own. Raises
        `ToolFailed`."""
        ...


class Sandbox(Protocol):
    @property
    def level(self) -> Level: ...
    @property
    def about(self) -> str:
        """What a person should know about it, in a few words."""
        ...

    def open(self, view: SandboxPolicy) -> AbstractAsyncContextManager[ToolHost]:
        """A tool host inside; when the context ends, nothing of it is left. Raises `ToolFailed`."""
        ...
