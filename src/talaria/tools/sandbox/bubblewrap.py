"""The strict sandbox: bubblewrap around a session's tool host. What is not listed here is not there."""

import os
import socket
import subprocess
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from talaria.core.aio import in_thread, in_threads
from talaria.core.trees import Root
from talaria.tools.sandbox.base import Bind, Level, ProgramLaunch, SandboxPolicy, ToolHost
from talaria.tools.sandbox.channel import HostChannel
from talaria.tools.sandbox.guarding import Guards
from talaria.tools.sandbox.host import seccomp
from talaria.tools.sandbox.inside import on_the_way
from talaria.tools.sandbox.launching import (
    PACKAGE,
    PROGRAM,
    Launch,
    launch_host,
    measures,
    program_in,
    program_starter,
    settings_for,
)
from talaria.tools.sandbox.system import BWRAP, PYTHON, TRIAL_S, etc, format_mounts, interpreter, system, try_command
from talaria.tools.sandbox.watch_limits import limit_watches

if TYPE_CHECKING:
    from talaria.tools.sandbox.ports import Ports

Held = Mapping[Path, Sequence[int]]
"""Descriptors by path; bubblewrap closes one when it has mounted it, so there is one for each mount."""

ROOT = "/run/talaria"
FOLDER = "/tmp/.talaria"  # noqa: S108  (its own /tmp)
_UNSHARE = ("/usr/bin/unshare", "--mount", "--propagation", "private")
_READ_ONLY_DEVICES = f'PATH={os.defpath}:/usr/sbin:/sbin mount -o remount,bind,ro /dev && exec "$@"'


def fault() -> str | None:
    """Why it does not work here; found out by trying."""
    view = SandboxPolicy(project=Path("/usr"), home=Path("/home"))
    if not os.access(BWRAP, os.X_OK):
        return f"{BWRAP} is not installed"
    with _filter() as filter:
        return try_command((BWRAP, *arguments(view), "--seccomp", str(filter), "--", "/bin/true"), (filter,))


class Bubblewrap:
    level: Level = "strict"
    about = "bubblewrap"

    @asynccontextmanager
    async def open(self, view: SandboxPolicy) -> AsyncGenerator[ToolHost]:
        async with _wrapper(view) as (wrapper, descriptors):
            egress = {"has_egress": view.has_egress, "proxied": dict(view.proxied)}
            settings = settings_for(view, FOLDER, notes_connections=True, **egress, **measures(view.limits))
            launch = Launch(
                argv=(*wrapper, *program_in(ROOT, PYTHON, settings)),
                environment=view.environment,
                pass_fds=descriptors,
                limits=view.limits,
                prepare=limit_watches,
            )
            async with launch_host(launch) as channel:
                host = _StrictHost(channel, Guards(channel.pid, view.shared))
                try:
                    yield host
                finally:
                    await host.close()

    @asynccontextmanager
    async def program(self, view: SandboxPolicy, argv: Sequence[str], cwd: str) -> AsyncGenerator[ProgramLaunch]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            async with _wrapper(view) as (wrapper, descriptors):
                starter = program_starter(ROOT, PYTHON, view, argv, cwd, channel=theirs.fileno())
                yield ProgramLaunch(
                    argv=(*wrapper, *starter),
                    environment=view.environment,
                    pass_fds=(theirs.fileno(), *descriptors),
                    channel=ours,
                    other_end=theirs,
                )


class _StrictHost:
    def __init__(self, channel: HostChannel, guards: Guards) -> None:
        self._channel = channel
        self._guards = guards
        self.start = channel.start
        self.listener = channel.listener
        self.guard = guards.renew
        self.share = guards.share
        self.withdraw = guards.withdraw
        self._ports: Ports | None = None

    @property
    def is_alive(self) -> bool:
        return self._channel.is_alive

    @property
    def ports(self) -> "Ports":
        from talaria.tools.sandbox.ports import Ports  # noqa: PLC0415  (few open one)

        if self._ports is None:
            self._ports = Ports(self._guards.find_host, self._guards.show, self._guards.withdraw)
        return self._ports

    async def close(self) -> None:
        if self._ports is not None:
            await self._ports.aclose()

    def find_unguarded(self, places: Sequence[Path]) -> tuple[Path, ...]:
        return self._guards.missing(places) if self.is_alive else ()


@asynccontextmanager
async def _wrapper(view: SandboxPolicy) -> AsyncGenerator[tuple[tuple[str, ...], tuple[int, ...]]]:
    """What stands before a command, and the descriptors that it needs."""
    async with in_threads(_filter()) as filter, in_threads(_hold_descriptors(view)) as held:
        around = (*await in_thread(_before_bwrap), BWRAP)
        before = (*around, *await in_thread(lambda: arguments(view, held)), "--seccomp", str(filter), "--")
        yield before, (filter, *chain.from_iterable((held or {}).values()))


