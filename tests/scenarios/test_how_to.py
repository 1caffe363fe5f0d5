"""The examples in docs/how-to work as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

from talaria.compose import read_settings
from talaria.config.selection import choose, endpoint

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


def block(file: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", (HOW_TO / file).read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


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
    assert (chosen.label, chosen.key.reveal(), chosen.window) == ("house:llama-4", "k", 131072)
