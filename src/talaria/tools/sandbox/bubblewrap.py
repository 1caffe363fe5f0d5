"""The strict sandbox: bubblewrap around a session's tool host. What is not listed here is not there."""

import os
import subprocess
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from talaria.tools.sandbox.base import Level, View
from talaria.tools.sandbox.host import seccomp
from talaria.tools.sandbox.launching import PACKAGE, PROGRAM, Launch, LaunchedHost, launched, settings_for
from talaria.tools.sandbox.system import PYTHON, etc, interpreter, system
from talaria.waiting import completed, in_thread

BWRAP = "/usr/bin/bwrap"
"""Never looked for: a folder on PATH may hold anything."""
ROOT = "/run/talaria"
TRIAL_S = 10.0
FOLDER = "/tmp/.talaria"  # noqa: S108  (its own /tmp)


def fault() -> str | None:
    """Why it does not work here; found out by trying."""
    view = View(project=Path("/usr"), home=Path("/home"))
    if not os.access(BWRAP, os.X_OK):
        return f"{BWRAP} is not installed"
    filter = _descriptor(seccomp.always())
    command = (BWRAP, *arguments(view), "--seccomp", str(filter), "--", "/bin/true")
    try:
        done = subprocess.run(command, capture_output=True, timeout=TRIAL_S, check=False, pass_fds=(filter,))  # noqa: S603
    except (OSError, subprocess.SubprocessError) as fault:
        return str(fault)
    finally:
        os.close(filter)
    return (
        None
        if done.returncode == 0
        else done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
    )


class Bubblewrap:
    level: Level = "strict"
    about = "bubblewrap"

    @asynccontextmanager
    async def opened(self, view: View) -> AsyncGenerator[LaunchedHost]:
        with ExitStack() as owned:
            filter = await completed(in_thread(lambda: _owned(seccomp.always(), owned)))
            launch = Launch(
                before=(BWRAP, *await in_thread(lambda: arguments(view)), "--seccomp", str(filter), "--"),
                python=PYTHON,
                root=ROOT,
                settings=settings_for(view, FOLDER, has_egress=view.has_egress),
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
        *_system(),
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


def _system() -> Iterator[str]:
    for path in system():
        if Path(path).is_symlink():
            yield from ("--symlink", str(Path(path).readlink()), path)
        else:
            yield from ("--ro-bind", path, path)
    for path in etc():
        yield from ("--ro-bind", path, path)


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


def _owned(content: bytes, owner: ExitStack) -> int:
    """Known to its owner before anybody can be interrupted."""
    descriptor = _descriptor(content)
    owner.callback(os.close, descriptor)
    return descriptor


def _descriptor(content: bytes) -> int:
    """To be read from its beginning."""
    descriptor = os.memfd_create("seccomp")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.set_inheritable(descriptor, True)
    return descriptor
