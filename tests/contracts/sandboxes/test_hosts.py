"""Tool hosts come and go whole."""

import asyncio
import os
import select
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.descriptors import count_descriptors, descriptors_fall_to

from talaria.tools.sandbox.base import SandboxPolicy
from talaria.tools.sandbox.chooser import SandboxChooser
from talaria.tools.sandbox.sandbox_settings import TerminalSettings

AGENT = """\
import asyncio, sys
from pathlib import Path
import msgspec
from talaria.tools.sandbox.base import SandboxPolicy
from talaria.tools.sandbox.chooser import SandboxChooser
from talaria.tools.sandbox.running_command import SandboxCommand
from talaria.tools.sandbox.sandbox_settings import TerminalSettings

class Sink:
    def add(self, chunk): sys.stdout.buffer.write(chunk); sys.stdout.buffer.flush()
    def skip(self, size_bytes): pass

async def main():
    settings = msgspec.json.decode(sys.argv[1], type=TerminalSettings)
    policy = SandboxPolicy(project=Path(sys.argv[2]), home=Path.home())
    async with SandboxChooser(settings).sandbox.open(policy) as host:
        await host.start(SandboxCommand(command=sys.argv[3]), Sink()).wait()

asyncio.run(main())
"""


@pytest.mark.everywhere
def test_nothing_outlives_an_agent_that_is_killed(settings: TerminalSettings, cwd: Path) -> None:
    os.mkfifo(cwd / "line")
    line = os.open(cwd / "line", os.O_RDONLY | os.O_NONBLOCK)
    command = "exec 9>line; (setsid sleep 1000 &); echo up; sleep 1000"
    agent = subprocess.Popen(
        (sys.executable, "-c", AGENT, msgspec.json.encode(settings), cwd, command), stdout=subprocess.PIPE
    )
    assert agent.stdout is not None
    with agent.stdout as told:
        assert told.read(3) == b"up\n"
        agent.kill()
        agent.wait()
    poll = select.poll()
    poll.register(line, select.POLLIN)
    assert poll.poll(10_000)
    assert os.read(line, 1) == b""  # nobody has it open any more
    os.close(line)


async def test_start_that_is_interrupted_at_any_moment_leaves_nothing_open(
    settings: TerminalSettings, cwd: Path
) -> None:
    sandbox = SandboxChooser(settings).sandbox

    async def opened() -> None:
        async with sandbox.open(SandboxPolicy(project=cwd, home=Path.home())):
            pass

    await opened()  # what asyncio opens once is open now
    before = count_descriptors()
    for elapsed_ms in range(0, 60, 3):
        opening = asyncio.create_task(opened())
        await asyncio.wait([opening], timeout=elapsed_ms / 1000)
        opening.cancel()
        await asyncio.wait([opening])
    await descriptors_fall_to(before)
