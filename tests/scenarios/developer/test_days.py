"""A day's work of a developer, with real programs, at each level and as root and as a user: nothing is asked twice, the
sandbox is left only with a yes, and nothing is lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contracts.sandboxes.users import a_user

MODULE = "tests.scenarios.developer.days"
USUAL = {
    ("python", "bubblewrap", "we"),
    ("node", "bubblewrap", "a user"),
    ("go", "landlock", "a user"),
    ("git", "bubblewrap", "a user"),
}
"""One path of each; the others are long. `we`: whoever runs the tests."""
PATHS = [
    pytest.param(day, level, who, marks=() if (day, level, who) in USUAL else pytest.mark.long)
    for day in ("python", "node", "go", "git")
    for level in ("bubblewrap", "landlock")
    for who in ("we", "a user")
]


@pytest.mark.skipif(sys.platform != "linux", reason="the sandboxes are those of Linux")
@pytest.mark.parametrize(("day", "level", "who"), PATHS)
def test_a_day(day: str, level: str, who: str, tmp_path: Path) -> None:
    if who == "we":
        words = (sys.executable, "-B", "-m", MODULE, day, level, str(tmp_path))
        done = subprocess.run(words, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        missing = done.stdout
    elif os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    else:
        with a_user() as user:
            missing = user.run("-m", MODULE, day, level, str(user.folder))
    if missing:
        pytest.skip(missing.strip())
