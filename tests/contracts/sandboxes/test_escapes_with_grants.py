"""All that must fail in a sandbox also fails where a person has opened it: a folder to write, a port and a socket of
this machine, a published port, a host; and where toolchains and package caches are mounted. What was opened is really
open."""

import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from msgspec import structs

from talaria.cli.health.escapes.escape_trial import try_escapes
from talaria.cli.health.escapes.probes import ProbeResult
from talaria.core.aio import in_threads
from talaria.core.clock import SystemClock
from talaria.core.redaction import Redactor
from talaria.tools.output import CapturedOutput
from talaria.tools.sandbox.base import Level, Sandbox, SandboxPolicy, ToolHost
from talaria.tools.sandbox.bubblewrap import Bubblewrap
from talaria.tools.sandbox.caches import use_caches, with_caches
from talaria.tools.sandbox.egress_proxy import EgressProxy
from talaria.tools.sandbox.landlocked import Landlocked
from talaria.tools.sandbox.running_command import SandboxCommand
from talaria.tools.sandbox.sandbox_settings import Backend, TerminalSettings

HERE = Path(__file__).parent
PUBLISHED = 8137
ATTACKS = (
    *("test_attacks", "test_guards", "test_links", "test_repositories", "test_policy_files", "test_network"),
    *("test_processes", "test_hosts", "test_limits", "test_scripts", "test_state", "test_levels", "test_commands"),
    "test_memory",
)


class Opened:
    """A sandbox in which these are open, in every session."""

    def __init__(self, inner: Sandbox, folder: Path, state: Path, port: int, service: Path) -> None:
        self._inner = inner
        self._folder = folder
        self._state = state
        self._port = port
        self._service = service
        self.level: Level = inner.level
        self.about = inner.about
        self.was_open: list[str] = []

    @asynccontextmanager
    async def open(self, view: SandboxPolicy) -> AsyncGenerator[ToolHost]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(in_threads(use_caches(self._state, 1 << 30)))
            is_strict = self.level == "strict"
            view = with_caches(view, self._state, can_mount=is_strict)
            if is_strict:
                view = structs.replace(view, has_egress=True)
            elif not view.is_read_only:
                view = structs.replace(view, writes=(*view.writes, self._folder))
            host = await stack.enter_async_context(self._inner.open(view))
            if is_strict and not view.is_read_only:
                assert not await host.share(self._folder)
                assert host.ports is not None
                await host.ports.let_in(self._port)
                await host.ports.let_in_socket(self._service)
                await host.ports.publish(PUBLISHED)
            if host.listener is not None:
                way_out = EgressProxy(("granted.example",), (), SystemClock())
                await stack.enter_async_context(way_out.serve(host.listener))
            if not view.is_read_only:
                await self._try(host)
            yield host

    async def _try(self, host: ToolHost) -> None:
        output = CapturedOutput(self._state / "spill/output", Redactor())
        connect = f"exec 5<>/dev/tcp/127.0.0.1/{self._port} && echo port && test -S {self._service} && echo socket"
        words = f"touch {self._folder}/made && echo folder; {connect if self.level == 'strict' else 'true'}"
        end = await host.start(SandboxCommand(command=words, is_kept=False), output).wait()
        output.close()
        if not end.why:  # where memory or the disk is short, commands are killed
            self.was_open.append(output.text().strip())


async def tried(backend: Backend, folder: Path) -> list[ProbeResult]:
    for name in ("home", "state", "granted"):
        (folder / name).mkdir()
    subprocess.run(["git", "init", "-q", folder / "granted/repository"], check=True)
    sandbox: Sandbox = Bubblewrap() if backend == "bubblewrap" else Landlocked()
    with socket.create_server(("127.0.0.1", 0)) as service, socket.socket(socket.AF_UNIX) as database:
        database.bind(str(folder / "db.sock"))
        database.listen()
        port = service.getsockname()[1]
        opened = Opened(sandbox, folder / "granted", folder / "state", port, folder / "db.sock")
        settings = TerminalSettings(env=("LANG",))
        found = await try_escapes(opened, folder / "home", settings)
    told = {told for told in opened.was_open if told}  # with little memory no shell begins
    assert told == {"folder\nport\nsocket" if sandbox.level == "strict" else "folder"}
    return found


@pytest.mark.parametrize("backend", ["bubblewrap", pytest.param("landlock", marks=pytest.mark.long)], indirect=True)
async def test_no_escape_succeeds_with_grants_in_force(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\n")
    monkeypatch.setenv("VIRTUAL_ENV", str(venv))
    level: Level = "strict" if backend == "bubblewrap" else "landlock"
    failed = [(one.name, one.detail) for one in await tried(backend, tmp_path) if one.verdict(level) == "fail"]
    assert failed == []


@pytest.mark.long
@pytest.mark.parametrize("module", ATTACKS)
def test_no_attack_succeeds_with_grants_in_force(module: str) -> None:
    """The same tests, in sessions to which a person has granted something (`conftest.py`)."""
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not long", "-k", "bubblewrap or landlock")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, HERE / f"{module}.py"],
        env={**os.environ, "TEST_WITH_GRANTS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, f"{ran.stdout[-4000:]}\n{ran.stderr[-1000:]}"
