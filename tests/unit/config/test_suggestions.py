"""What a new config.yaml suggests in its comments: each line works as it stands, also where commands are confined."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from talaria.app.settings import read_settings
from talaria.cli.first_run.setup import CONFIG_HEADER
from talaria.config.routes import plan
from talaria.config.schema import Config
from talaria.config.selection import ModelChoice, endpoint
from talaria.core.clock import SystemClock
from talaria.tools.base import Claim
from talaria.tools.policy import ApprovalSettings, Policy, PolicyRequest
from talaria.tools.protected import Protected
from talaria.tools.sandbox.egress_proxy import EgressProxy
from talaria.tools.sandbox.sandbox_settings import select_variables

SUGGESTIONS = re.findall(r"^#   (\w+: .*?)(?:   *[a-z].*)?$", CONFIG_HEADER, re.MULTILINE)


def _falls_back(config: Config) -> bool:
    keys = {"OPENAI_API_KEY": "k", "GROQ_API_KEY": "k"}
    planned = plan(endpoint(ModelChoice("groq", "m"), config, keys), config, keys)
    return [one.label for one in planned.route.fallbacks] == ["openai:gpt-5"]


def _spends_at_most(config: Config) -> bool:
    return config.limits.day.cost_usd == 5.0


def _opens_the_sandbox(config: Config) -> bool:
    way_out, untouched = (EgressProxy(hosts, (), SystemClock()) for hosts in (config.terminal.network, ()))
    there = {"DJANGO_SETTINGS_MODULE": "shop.settings", "OTHER": "x"}
    return (
        way_out.is_listed("pypi.org")
        and not untouched.is_listed("pypi.org")
        and config.terminal.ports == (5432,)  # what comes of it: tests/contracts/sandboxes/test_needs.py
        and select_variables(config.terminal.env, there) == {"DJANGO_SETTINGS_MODULE": "shop.settings"}
    )


def _reads_notes(config: Config) -> bool:
    home = Path.home()
    request = PolicyRequest("read_file", Claim(reads=(home / "notes/today/a.md",)), Path("/srv/shop"))
    protected = Protected(home, home / ".talaria")
    decisions = [Policy(one, protected).decide(request).decision for one in (ApprovalSettings(), config.approvals)]
    return decisions == ["ask", "allow"]


EFFECTS: dict[str, Callable[[Config], bool]] = {
    "fallback_providers": _falls_back,
    "limits": _spends_at_most,
    "terminal": _opens_the_sandbox,
    "approvals": _reads_notes,
}


def test_every_suggestion_is_tried_here() -> None:
    assert len(SUGGESTIONS) == len(re.findall(r"^#   \w", CONFIG_HEADER, re.MULTILINE))
    assert [next((start for start in EFFECTS if one.startswith(start)), None) for one in SUGGESTIONS] == [*EFFECTS]


@pytest.mark.parametrize("suggestion", SUGGESTIONS)
def test_a_suggestion_works_as_it_stands(tmp_path: Path, suggestion: str) -> None:
    (tmp_path / "config.yaml").write_text(f"{suggestion}\n")
    config = read_settings(tmp_path).config
    assert next(effect for start, effect in EFFECTS.items() if suggestion.startswith(start))(config)
