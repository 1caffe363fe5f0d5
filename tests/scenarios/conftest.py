"""The real command as a process of its own, in a home of its own, against a scripted model."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.scenarios.forking import CommandServer

from talaria.cli import context
from talaria.testing.servers.model_server import ModelServer

LANG = "C.UTF-8"
COMMAND = (sys.executable, "-m", "talaria.cli.main")
ROOT_WARNING = f"{context.user_warning()}\n" if context.user_warning() else ""
"""Whoever runs the tests may be root. `test_cli_risks.py` looks at what is said then."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Not there yet."""
    return tmp_path / "home"


@pytest.fixture
def environment(tmp_path: Path, home: Path) -> dict[str, str]:
    """No key, no proxy: only what every process has."""
    work = tmp_path / "work"
    work.mkdir()
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # hints then say `talaria`
        "HOME": str(tmp_path),
        "XDG_RUNTIME_DIR": str(tmp_path),  # where bots are claimed: those of other tests have the same name
        "LANG": LANG,
        "TERM": "dumb",
        "TALARIA_HOME": str(home),
        "PWD": str(work),
    }


@pytest.fixture(scope="session")
def commands() -> Iterator[CommandServer]:
    server = CommandServer()
    yield server
    server.close()


@pytest.fixture
def talaria(environment: dict[str, str], commands: CommandServer) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`talaria("-q", "hi", input="piped", env={"X": "y"})`"""

    def run(
        *arguments: str,
        input: str = "",
        env: Mapping[str, str] | None = None,
        preexec_fn: Callable[[], object] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        own = {**environment, **(env or {})}
        if preexec_fn is None and not any(name.startswith(("PYTHON", "LC_")) for name in own) and own["LANG"] == LANG:
            return without_root_warning(commands.run(arguments, own, input))
        ended = subprocess.run(
            [*COMMAND, *arguments],
            input=input,
            env=own,
            cwd=environment["PWD"],
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            check=False,
            preexec_fn=preexec_fn,
        )
        return without_root_warning(ended)

    return run


def without_root_warning(ended: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    ended.stderr = ended.stderr.replace(ROOT_WARNING, "")
    return ended


@pytest.fixture
def server(home: Path) -> Iterator[ModelServer]:
    """The model of this home."""
    with ModelServer() as running:
        home.mkdir(mode=0o700)
        (home / "config.yaml").write_text(f"model: {{default: test-model, base_url: '{running.base_url}'}}\n")
        yield running
