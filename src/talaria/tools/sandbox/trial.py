"""Running the escape matrix in a sandbox, as a command of the model would run there."""

import os
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from talaria.model.redaction import Redactor
from talaria.tools.output import Output
from talaria.tools.sandbox.base import Limits, Sandbox
from talaria.tools.sandbox.canaries import Canaries
from talaria.tools.sandbox.commands import Command
from talaria.tools.sandbox.probes import Finding, judge
from talaria.tools.sandbox.settings import TerminalSettings
from talaria.tools.sandbox.system import PYTHON
from talaria.tools.sandbox.view import view_of
from talaria.waiting import in_thread

LIMITS = Limits(processes=256, scratch_bytes=32 << 20, file_bytes=64 << 20)


async def attempted(sandbox: Sandbox, home: Path, settings: TerminalSettings) -> list[Finding]:
    """All attempts, one after the other. `home` is Talaria's own: something to go for is put there meanwhile."""
    with TemporaryDirectory(prefix="talaria-trial-") as folder:
        planting = await in_thread(lambda: _Planting(folder, home, settings))
        try:
            output = Output(planting.output, Redactor())
            async with sandbox.opened(planting.view) as host:
                command = Command(program=(PYTHON, "-I", "-S", *planting.canaries.arguments))
                await host.start(command, output).ended()
                output.close()
                said = output.text().splitlines()
                return await in_thread(lambda: judge(said, planting.canaries))
        finally:
            await in_thread(planting.remove)


class _Planting:
    """A project and canaries around it."""

    def __init__(self, folder: str, home: Path, settings: TerminalSettings) -> None:
        project = Path(folder).resolve() / "project"
        project.mkdir()
        self.output = Path(folder) / "output"
        self.canaries = Canaries(project=project, home=Path.home().resolve(), agent_home=home, limits=LIMITS)
        with ExitStack() as planted:
            planted.enter_context(self.canaries)
            self.view = view_of(project, home, settings, os.environ, LIMITS)
            self.remove = planted.pop_all().close
