"""Running the escape matrix in a sandbox, as a command of the model would run there."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from talaria.cli.health.escapes.canaries import Canaries
from talaria.cli.health.escapes.link_trial import tidy, try_links
from talaria.cli.health.escapes.policy_trial import try_policy
from talaria.cli.health.escapes.probes import ProbeResult, judge
from talaria.cli.health.escapes.resource_trial import try_limits
from talaria.core.aio import in_thread, in_threads
from talaria.core.redaction import Redactor
from talaria.tools.output import CapturedOutput
from talaria.tools.sandbox.base import Sandbox, SandboxLimits, SandboxPolicy
from talaria.tools.sandbox.running_command import SandboxCommand
from talaria.tools.sandbox.sandbox_policy import view_of
from talaria.tools.sandbox.sandbox_settings import TerminalSettings
from talaria.tools.sandbox.system import PYTHON

LIMITS = SandboxLimits(processes=256, scratch_bytes=32 << 20, file_bytes=64 << 20)


async def try_escapes(sandbox: Sandbox, home: Path, settings: TerminalSettings) -> list[ProbeResult]:
    """All attempts, one after the other. `home` is Talaria's own: something to go for is put there meanwhile."""
    async with in_threads(_plant(home, settings)) as (canaries, view), sandbox.open(view) as host:
        output = CapturedOutput(view.project.with_name("spill") / "trial" / "output", Redactor())
        command = SandboxCommand(program=(PYTHON, "-I", "-S", *canaries.arguments))
        await host.start(command, output).wait()
        output.close()
        said = output.text().splitlines()
        await in_thread(lambda: tidy(view))
        findings = await in_thread(lambda: judge(said, canaries))
        intruder, _ = canaries.arguments
        findings += await try_limits(sandbox, view, intruder)
        findings += await try_links(sandbox, view, home, intruder)
    return [*findings, *await try_policy(sandbox, home, settings, os.environ)]


@contextmanager
def _plant(home: Path, settings: TerminalSettings) -> Generator[tuple[Canaries, SandboxPolicy]]:
    """Around a project that is there for that only."""
    with TemporaryDirectory(prefix="talaria-trial-") as folder:
        project = Path(folder).resolve() / "project"
        project.mkdir()
        with Canaries(project=project, home=Path.home().resolve(), agent_home=home, limits=LIMITS) as canaries:
            yield canaries, view_of(project, home, settings, os.environ, LIMITS)
