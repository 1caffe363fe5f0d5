"""Commands reach the hosts that are listed, through our proxy, and nobody else."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from talaria.core.clock import SystemClock
from talaria.tools.base import Scope
from talaria.tools.output import CapturedOutput
from talaria.tools.sandbox.running_command import SandboxCommand
from talaria.tools.sandbox.sandbox_settings import Backend, TerminalSettings
from talaria.tools.workspaces import Workspaces

Fetch = Callable[..., Awaitable[str]]

FETCH = """\
python3 - <<'END'
import os, urllib.request
for name in ("no_proxy", "NO_PROXY"):
    os.environ.pop(name, None)
for way in ({}, {"http": os.environ.get("http_proxy", "http://127.0.0.1:1")}):
    for host in ("127.0.0.1", "127.0.0.2"):
        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler(way))
            print("through" if way else "direct", host, opener.open(f"http://{host}:PORT/", timeout=5).read().decode())
        except OSError:
            pass
END"""


@pytest.fixture
def fetch(backend: Backend, port: int, scope: Scope, tmp_path: Path) -> Fetch:
    async def run(*listed: str) -> str:
        settings = TerminalSettings(backend=backend, network=listed)
        output = CapturedOutput(tmp_path / "spill/s/x", scope.redactor)
        private = ("127.0.0.1", "127.0.0.2")  # else the proxy would refuse both, listed or not
        async with aclosing(Workspaces(settings, tmp_path / "home", SystemClock(), private)) as workspaces:
            workspace = await workspaces.open(scope)
            started = await workspace.start(SandboxCommand(command=FETCH.replace("PORT", str(port))), output)
            await started.wait_within(30)
        return output.text()

    return run


async def test_nobody_is_reached_where_none_is_listed(fetch: Fetch, backend: Backend) -> None:
    """Where there is no sandbox, all are: so the attempts can succeed."""
    reached = "direct 127.0.0.1 reached\ndirect 127.0.0.2 reached\n"
    assert await fetch() == (reached if backend == "local" else "")


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
async def test_only_hosts_that_are_listed_are_reached(fetch: Fetch) -> None:
    assert await fetch("127.0.0.1") == "through 127.0.0.1 reached\n"
