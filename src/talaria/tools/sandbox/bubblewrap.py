"""The strict sandbox: bubblewrap around a session's tool host. What is not listed here is not there."""

import os
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from talaria.tools.blocking import in_threads
from talaria.tools.sandbox.base import Host, Level, View
from talaria.tools.sandbox.host import seccomp
from talaria.tools.sandbox.launching import PACKAGE, PROGRAM, Launch, launched, program_in, settings_for
from talaria.tools.sandbox.system import BWRAP, PYTHON, etc, interpreter, mounted, system, tried
from talaria.waiting import in_thread

ROOT = "/run/talaria"
FOLDER = "/tmp/.talaria"  # noqa: S108  (its own /tmp)


def fault() -> str | None:
    """Why it does not work here; found out by trying."""
    view = View(project=Path("/usr"), home=Path("/home"))
    if not os.access(BWRAP, os.X_OK):
        return f"{BWRAP} is not installed"
    with _filter() as filter:
        return tried((BWRAP, *arguments(view), "--seccomp", str(filter), "--", "/bin/true"), (filter,))


class Bubblewrap:
    level: Level = "strict"
    about = "bubblewrap"

    @asynccontextmanager
    async def opened(self, view: View) -> AsyncGenerator[Host]:
        async with in_threads(_filter()) as filter:
            before = (BWRAP, *await in_thread(lambda: arguments(view)), "--seccomp", str(filter), "--")
            settings = settings_for(view, FOLDER, has_egress=view.has_egress)
            launch = Launch(
                argv=(*before, *program_in(ROOT, PYTHON, settings)),
                environment=view.environment,
                pass_fds=(filter,),
                max_processes=view.limits.processes,
            )
            async with launched(launch) as host:
                yield host


def arguments(view: View) -> tuple[str, ...]:
    """Short, because every mount takes a quarter of a millisecond."""
    scratch = str(view.limits.scratch_bytes)
    return (
        *("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
        *("--die-with-parent", "--new-session", "--hostname", "sandbox"),
        *mounted(system(), etc()),
        *("--proc", "/proc", "--dev", "/dev", "--size", scratch, "--tmpfs", "/dev/shm"),  # noqa: S108
        *("--size", scratch, "--tmpfs", "/tmp", "--size", scratch, "--tmpfs", "/var/tmp"),  # noqa: S108
        *(("--size", scratch, "--tmpfs", str(view.home)) if view.home != Path("/") else ()),
        *_bound("--ro-bind", (*interpreter(), *view.reads)),
        *_bound("--bind", (view.project, *view.writes)),
        *_bound("--bind", _around(view)),
        *_bound("--ro-bind", view.guarded),
        *(word for path in view.hidden for word in _emptied(path)),
        *("--ro-bind", str(PROGRAM), f"{ROOT}/{PACKAGE}"),
        *("--remount-ro", "/dev", "--remount-ro", "/"),
        *("--chdir", str(view.project)),
    )


def _bound(kind: str, paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        yield from (kind, str(path), str(path))


def _around(view: View) -> Iterable[Path]:
    """Folders on the way to what is guarded: what is mounted cannot be moved away, and another put in its place."""
    shared = (view.project, *view.writes)
    return dict.fromkeys(
        parent
        for place in view.guarded
        for parent in reversed(place.parents)
        if parent not in shared and any(parent.is_relative_to(root) for root in shared)
    )


def _emptied(path: Path) -> tuple[str, ...]:
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
