"""Running the escape matrix in a sandbox, as a command of the model would run there."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from talaria.model.ids import SessionId
from talaria.model.redaction import Redactor
from talaria.tools.blocking import in_threads
from talaria.tools.output import Output
from talaria.tools.quarantine import Quarantine
from talaria.tools.sandbox.base import Limits, Sandbox, View
from talaria.tools.sandbox.canaries import Canaries
from talaria.tools.sandbox.commands import Command
from talaria.tools.sandbox.probes import Finding, judge
from talaria.tools.sandbox.settings import TerminalSettings
from talaria.tools.sandbox.system import PYTHON
from talaria.tools.sandbox.view import view_of
from talaria.trees import Root
from talaria.waiting import in_thread

LIMITS = Limits(processes=256, scratch_bytes=32 << 20, file_bytes=64 << 20)


async def attempted(sandbox: Sandbox, home: Path, settings: TerminalSettings) -> list[Finding]:
    """All attempts, one after the other. `home` is Talaria's own: something to go for is put there meanwhile."""
    async with in_threads(_planted(home, settings)) as (canaries, view), sandbox.opened(view) as host:
        output = Output(view.project.with_name("spill") / "trial" / "output", Redactor())
        command = Command(program=(PYTHON, "-I", "-S", *canaries.arguments))
        await host.start(command, output).ended()
        output.close()
        said = output.text().splitlines()
        await in_thread(lambda: _tidy(view))
        return await in_thread(lambda: judge(said, canaries))


def _tidy(view: View) -> None:
    """As a workspace does after each command; thrown away with all the rest."""
    names = [str(path.relative_to(view.project)) for path in view.unwanted]
    with Root.open(view.project) as project:
        Quarantine(view.project.parent, SessionId("trial")).move(project, names)


@contextmanager
def _planted(home: Path, settings: TerminalSettings) -> Generator[tuple[Canaries, View]]:
    """Around a project that is there for that only."""
    with TemporaryDirectory(prefix="talaria-trial-") as folder:
        project = Path(folder).resolve() / "project"
        project.mkdir()
        with Canaries(project=project, home=Path.home().resolve(), agent_home=home, limits=LIMITS) as canaries:
            yield canaries, view_of(project, home, settings, os.environ, LIMITS)
