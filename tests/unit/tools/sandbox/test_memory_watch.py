"""Who notices that commands use too much memory: the tool host where there is no control group, else the kernel."""

import subprocess
import sys
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import structs
from tests.unit.tools.sandbox.test_resource_limits import has_memory_groups

from talaria.core.redaction import Redactor
from talaria.tools.output import CapturedOutput
from talaria.tools.sandbox.base import SandboxLimits, SandboxPolicy, ToolHost
from talaria.tools.sandbox.host.descendants import memory_used
from talaria.tools.sandbox.launching import launch_host
from talaria.tools.sandbox.local import make_bare_launch
from talaria.tools.sandbox.running_command import SandboxCommand

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it needs /proc")
MIB = 1 << 20
TAKE = "held = bytearray(b'x') * ({} << 20)"


@contextmanager
def holding(code: str) -> Generator[int]:
    """A process that waits, once the first of it has said so, for its input to end."""
    words = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"{code}; is_first and print('on', flush=True); import sys; sys.stdin.read()",
    ]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        yield process.pid


def test_memory_that_processes_share_counts_once() -> None:
    with holding(f"import os; {TAKE.format(60)}; is_first = os.fork() and os.fork()") as pid:
        assert sum(memory_used([pid], 1 << 40).values()) > 60 * MIB  # nobody is near the limit: it need not be exact
        assert 50 * MIB < memory_used([pid], 90 * MIB)[pid] < 90 * MIB


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[ToolHost]:
    view = SandboxPolicy(project=tmp_path, home=tmp_path, environment={"PATH": "/usr/bin:/bin"})
    async with launch_host(
        make_bare_launch(view, view.environment, str(tmp_path / "state"), memory_bytes=120 * MIB)
    ) as opened:
        yield opened


async def test_the_command_that_uses_most_is_ended_without_a_control_group(host: ToolHost, tmp_path: Path) -> None:
    small, large = (
        host.start(
            SandboxCommand(
                program=(sys.executable, "-I", "-S", "-c", f"{TAKE.format(size)}; import time; time.sleep(60)")
            ),
            CapturedOutput(tmp_path / f"spill/s/{size}", Redactor()),
        )
        for size in (30, 150)
    )
    assert (await large.wait()).why == "memory"
    assert small.end is None
    assert (await small.kill()).why == ""


@pytest.mark.skipif(not has_memory_groups(), reason="no control group can limit memory here")
async def test_what_the_kernel_kills_for_its_memory_is_told(tmp_path: Path) -> None:
    """The tool host is not told to look here."""
    view = SandboxPolicy(project=tmp_path, home=tmp_path, environment={"PATH": "/usr/bin:/bin"})
    launch = make_bare_launch(view, view.environment, str(tmp_path / "state"))
    async with launch_host(structs.replace(launch, limits=SandboxLimits(memory_bytes=64 * MIB))) as host:
        for command, why in ((f'{sys.executable} -ISc "{TAKE.format(200)}" || exit 7', "memory"), ("exit 7", "")):
            end = await host.start(
                SandboxCommand(command=command), CapturedOutput(tmp_path / "spill/s/x", Redactor())
            ).wait()
            assert (end.code, end.why, end.limit_bytes) == (7, why, 64 * MIB)