def arguments(view: SandboxPolicy, held: Held | None = None) -> tuple[str, ...]:
    """Short, because every mount takes a quarter of a millisecond. `held`: what is already open, so that nobody can put
    a link in its place before it is mounted."""
    scratch = str(view.limits.scratch_bytes)
    unused = None if held is None else {path: list(descriptors) for path, descriptors in held.items()}
    return (
        *("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
        *("--die-with-parent", "--new-session", "--hostname", "sandbox"),
        *format_mounts(system(), etc()),
        *("--proc", "/proc", "--dev", "/dev", "--size", scratch, "--tmpfs", "/dev/shm"),  # noqa: S108
        *("--size", scratch, "--tmpfs", "/tmp", "--size", scratch, "--tmpfs", "/var/tmp"),  # noqa: S108
        *(("--size", scratch, "--tmpfs", str(view.home)) if view.home != Path("/") else ()),
        *_format_binds("--ro-bind", interpreter()),
        *_format_binds("--ro-bind", view.reads, unused),
        *_format_binds("--ro-bind" if view.is_read_only else "--bind", view.shared, unused),
        *_format_binds("--bind", _around(view), unused),
        *_format_binds("--ro-bind", view.guarded, unused),
        *(word for bind in view.binds for word in _format_bind(bind, is_read_only=view.is_read_only)),
        *_format_binds("--ro-bind", view.own),  # after all that can be written
        *(word for path in view.hidden for word in _format_empty_mount(path)),
        *("--ro-bind", str(PROGRAM), f"{ROOT}/{PACKAGE}"),
        *_format_remounts(view),
        *("--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"),  # root may open /proc/sys for writing
        *("--chdir", str(view.project)),
    )


def _format_remounts(view: SandboxPolicy) -> Iterator[str]:
    """The home that commands see is not the person's: what they wrote there would be lost, so they cannot."""
    shared = (view.project, *view.writes)
    if not view.has_scratch_home and view.home != Path("/") and view.home not in shared:
        yield from ("--remount-ro", str(view.home))


def _format_binds(kind: str, paths: Iterable[Path], unused: dict[Path, list[int]] | None = None) -> Iterator[str]:
    for path in paths:
        if unused is None:
            yield from (kind, str(path), str(path))
        elif unused.get(path):
            yield from (f"{kind}-fd", str(unused[path].pop()), str(path))


def _format_bind(bind: Bind, *, is_read_only: bool) -> tuple[str, str, str]:
    is_writable = bind.is_writable and not is_read_only
    return ("--bind" if is_writable else "--ro-bind", str(bind.source), str(bind.at))


def _around(view: SandboxPolicy) -> tuple[Path, ...]:
    return on_the_way(view.shared, (*view.guarded, *view.own))


@cache
def _mounts_descriptors() -> bool:
    """0.10 does; distributions have given it to older ones."""
    told = subprocess.run((BWRAP, "--help"), capture_output=True, check=False, timeout=TRIAL_S)  # noqa: S603
    return b"--ro-bind-fd" in told.stdout


@cache
def _before_bwrap() -> tuple[str, ...]:
    """As root, who owns the devices that bubblewrap mounts: a mount namespace in which they can be used, not changed.
    Nothing where we may not make one. (A device that bubblewrap itself mounts read-only cannot be used at all.)"""
    words = (*_UNSHARE, "/bin/sh", "-ec", _READ_ONLY_DEVICES, "sh")
    return words if os.geteuid() == 0 and try_command((*words, "/bin/true")) is None else ()


@contextmanager
def _hold_descriptors(view: SandboxPolicy) -> Generator[Held | None]:
    """The descriptors of what is shared, of what is guarded in it and of the folders on the way there, by their paths.
    Reached without following a link; what is a link by now, or has gone, is left out. None: bubblewrap is too old to
    mount descriptors."""
    held: dict[Path, list[int]] = {}
    if not _mounts_descriptors():
        yield None
        return
    try:
        for path in (*view.shared, *view.reads, *_around(view), *view.guarded):
            with suppress(OSError), Root.open(path.anchor) as root:
                held.setdefault(path, []).append(root.handle(str(path.relative_to(path.anchor))))
        yield held
    finally:
        for descriptor in chain.from_iterable(held.values()):
            os.close(descriptor)


def _format_empty_mount(path: Path) -> tuple[str, ...]:
    if path.is_dir():
        return ("--perms", "0000", "--tmpfs", str(path), "--remount-ro", str(path))
    return ("--ro-bind", "/dev/null", str(path))


@contextmanager
def _filter() -> Generator[int]:
    """The descriptor of the filter for system calls, to be read from its beginning."""
    descriptor = os.memfd_create("seccomp")
    try:
        os.write(descriptor, seccomp.always())
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.set_inheritable(descriptor, True)
        yield descriptor
    finally:
        os.close(descriptor)
