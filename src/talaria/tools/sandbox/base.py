"""The sandbox port: a place where a tool host runs, and how much of this machine is within its reach."""

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
"""What is claimed: `strict` is bubblewrap; `none` runs on the machine as it is, so every command is asked about."""


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    processes: int = 512
    file_bytes: int = 4 << 30
    scratch_bytes: int = 1 << 30
    """Of each of the folders that are thrown away with the session: /tmp, the private home."""
    reserve_bytes: int = 256 << 20
    """When the disk of the project has less room than this, commands are ended."""
    memory_bytes: int = 0
    """Of all commands together; 0: not limited."""
    cpu_weight: int = 100
    """Of all commands together, against 100 of each other program, while the processors are busy."""


class Bind(msgspec.Struct, frozen=True):
    """Something of this machine that commands see in another place. Both paths are resolved; the source exists."""

    source: Path
    at: Path
    is_writable: bool = False


class SandboxPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a session's commands see. All paths are resolved and exist."""

    project: Path
    """Readable and writable; where the first command begins."""
    root: Path | None = None
    """Of the repository that the project lies in; None: of none, or it is the project itself. One of `writes`."""
    git_folders: tuple[Path, ...] = ()
    """Of git, outside of `top`: of the repository whose linked worktree or submodule this is. Some of `writes`."""
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
    has_scratch_home: bool = False
    """What is written there is thrown away in the end; else it cannot be written at all."""
    binds: tuple[Bind, ...] = ()
    """In their places only where the sandbox can mount (`strict`); elsewhere what can be written is where it really is,
    and the rest is not there."""
    environment: Mapping[str, str] = {}
    is_read_only: bool = False
    """The project, too, and `writes`."""
    has_egress: bool = False
    """Whether there is a way out, through a proxy of ours."""
    proxied: Mapping[str, str] = {}
    """Variables that name this proxy, if there is one; `{proxy}` in them is its host and port."""
    limits: SandboxLimits = SandboxLimits()

    @property
    def top(self) -> Path:
        """The folder in which files are compared that other programs obey."""
        return self.root or self.project

    @property
    def shared(self) -> tuple[Path, ...]:
        """All folders and files that commands can write, unless `is_read_only`; none of them in another."""
        places = dict.fromkeys((self.project, *self.writes))
        return tuple(place for place in places if places.keys().isdisjoint(place.parents))


class Guarded(msgspec.Struct, frozen=True, kw_only=True):
    """What came of guarding places in a sandbox that runs."""

    done: tuple[Path, ...] = ()
    """Only to be read from now on, also by what already runs."""
    failed: tuple[tuple[Path, str], ...] = ()
    """Not guarded for sure, and why. To try again is no cure; a sandbox that is entered anew guards all of them."""
    stopped: tuple[str, ...] = ()
    """Command lines of processes that had one of them at hand while it was not guarded, and were killed."""
    linked: tuple[Path, ...] = ()
    """Files that have a second name, by which commands may still write them: hard links."""
    redirected: tuple[Path, ...] = ()
    """Files in whose place commands see a link."""


class ToolHost(Protocol):
    """A tool host that runs."""

    @property
    def is_alive(self) -> bool: ...
    @property
    def listener(self) -> socket | None:
        """Where commands go for a way out, if the view gives them one."""
        ...

    @property
    def ports(self) -> "Ports | None":
        """None: this level has no network of its own, so there is nothing to open."""
        ...

    def start(self, command: SandboxCommand, sink: OutputSink) -> RunningCommand: ...
    async def guard(self, places: Sequence[Path], links: Mapping[Path, Path] = ...) -> Guarded:
        """Make files and folders in what is writable read-only, while commands run. Cheap where they are already.
        `links`: by guarded files, the links in the sandbox that commands see in their place."""
        ...

    async def share(self, place: Path, guarded: Sequence[Path] = ()) -> str:
        """Let commands write to a folder or file, from now on, but for what is guarded in it. Returns why that cannot
        be done while they run; empty: it is done."""
        ...

    async def withdraw(self, place: Path) -> str:
        """Take it away again: also what has something open there writes no more. Returns why that cannot be done."""
        ...

    def find_unguarded(self, places: Sequence[Path]) -> tuple[Path, ...]:
        """Which of some places that were guarded are so no more, because somebody outside has replaced them. At levels
        that guard nothing: none. Reads one file of the kernel: not on the loop."""
        ...


class ProgramLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """How to start one program in a sandbox. Its standard input, output and error are those that it is started with."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    cwd: str = "/"
    pass_fds: Sequence[int] = ()
    channel: socket | None = None
    """Brings the listening socket of the proxy, once the program is about to begin."""
    other_end: socket | None = None
    """Of the channel; to be closed once the program was started, so that its end is noticed."""
    listener: socket | None = None
    """That socket, where it is known before."""


class ProgramSandbox(Protocol):
    """Runs one program that speaks over its own pipes, where `Sandbox` runs the commands of a session."""

    @property
    def level(self) -> Level: ...
    def program(self, view: SandboxPolicy, argv: Sequence[str], cwd: str) -> AbstractAsyncContextManager[ProgramLaunch]:
        """Valid until the context ends; end the program before. The folder `view.project` is its own. Raises
        `ToolFailed`."""
        ...


class Sandbox(Protocol):
    @property
    def level(self) -> Level: ...
    @property
    def about(self) -> str:
        """What a person should know of it, in few words."""
        ...

    def open(self, view: SandboxPolicy) -> AbstractAsyncContextManager[ToolHost]:
        """A tool host in it; when the context ends, nothing of it is left. Raises `ToolFailed`."""
        ...
