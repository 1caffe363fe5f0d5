"""What weakens the machine is said at every start, wherever that is: as root, and where the sandbox is not the best."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.scenarios.conftest import COMMAND
from tests.scenarios.typescript import Terminal

from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, call

ROOT = "Warning: Talaria is running as root."
WEAKER = "Warning: commands run in a weaker sandbox, level landlock"
NONE = "Warning: commands run without a sandbox"
WITHOUT_BWRAP = 'mount --bind /dev/null /usr/bin/bwrap && exec "$@"'

As = Callable[[int], dict[str, str]]


@pytest.fixture
def running_as(environment: dict[str, str], tmp_path: Path) -> As:
    """The environment of a command that takes itself for this user."""

    def prepare(user: int) -> dict[str, str]:
        (tmp_path / "user").mkdir()
        (tmp_path / "user/sitecustomize.py").write_text(f"import os\nos.geteuid = lambda: {user}\n")
        return {**environment, "PYTHONPATH": str(tmp_path / "user")}

    return prepare


def said(environment: dict[str, str], *words: str, before: tuple[str, ...] = (), input: str = "") -> str:
    """On stderr."""
    command = [*before, *COMMAND, *words]
    place = environment["PWD"]
    ended = subprocess.run(
        command, env=environment, cwd=place, input=input, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "Warning" not in ended.stdout
    return ended.stderr


@pytest.mark.parametrize("user", [0, 1000])
def test_root_is_told_at_every_start(running_as: As, user: int, home: Path) -> None:
    environment = running_as(user)
    asked = said(environment, "-m", "demo", "-q", "hello")
    streamed = said(environment, "-m", "demo", "-q", "hello", "--output-format", "stream-json")
    piped = said(environment, "-m", "demo", input="hello\n")
    with Terminal(environment, "-m", "demo") as terminal:
        terminal.see("/help")
        terminal.type("/exit\r")
        terminal.end()
        shown = " ".join(terminal.screen.split())
    assert {ROOT in one for one in (asked, streamed, piped, shown)} == {user == 0}
    assert "can do anything on this machine" in asked or user != 0


@pytest.mark.parametrize("user", [0, 1000])
def test_the_gateway_tells_of_root_and_keeps_it_in_its_log(running_as: As, user: int, home: Path) -> None:
    home.mkdir(mode=0o700)
    routes = {"ci": {"reply_url": "http://127.0.0.1:9/"}}
    webhook = {"listen_port": 0, "secret": "s" * 32, "routes": routes}
    settings = {"model": {"provider": "demo"}, "gateway": {"platforms": {"webhook": webhook}}}
    (home / "config.yaml").write_text(json.dumps(settings))
    command = [*COMMAND, "gateway", "run"]
    with subprocess.Popen(command, env=running_as(user), stderr=subprocess.PIPE, text=True) as gateway:
        assert gateway.stderr is not None
        lines: list[str] = []
        while "The gateway is running with" not in (line := gateway.stderr.readline()):
            assert line, lines
            lines.append(line)
        gateway.send_signal(signal.SIGTERM)
        gateway.stderr.read()
    assert any(ROOT in line for line in lines) is (user == 0)
    assert ("Talaria is running as root." in (home / "logs/gateway.log").read_text()) is (user == 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hide bubblewrap")
@pytest.mark.parametrize("format", ["text", "stream-json"])
def test_a_weaker_sandbox_is_told_before_a_command_runs_in_it(
    environment: dict[str, str], server: ModelServer, format: str
) -> None:
    without = ("unshare", "--mount", "--propagation", "private", "sh", "-c", WITHOUT_BWRAP, "sh")
    for before, is_told in ((without, True), ((), False)):
        server.say(Reply(calls=(call("terminal", command="echo here > ran"),)), "Done.")
        told = said(environment, "-q", "Go.", "--output-format", format, before=before)
        assert (WEAKER in told) is is_told
        assert "because bubblewrap does not work" in told or not is_told
        assert (Path(environment["PWD"]) / "ran").read_text() == "here\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hide bubblewrap")
def test_a_weaker_sandbox_is_told_at_the_start_of_a_chat(environment: dict[str, str]) -> None:
    without = ("unshare", "--mount", "--propagation", "private", "sh", "-c", WITHOUT_BWRAP, "sh")
    with Terminal(environment, "-m", "demo", program=(*without, *COMMAND)) as terminal:
        terminal.see("/help", "level landlock")
        terminal.type("/exit\r")
        terminal.end()


def test_a_sandbox_that_was_asked_for_is_no_surprise(
    environment: dict[str, str], server: ModelServer, home: Path
) -> None:
    with (home / "config.yaml").open("a") as config:
        config.write("terminal: {backend: landlock}\n")
    server.say(Reply(calls=(call("terminal", command="true"),)), "Done.")
    told = said(environment, "-q", "Go.")
    assert WEAKER not in told
    assert NONE not in told
