"""Where bubblewrap does not work: Landlock and seccomp around the tool host. No network at all, not even AF_UNIX."""

import os
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from talaria.core.aio import in_thread, in_threads
from talaria.core.errors import ToolFailed
from talaria.tools.sandbox.base import Level, ProgramLaunch, SandboxPolicy, ToolHost
from talaria.tools.sandbox.host import landlock, seccomp
from talaria.tools.sandbox.launching import launch_host, limit_settings, program_starter
from talaria.tools.sandbox.local import SOURCE, make_bare_launch
from talaria.tools.sandbox.system import etc, interpreter, scratch, scratch_variables, system


def fault() -> str | None:
    """Why it does not work here."""
    if landlock.abi() < 1:
        return "the kernel has no Landlock"
    try:
        seccomp.offline(landlock.abi())
    except OSError as fault:
        return fault.strerror
    return None


class Landlocked:
    level: Level = "landlock"

    def __init__(self, about: str = "Landlock and seccomp") -> None:
        self.about = about

    @asynccontextmanager
    async def open(self, view: SandboxPolicy) -> AsyncGenerator[ToolHost]:
        if view.hidden:
            raise ToolFailed(
                f"Commands do not run in {view.project}: the sandbox that works here cannot hide {view.hidden[0]}."
            )
        if view.own:
            raise ToolFailed(
                f"Commands do not run in {view.project}: the sandbox that works here cannot keep them from changing "
                f"Talaria's own code in {view.own[0]}. Install Talaria elsewhere, or install bubblewrap."
            )
        if view.has_egress and not view.is_read_only:
            raise ToolFailed(
                "Commands do not run: terminal.network lists hosts, and the sandbox that works here has no network "
                f"({self.about}). Install bubblewrap, or unset it: `talaria config unset terminal.network`, with "
                "--project if it is set for this project."
            )
        async with in_threads(scratch()) as folder:
            own = (folder / "tmp", folder / "shell")  # not the home: what commands write there would be lost
            readable = (*await in_thread(lambda: tuple(_readable(view))), folder)
            caches = tuple(bind.source for bind in view.binds if bind.is_writable)
            writable = own if view.is_read_only else (view.project, *view.writes, *caches, *own)
            path = reachable(view.environment.get("PATH", os.defpath), (*readable, *writable))
            environment = {**view.environment, **scratch_variables(folder), "PATH": path}
            places = {"reads": [*map(str, readable)], "writes": [*map(str, writable)], "scratch": str(folder)}
            launch = make_bare_launch(
                view, environment, f"{folder}/shell/state", confinement=places, **limit_settings(view.limits)
            )
            async with launch_host(msgspec.structs.replace(launch, limits=view.limits)) as host:
                yield host

    @asynccontextmanager
    async def program(self, view: SandboxPolicy, argv: Sequence[str], cwd: str) -> AsyncGenerator[ProgramLaunch]:
        if view.has_egress:
            raise ToolFailed(
                "it lists hosts, and the sandbox that works here (Landlock) has no network; install bubblewrap, or "
                "take it out of the sandbox"
            )
        if view.hidden or view.own:
            raise ToolFailed(
                f"the sandbox that works here (Landlock) cannot keep it from {(*view.hidden, *view.own)[0]}, which is "
                "in a folder that it may use; install bubblewrap, or give it other folders"
            )
        async with in_threads(scratch()) as folder:
            readable = await in_thread(lambda: tuple(_readable(view)))
            writable = (view.project, *view.writes, folder)
            path = reachable(view.environment.get("PATH", os.defpath), (*readable, *writable))
            own = {"TMPDIR": f"{folder}/tmp", "GIT_CONFIG_NOSYSTEM": "1", "PATH": path}  # noqa: S108
            places = {"reads": [*map(str, readable)], "writes": [*map(str, writable)], "scratch": str(folder)}
            starter = program_starter(SOURCE, sys.executable, view, argv, cwd, confinement=places)
            yield ProgramLaunch(argv=starter, environment={**view.environment, **own})


def reachable(path: str, roots: tuple[Path, ...]) -> str:
    """PATH without folders that cannot be read: one of those would hide the ones after it."""
    folders = (folder for folder in path.split(os.pathsep) if folder)
    return os.pathsep.join(one for one in folders if any(Path(one).is_relative_to(root) for root in roots))


def _readable(view: SandboxPolicy) -> Iterator[Path]:
    yield from (Path(path) for path in (*system(), *etc(), "/proc", "/sys/devices/system/cpu"))
    yield from interpreter()
    yield from view.reads
    if view.is_read_only:
        yield from (view.project, *view.writes)
