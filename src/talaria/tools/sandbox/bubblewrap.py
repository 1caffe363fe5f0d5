"""The strict sandbox: bubblewrap around a session's tool host. What is not listed here is not in it."""

import logging
import os
import socket
import subprocess
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path

from talaria.core.aio import in_thread, in_threads
from talaria.core.trees import Root
from talaria.tools.sandbox.base import Level, ProgramLaunch, SandboxPolicy, ToolHost
from talaria.tools.sandbox.guarding import StrictHost
from talaria.tools.sandbox.host import seccomp
from talaria.tools.sandbox.inside import folders_between
from talaria.tools.sandbox.launching import (
    PACKAGE,
    PROGRAM,
    Launch,
    launch_host,
    limit_settings,
    program_in,
    program_starter,
    settings_for,
)
from talaria.tools.sandbox.system import BWRAP, PYTHON, TRIAL_S, etc, format_mounts, interpreter, system, try_command

ROOT = "/run/talaria"
FOLDER = "/tmp/.talaria"  # noqa: S108  (its own /tmp)
WATCH_LIMITS = {
    "max_inotify_instances": 64,
    "max_inotify_watches": 100_000,
    "max_fanotify_groups": 64,
    "max_fanotify_marks": 100_000,
}
"""Enough for the watchers of editors and build tools; a sandbox never gets more than half of what the person has."""
_WATCH_SETTINGS = Path("/proc/sys/user")
_UNSHARE = ("/usr/bin/unshare", "--mount", "--propagation", "private")
_READ_ONLY_DEVICES = f'PATH={os.defpath}:/usr/sbin:/sbin mount -o remount,bind,ro /dev && exec "$@"'

log = logging.getLogger(__name__)


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
            settings = settings_for(view, FOLDER, notes_connections=True, **egress, **limit_settings(view.limits))
            launch = Launch(
                argv=(*wrapper, *program_in(ROOT, PYTHON, settings)),
                environment=view.environment,
                pass_fds=descriptors,
                limits=view.limits,
                prepare=limit_watches,
            )
            async with launch_host(launch) as channel:
                host = StrictHost(channel, view.shared)
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


@asynccontextmanager
async def _wrapper(view: SandboxPolicy) -> AsyncGenerator[tuple[tuple[str, ...], tuple[int, ...]]]:
    """The words before a command, and the descriptors that they need."""
    async with in_threads(_filter()) as filter, in_threads(_hold_descriptors(view)) as held:
        around = (*await in_thread(_before_bwrap), BWRAP)
        before = (*around, *await in_thread(lambda: arguments(view, held)), "--seccomp", str(filter), "--")
        yield before, (filter, *chain.from_iterable((held or {}).values()))


