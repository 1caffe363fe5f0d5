"""No sandbox: commands run on this machine as the person does. Each of them is asked about."""

import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from talaria.tools.sandbox.base import Level, SandboxPolicy, ToolHost
from talaria.tools.sandbox.launching import Launch, launched, program_in, settings_for

SOURCE = str(Path(__file__).parents[3])


class Local:
    level: Level = "none"

    def __init__(self, about: str = "no sandbox, as terminal.backend says") -> None:
        self.about = about

    @asynccontextmanager
    async def opened(self, view: SandboxPolicy) -> AsyncGenerator[ToolHost]:
        folder = f"/tmp/talaria-{os.urandom(8).hex()}"  # noqa: S108
        async with launched(unwrapped(view, view.environment, folder)) as host:
            yield host


def unwrapped(view: SandboxPolicy, environment: Mapping[str, str], folder: str, **more: Any) -> Launch:
    """A tool host with nothing around it."""
    argv = program_in(SOURCE, sys.executable, settings_for(view, folder, **more))
    return Launch(argv=argv, environment=environment)
