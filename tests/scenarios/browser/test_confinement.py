"""What a browser that was taken over would find: nothing of the person, nothing of ours."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.scenarios.browser.conftest import Site, Visitor, command, processes, works

from talaria.testing.patience import PATIENCE_S
from talaria.tools.browser import browser_process

BASH = "/usr/bin/bash"


Found = Callable[[str], str]


@pytest.fixture
def found() -> Found:
    """What a shell says that runs where the browser does."""

    def run(script: str) -> str:
        environment = {**os.environ, "OPENAI_API_KEY": "secret-key"}
        words = (*browser_process.confinement(), BASH, "-c", script)
        done = subprocess.run(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            timeout=PATIENCE_S,
            check=False,
        )
        return done.stdout

    if not os.access(browser_process.BWRAP, os.X_OK) or run("echo works") != "works\n":
        pytest.skip("needs bubblewrap, and that it works on this machine")
    return run


def test_browser_sees_no_files_of_the_person(found: Found, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret-file")
    here, home = Path(__file__), Path.home()
    said = found(f"cat {tmp_path}/secret {here} {home}/.bashrc /etc/shadow /etc/passwd; ls {home}; env; id -u")
    assert "secret-file" not in said
    assert "secret-key" not in said
    assert "root:" not in said
    assert here.read_text()[:30] not in said
    assert said.endswith("\n1000\n")


def test_browser_can_write_to_its_own_memory_only(found: Found, tmp_path: Path) -> None:
    own = f"/tmp/{tmp_path.name}-scratch"
    said = found(f"echo a >{own} && cat {own}; for at in / /usr /etc {tmp_path}; do echo b >$at/b; done")
    assert said.startswith("a\n")
    assert not Path(own).exists()
    assert not (tmp_path / "b").exists()
    assert said.count("Read-only file system") + said.count("No such file") == 4


def test_browser_sees_no_other_processes(found: Found) -> None:
    pids = found("cd /proc; echo [0-9]*").split()
    assert len(pids) < 5
    assert str(os.getpid()) not in pids


async def test_own_sandbox_of_the_browser_is_on(found: Found, visitor: Visitor, site: Site) -> None:
    await works(visitor, site)
    confined = [pid for pid in processes("--remote-debugging-pipe") if browser_process.BWRAP in command(pid)]
    assert confined != []
    assert not any("--no-sandbox" in command(pid) for pid in confined)
    assert any("--type=renderer" in command(pid) for pid in processes("--type="))


def test_without_bubblewrap_there_is_no_wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser_process, "BWRAP", "/nonexistent/bwrap")
    assert browser_process.make_confining_wrapper(Path(BASH), tmp_path) is None
