"""Whatever a server has started ends with us: when we close, and when we are killed."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import pytest
from tests.contracts.mcp.conftest import ODD, Odd, Open, is_alive
from tests.waiting import until

from talaria.tools.sandbox.host.descendants import descendants

PROGRAM = """
import asyncio, os, sys
from contextlib import suppress
from pathlib import Path
from talaria.core.clock import SystemClock
from talaria.tools.mcp.server_entries import SandboxNeeds, ServerEntry
from talaria.tools.mcp.sandboxing import ServerSandboxes
from talaria.tools.mcp.servers import open_servers
from talaria.tools.sandbox.sandbox_settings import TerminalSettings

async def main():
    folder, clock = Path(sys.argv[3]), SystemClock()
    needs = SandboxNeeds(write=(str(folder),)) if sys.argv[4] != "outside" else False
    entry = ServerEntry(command=sys.executable, args=("-I", "-S", *sys.argv[1:4]), sandbox=needs)
    settings = TerminalSettings(backend="auto" if sys.argv[4] == "outside" else sys.argv[4])
    sandboxes = ServerSandboxes(settings, Path(sys.argv[3]).parent / "home", clock, configured=["odd"])
    async with open_servers({"odd": entry}, Path(sys.argv[3]).parent / "home", clock, os.environ, sandboxes):
        print("open", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def running(folder: Path) -> list[int]:
    """Processes that were started with this folder."""
    found: list[int] = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                if os.fsencode(folder) in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
    return found


def brood(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "children").read_text().split()]


async def test_children_of_a_server_end_when_it_is_closed(opened: Open, odd: Odd, folder: Path) -> None:
    async with opened(odd=odd("brood")):
        children = brood(folder)
        assert [is_alive(pid) for pid in children] == [True, True]
    assert [is_alive(pid) for pid in children] == [False, False]


async def test_server_that_wants_to_stay_is_ended(opened: Open, odd: Odd, folder: Path) -> None:
    """It sleeps for a minute, and does not heed the signal that asks it to end."""
    async with opened(odd=odd("stubborn")):
        assert running(folder)
    assert running(folder) == []


@pytest.mark.parametrize("sandbox", ["outside", "bubblewrap", "landlock"])
async def test_everything_ends_when_we_are_killed(folder: Path, sandbox: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", dedent(PROGRAM), str(ODD), "brood", str(folder), sandbox], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == b"open\n"
    children = descendants(process.pid)
    assert len(children) >= 2 + len(brood(folder))  # they have other numbers in a sandbox
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    await until(lambda: not any(is_alive(pid) for pid in children))
    await until(lambda: running(folder) == [])
