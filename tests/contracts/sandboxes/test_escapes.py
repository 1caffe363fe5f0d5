"""The escape matrix, run for real: at the level that is claimed, nothing of it succeeds."""

from pathlib import Path

import pytest

from talaria.cli.health.escapes.escape_trial import LINKS, MEMORY, POLICY, RESOURCES, try_escapes
from talaria.cli.health.escapes.probes import ATTEMPTS, ProbeResult
from talaria.tools.sandbox.base import Level, Sandbox
from talaria.tools.sandbox.bubblewrap import Bubblewrap
from talaria.tools.sandbox.chooser import best
from talaria.tools.sandbox.landlocked import Landlocked
from talaria.tools.sandbox.local import Local
from talaria.tools.sandbox.sandbox_settings import Backend, TerminalSettings

pytestmark = pytest.mark.xdist_group("escapes")
_FOUND: dict[Backend, list[ProbeResult]] = {}
"""Looked for once: it takes some seconds."""


WITH_THE_CONTROL = pytest.mark.parametrize(
    "backend", ["bubblewrap", "landlock", pytest.param("local", marks=pytest.mark.long)], indirect=True
)
"""Where nothing holds, all of it takes some seconds more."""


@pytest.fixture
async def findings(backend: Backend, tmp_path: Path) -> list[ProbeResult]:
    sandboxes: dict[Backend, Sandbox] = {"bubblewrap": Bubblewrap(), "landlock": Landlocked(), "local": Local()}
    home = tmp_path / "home"
    home.mkdir()
    if backend not in _FOUND:
        _FOUND[backend] = await try_escapes(sandboxes[backend], home, TerminalSettings())
    return _FOUND[backend]


LEVELS: dict[Backend, Level] = {"bubblewrap": "strict", "landlock": "landlock", "local": "none"}
WEAKNESSES: dict[Backend, set[str]] = {
    "bubblewrap": set(),
    "landlock": {
        "write .git/hooks",
        "write .git/config",
        "write .talaria",
        "write .mcp.json",
        "move guarded files away",
        "fill the temporary folder",
        "reach its own server",
        "use up the user's inotify instances",
    },
}


@WITH_THE_CONTROL
async def test_no_escape_succeeds_at_the_claimed_level(findings: list[ProbeResult], backend: Backend) -> None:
    failed = [(one.name, one.detail) for one in findings if one.verdict(LEVELS[backend]) == "fail"]
    assert failed == []
    assert len(findings) == len((*ATTEMPTS, *RESOURCES, *LINKS, *POLICY))


@WITH_THE_CONTROL
async def test_what_a_level_does_not_give_is_known(findings: list[ProbeResult], backend: Backend) -> None:
    amiss = {one.name for one in findings if one.verdict(LEVELS[backend]) == "warn"}
    if backend == "local":  # nothing holds there: so every attempt can succeed
        assert len(amiss) > 25
        assert MEMORY.name in amiss
    else:
        assert amiss == WEAKNESSES[backend]


def test_strict_sandbox_is_what_people_get_here() -> None:
    assert best().level == "strict"
