"""What the README shows works as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

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
