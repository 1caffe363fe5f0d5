"""Whoever runs the tests keeps their home as it is, also when it is attacked in tests, or not there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.own_home import RUNNERS_HOME

ROOT = Path(__file__).parents[2]
ESCAPES = "tests/contracts/sandboxes/test_escapes.py::test_no_escape_succeeds_at_the_claimed_level[bubblewrap]"
"""They plant keys in the home, to be stolen."""

pytestmark = pytest.mark.xdist_group("escapes")


def try_escapes(home: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", ESCAPES],
        cwd=ROOT,
        env={**os.environ, "HOME": str(home), "TEST_RUNNERS_HOME": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    if "1 skipped" in ran.stdout:
        pytest.skip(ran.stdout.strip().splitlines()[-2])
    assert "1 passed" in ran.stdout, f"{ran.stdout[-3000:]}\n{ran.stderr[-1000:]}"


def states(folder: Path) -> dict[str, tuple[int, int]]:
    """That of a folder is another one as soon as anything in it comes or goes, be it for a moment."""
    return {str(one): (one.stat().st_mtime_ns, one.stat().st_size) for one in (folder, *folder.rglob("*"))}


def test_home_is_that_of_the_tests() -> None:
    assert Path.home() != RUNNERS_HOME
    assert Path(os.environ["XDG_RUNTIME_DIR"]).is_relative_to(Path.home())
    assert not [name for name in os.environ if name.startswith("XDG_") and name.endswith("_HOME")]


def test_attacks_leave_the_home_of_the_runner_alone(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/id_ed25519").write_text("key")
    (tmp_path / ".bashrc").touch()
    before = states(tmp_path)
    try_escapes(tmp_path)
    assert states(tmp_path) == before


def test_attacks_need_no_home_of_the_runner(tmp_path: Path) -> None:
    try_escapes(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()
