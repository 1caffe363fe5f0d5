"""Commands in a docker or podman container, one per session, which ends with its tool host."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from talaria.core.aio import complete, in_thread
from talaria.core.errors import ToolFailed
from talaria.tools.sandbox.base import Level, SandboxPolicy, ToolHost
from talaria.tools.sandbox.launching import (
    ARRIVAL,
    FOLDER,
    NO_SUCH_PROGRAM,
    Launch,
    launch_host,
    not_started,
    pack_host,
    portable_environment,
)
from talaria.tools.sandbox.sandbox_settings import DockerSettings

ASK_S = 30.0
PULL_S = 1800.0
START_S = 60.0


class _Security(msgspec.Struct, frozen=True):
    rootless: bool = False


class _PodmanHost(msgspec.Struct, frozen=True):
    security: _Security = _Security()


class Engine(msgspec.Struct, frozen=True):
    """What docker and podman report about themselves."""

    errors: tuple[str, ...] | None = msgspec.field(name="ServerErrors", default=None)
    options: tuple[str, ...] | None = msgspec.field(name="SecurityOptions", default=None)
    host: _PodmanHost | None = None
    """Only podman reports it."""

    @property
    def is_podman(self) -> bool:
        return self.host is not None

    @property
    def is_rootless(self) -> bool:
        return self.host.security.rootless if self.host else any("rootless" in one for one in self.options or ())


class Docker:
    level: Level = "container"

    def __init__(self, settings: DockerSettings) -> None:
        self._settings = settings
        self._engine: Engine | None = None
        self.about = f"{settings.program}, {settings.image}"

    @asynccontextmanager
    async def open(self, view: SandboxPolicy) -> AsyncGenerator[ToolHost]:
        if view.has_egress:
            raise ToolFailed(
                "Commands cannot run: terminal.network lists hosts, and a container cannot be limited to them; "
                "terminal.docker.network sets what it can reach."
            )
        engine = self._engine = self._engine or await self._prepare()
        name = f"talaria-{os.urandom(8).hex()}"
        own = {**portable_environment(view), "HOME": str(view.home)}
        sent = await in_thread(lambda: pack_host(view, f"{FOLDER}{name}", environment=own))
        settings = self._settings

        def explain(said: str, code: int | None) -> str:
            if code == NO_SUCH_PROGRAM:
                return f"there is no python3 in {settings.image}."
            return f"{settings.image}: {said or f'exit code {code}'}"

        launch = Launch(
            argv=(settings.program, "run", *await in_thread(lambda: arguments(view, settings, engine, name))),
            environment=os.environ,
            sent=sent,
            start_s=START_S,
            explain=explain,
        )
        try:
            async with launch_host(launch) as host:
                yield host
        finally:
            await complete(self._ask("rm", "--force", name, limit_s=ASK_S))  # in case it is still there

    async def _prepare(self) -> Engine:
        """What the program is, once it has the image. Raises `ToolFailed`."""
        code, output, said = await self._ask("info", "--format", "{{json .}}", limit_s=ASK_S)
        try:
            engine = msgspec.json.decode(output, type=Engine)
        except msgspec.MsgspecError:
            engine = None
        if code != 0 or engine is None or engine.errors:
            reason = engine.errors[0] if engine and engine.errors else said
            raise ToolFailed(f"Commands cannot run: {self._settings.program} does not answer: {reason}")
        image = self._settings.image
        code, _, _ = await self._ask("image", "inspect", "--format", "{{.Id}}", image, limit_s=ASK_S)
        if code != 0:
            code, _, said = await self._ask("pull", "--quiet", image, limit_s=PULL_S)
        if code != 0:
            raise ToolFailed(f"Commands cannot run: there is no image {image}: {said}")
        return engine

    async def _ask(self, *words: str, limit_s: float) -> tuple[int, str, str]:
        """Its exit code, its output, and the last line of its errors."""
        try:
            process = await asyncio.create_subprocess_exec(
                self._settings.program,
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as fault:
            raise not_started(self._settings.program, fault) from fault
        try:
            async with asyncio.timeout(limit_s):
                written, said = await process.communicate()
        except TimeoutError:
            return 1, "", f"no answer within {limit_s:.0f} seconds"
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await complete(process.wait())
        lines = said.decode("utf-8", "replace").strip().splitlines() or [f"exit code {process.returncode}"]
        return process.returncode or 0, written.decode("utf-8", "replace"), lines[-1]


def arguments(view: SandboxPolicy, settings: DockerSettings, engine: Engine, name: str) -> tuple[str, ...]:
    """Of `docker run`. Paths are the same inside as outside."""
    user = ("--user", f"{os.getuid()}:{os.getgid()}")  # the owner of the project outside owns it inside
    if engine.is_rootless:
        user = ("--userns", "keep-id", *user) if engine.is_podman else ("--user", "0:0")
    bare = ("notmpcopyup",) if engine.is_podman else ()  # else it copies what is below, secrets too
    mounts = {
        **{path: _format_bind(path, path, "ro") for path in view.reads},
        **{path: _format_bind(path, path) for path in (view.project, *view.writes)},
        **{path: _format_bind(path, path, "ro") for path in (*view.guarded, *view.own)},
    }
    for path in view.hidden:
        if path.is_dir():
            mounts[path] = _format_row("type=tmpfs", f"target={path}", "ro", "tmpfs-mode=0000", *bare)
        else:
            mounts[path] = _format_bind(Path(os.devnull), path, "ro")
    scratch = ",".join(("exec", "mode=1777", f"size={view.limits.scratch_bytes}", *bare))
    folders = [path for path in (Path("/tmp"), Path("/var/tmp"), view.home) if path not in mounts]  # noqa: S108
    return (
        *("--rm", "--interactive", "--name", name, "--hostname", "sandbox", "--pull", "never", "--log-driver", "none"),
        *("--network", settings.network, "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--security-opt", "label=disable"),  # else SELinux hides the project
        *("--pids-limit", str(view.limits.processes), "--read-only", *user),
        *(word for path in folders for word in ("--tmpfs", f"{path}:{scratch}")),
        *(word for mount in mounts.values() for word in ("--mount", mount)),
        *("--workdir", str(view.project), "--entrypoint", "python3", settings.image, "-I", "-S", "-c", ARRIVAL),
    )


def _format_bind(source: Path, target: Path, *options: str) -> str:
    return _format_row("type=bind", f"source={source}", f"target={target}", *options)


def _format_row(*fields: str) -> str:
    """A row of CSV: a path may hold any character."""
    return ",".join('"{}"'.format(field.replace('"', '""')) if set(field) & set(',"\n') else field for field in fields)
