"""What the README shows works as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

from talaria.app.settings import read_settings
from talaria.config.routes import plan
from talaria.config.selection import choose, endpoint

README = Path(__file__).parents[2] / "README.md"


def test_library_example_of_the_readme_runs(environment: dict[str, str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    examples = [block for block in blocks if "from talaria import" in block]
    assert examples, f"{README} shows no python block with `from talaria import`"

    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", examples[0]],
        env=environment,
        cwd=environment["PWD"],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.strip()


def test_settings_of_the_readme_are_understood(tmp_path: Path) -> None:
    shown = re.findall(r"^```yaml\n(.*?)^```", README.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    (tmp_path / "config.yaml").write_text("".join(shown))
    config, keys = read_settings(tmp_path).config, {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "b"}
    choice = choose(config, keys)
    assert choice is not None
    planned = plan(endpoint(choice, config, keys), config, keys)
    assert [one.label for one in planned.route.endpoints] == ["anthropic:claude-sonnet-4-5", "openai:gpt-5"]
    assert (planned.left_out, config.limits.turn.cost_usd) == ((), 2.0)
