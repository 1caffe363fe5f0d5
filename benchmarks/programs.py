"""Whole programs, from their start to their exit."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = sys.executable
TALARIA = str(Path(sysconfig.get_path("scripts")) / "talaria")


def run(*command: str, home: Path | None = None, cwd: Path | None = None) -> str:
    """What it printed. Raises if it failed."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home or Path.home()), "TALARIA_HOME": str(home or "")}
    return subprocess.check_output(command, env=environment, cwd=cwd or home, stdin=subprocess.DEVNULL, text=True)
