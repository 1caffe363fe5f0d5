"""What `talaria doctor` finds out about config.yaml and .env."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from talaria.cli.health.finding import Finding, mended
from talaria.compat.hermes.plugin_home import PluginHome
from talaria.config import paths
from talaria.config.edit import take_out
from talaria.config.lenient import Problem
from talaria.config.load import read_yaml
from talaria.settings import Settings, read_settings_leniently

SUBJECT = "settings"
CORRECT = "correct that; `talaria config check` says whether it is right"


def examine(home: Path, *, is_fixing: bool) -> Iterator[Finding]:
    settings = read_settings_leniently(home)
    if foreign := [problem for problem in settings.problems if _is_foreign(problem)]:
        yield mended(_told(settings, foreign), lambda: _moved(settings, foreign), is_fixing=is_fixing)
    yield from problems(settings, without=foreign)
    file = paths.config_file(home)
    if not settings.problems:
        yield Finding(SUBJECT, "ok", str(file) if file.exists() else f"the defaults ({file} is not there)")


def problems(settings: Settings, without: Sequence[Problem] = ()) -> Iterator[Finding]:
    """Each thing that is wrong."""
    wrong = (problem for problem in settings.problems if problem not in without)
    yield from (Finding(SUBJECT, "fail", problem.sentence, CORRECT) for problem in wrong)


def _is_foreign(problem: Problem) -> bool:
    """No setting of ours, and like none: what is like one is rather a slip of the person's."""
    return problem.is_unknown and len(problem.key) == 1 and "did you mean" not in problem.sentence


def _told(settings: Settings, foreign: Sequence[Problem]) -> Finding:
    text = " ".join(problem.sentence for problem in foreign)
    theirs = paths.config_file(PluginHome(settings.home).path)
    remedy = f"take it out; if a plugin wrote it, `talaria doctor --fix` moves it to the settings of plugins, {theirs}"
    return Finding(SUBJECT, "fail", text, remedy)


def _moved(settings: Settings, foreign: Sequence[Problem]) -> str:
    """First written there, then taken out here: whatever happens, it is in one of the two."""
    plugin_home, keys = PluginHome(settings.home), [str(problem.key[0]) for problem in foreign]
    document = read_yaml(paths.config_file(settings.home))
    plugin_home.take_over({key: document[key] for key in keys}, settings.environment)
    kept = take_out(settings.home, keys)
    file = paths.config_file(settings.home)
    return f"moved {', '.join(keys)} from {file} to {paths.config_file(plugin_home.path)}; as it was it is in {kept}"