def arguments(view: SandboxPolicy, held: Mapping[Path, Sequence[int]] | None = None) -> tuple[str, ...]:
    """Of bubblewrap; few, because every mount takes a quarter of a millisecond. `held`: descriptors that are already
    open, so that nobody can put a link in the place of a path before it is mounted; one for each mount, because
    bubblewrap closes them."""
    scratch = str(view.limits.scratch_bytes)
    unused = None if held is None else {path: list(descriptors) for path, descriptors in held.items()}
    hidden: list[str] = []
    for path in view.hidden:
        if path.is_dir():
            hidden += ("--perms", "0000", "--tmpfs", str(path), "--remount-ro", str(path))
        else:
            hidden += ("--ro-bind", "/dev/null", str(path))
    binds: list[str] = []
    for bind in view.binds:
        is_writable = bind.is_writable and not view.is_read_only
        binds += ("--bind" if is_writable else "--ro-bind", str(bind.source), str(bind.at))
    has_own_home = view.home != Path("/")
    keeps_home = view.has_scratch_home or view.home in (view.project, *view.writes)
    return (
        *("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
        *("--die-with-parent", "--new-session", "--hostname", "sandbox"),
        *format_mounts(system(), etc()),
        *("--proc", "/proc", "--dev", "/dev", "--size", scratch, "--tmpfs", "/dev/shm"),  # noqa: S108
        *("--size", scratch, "--tmpfs", "/tmp", "--size", scratch, "--tmpfs", "/var/tmp"),  # noqa: S108
        *(("--size", scratch, "--tmpfs", str(view.home)) if has_own_home else ()),
        *_format_binds("--ro-bind", interpreter()),
        *_format_binds("--ro-bind", view.reads, unused),
        *_format_binds("--ro-bind" if view.is_read_only else "--bind", view.shared, unused),
        *_format_binds("--bind", _around(view), unused),
        *_format_binds("--ro-bind", view.guarded, unused),
        *binds,
        *_format_binds("--ro-bind", view.own),  # after all that can be written
        *hidden,
        *("--ro-bind", str(PROGRAM), f"{ROOT}/{PACKAGE}"),
        # this home is not the person's: what commands wrote there would be lost, so they cannot
        *(("--remount-ro", str(view.home)) if has_own_home and not keeps_home else ()),
        *("--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"),  # root may open /proc/sys for writing
        *("--chdir", str(view.project)),
    )


def _format_binds(kind: str, paths: Iterable[Path], unused: dict[Path, list[int]] | None = None) -> Iterator[str]:
    for path in paths:
        if unused is None:
            yield from (kind, str(path), str(path))
        elif unused.get(path):
            yield from (f"{kind}-fd", str(unused[path].pop()), str(path))


def _around(view: SandboxPolicy) -> tuple[Path, ...]:
    return folders_between(view.shared, (*view.guarded, *view.own))


@cache
def _mounts_descriptors() -> bool:
    """Version 0.10 does; distributions have backported it."""
    done = subprocess.run((BWRAP, "--help"), capture_output=True, check=False, timeout=TRIAL_S)  # noqa: S603
    return b"--ro-bind-fd" in done.stdout


@cache
def _before_bwrap() -> tuple[str, ...]:
    """For root, who owns the devices that bubblewrap mounts: a mount namespace in which they can be used but not
    changed. Empty where we may not make one. (A device that bubblewrap itself mounts read-only cannot be used at
    all.)"""
    words = (*_UNSHARE, "/bin/sh", "-ec", _READ_ONLY_DEVICES, "sh")
    return words if os.geteuid() == 0 and try_command((*words, "/bin/true")) is None else ()


@contextmanager
def _hold_descriptors(view: SandboxPolicy) -> Generator[Mapping[Path, Sequence[int]] | None]:
    """Descriptors by path: of what is shared, of what is guarded in it, and of the folders on the way there. They are
    reached without following a link; what has become a link, or has gone, is left out. None: bubblewrap is too old to
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


@contextmanager
def _filter() -> Generator[int]:
    """The descriptor of the filter for system calls, to be read from its start."""
    descriptor = os.memfd_create("seccomp")
    try:
        os.write(descriptor, seccomp.always())
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.set_inheritable(descriptor, True)
        yield descriptor
    finally:
        os.close(descriptor)


def limit_watches(bwrap: int) -> None:
    """Limit the inotify and fanotify watches of the sandbox of this process. Where that fails, it works without.

    The kernel counts them by user and user namespace, up to the outermost one, so a limit in the sandbox's own
    namespace leaves the rest to the person. Setting it takes rights over that namespace; bubblewrap can enter it.
    """
    lines: list[str] = []
    for name, most in WATCH_LIMITS.items():
        with suppress(OSError, ValueError):  # older kernels have fewer of them
            file = _WATCH_SETTINGS / name
            lines.append(f"echo {min(most, int(file.read_text()) // 2)} > {file}")
    try:
        inside = Path(f"/proc/{bwrap}/task/{bwrap}/children").read_text().split()[0]
        namespace = os.open(f"/proc/{inside}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, IndexError) as fault:
        log.warning("inotify watches of commands are not limited: %s", fault)
        return
    entered = (BWRAP, "--userns", str(namespace), "--bind", "/", "/", "--cap-add", "CAP_SYS_RESOURCE")
    try:
        done = subprocess.run(  # noqa: S603
            (*entered, "/bin/sh", "-ec", "\n".join(lines)),
            pass_fds=(namespace,),
            env={},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TRIAL_S,
            check=False,
        )
        if done.returncode != 0:
            log.warning("inotify watches of commands are not limited: %s", done.stderr.decode("utf-8", "replace")[:500])
    except (OSError, subprocess.SubprocessError) as fault:
        log.warning("inotify watches of commands are not limited: %s", fault)
    finally:
        os.close(namespace)
