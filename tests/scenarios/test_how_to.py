"""The examples in docs/how-to work as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

from talaria.compose import read_settings
from talaria.config.routes import plan
from talaria.config.selection import Choice, choose, endpoint
from talaria.model.secret import Secret

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


def blocks(file: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (HOW_TO / file).read_text("utf-8"), re.DOTALL)


def block(file: str, language: str) -> str:
    return blocks(file, language)[0]


def test_the_tool_of_the_how_to_runs(tmp_path: Path) -> None:
    environment = {**os.environ, "TALARIA_HOME": str(tmp_path / "home")}
    ran = subprocess.run(
        [sys.executable, "-c", block("add-a-tool.md", "python")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "100.0" in ran.stdout


def test_the_provider_of_the_how_to_is_understood(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(block("add-a-provider.md", "yaml"))
    (tmp_path / ".env").write_text("HOUSE_KEY=k\n")
    (tmp_path / ".env").chmod(0o600)
    settings = read_settings(tmp_path)
    choice = choose(settings.config, settings.environment)
    assert choice is not None
    chosen = endpoint(choice, settings.config, settings.environment)
    assert (chosen.label, chosen.keys, chosen.window) == ("house:llama-4", (Secret("k"),), 131072)


def test_the_fallbacks_of_the_how_to_are_understood(tmp_path: Path) -> None:
    _, fallbacks = blocks("add-a-provider.md", "yaml")
    given = fallbacks.replace("house: {", "house: {base_url: 'http://127.0.0.1:9/v1', ")
    (tmp_path / "config.yaml").write_text(f"model: {{default: 'groq:m', api_key: k}}\n{given}")
    settings = read_settings(tmp_path)
    primary = endpoint(choose(settings.config, {}) or Choice("groq"), settings.config, {})
    planned = plan(primary, settings.config, {"OPENROUTER_API_KEY": "k"})
    first, second = planned.route.fallbacks
    assert (first.label, len(first.keys), first.rotation, first.timeouts.first_byte_s) == (
        "house:llama-4",
        2,
        "round_robin",
        900,
    )
    assert second.label == "openrouter:openrouter/auto"
