"""What `talaria doctor` finds out about config.yaml and .env."""

from collections.abc import Iterator
from pathlib import Path

from talaria.cli.health.finding import Finding
from talaria.config import paths
from talaria.settings import Settings, read_settings_leniently

SUBJECT = "settings"
CORRECT = "correct that; `talaria config check` says whether it is right"


def examine(home: Path) -> Iterator[Finding]:
    settings = read_settings_leniently(home)
    file = paths.config_file(home)
    if settings.problems:
        yield from problems(settings)
    else:
        yield Finding(SUBJECT, "ok", str(file) if file.exists() else f"the defaults ({file} is not there)")


def problems(settings: Settings) -> Iterator[Finding]:
    """Each thing that is wrong."""
    yield from (Finding(SUBJECT, "fail", problem.sentence, CORRECT) for problem in settings.problems)
