"""A hostile MCP server does no harm from the sandbox; outside of it (`sandbox: false`) the same attempts succeed."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.scenarios.conftest import commands, environment, home, server, talaria

from talaria.app.build import open_store
from talaria.core.entries import MessageAdded
from talaria.core.messages import ToolResult
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, call
from talaria.tools.sandbox import bubblewrap, landlocked

__all__ = ["commands", "environment", "home", "server", "talaria"]

SERVER = Path(__file__).with_name("hostile_mcp_server.py")
ENTRY = {"command": sys.executable, "args": ["-I", "-S", str(SERVER)]}
KEY = "sk-of-talaria-1"
FAULTS = {"bubblewrap": bubblewrap.fault, "landlock": landlocked.fault}


class Hostile:
    def __init__(self, talaria: Callable[..., "subprocess.CompletedProcess[str]"], model: ModelServer, home: Path):
        self._talaria = talaria
        self._model = model
        self._home = home
        self._config = (home / "config.yaml").read_text()

    def configure(self, backend: str = "auto", **entry: Any) -> None:
        more = {"terminal": {"backend": backend}, "mcp_servers": {"evil": {**ENTRY, **entry}}}
        lines = "".join(f"{key}: {json.dumps(value)}\n" for key, value in more.items())
        (self._home / "config.yaml").write_text(self._config + lines)

    def attack(self, **attempts: tuple[object, ...]) -> dict[str, str]:
        """What came of each, as the model is told."""
        self._model.say(Reply(calls=(call("mcp_evil_attack", attempts=json.dumps(attempts)),)), "Done.")
        ended = self._talaria("-q", "Go.", env={"SERVICE_API_KEY": KEY, "PYTHONUTF8": "1"})  # a process of its own
        assert ended.returncode == 0, ended.stderr
        told = asyncio.run(self._results())[-1]
        assert told.startswith("{"), told
        return json.JSONDecoder().raw_decode(told)[0]

    async def _results(self) -> list[str]:
        async with open_store(self._home) as store:
            rows = await store.sessions.list()
            entries = [one.entry for row in rows for one in await store.journal.entries(row.id)]
        messages = [entry.message for entry in entries if isinstance(entry, MessageAdded)]
        return [message.text for message in messages if isinstance(message, ToolResult)]


@pytest.fixture
def hostile(talaria: Callable[..., Any], server: ModelServer, home: Path) -> Hostile:
    return Hostile(talaria, server, home)


@pytest.fixture
def attempts(tmp_path: Path, home: Path, environment: dict[str, str]) -> Iterator[dict[str, tuple[object, ...]]]:
    """Each of them succeeds where nothing holds."""
    for file in (tmp_path / ".ssh/id", home / ".env", tmp_path / "letter.txt"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("A=private\n")
        file.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as sink:
        port = sink.getsockname()[1]
        yield {
            "an ssh key": ("read", str(tmp_path / ".ssh/id")),
            "Talaria's secrets": ("read", str(home / ".env")),
            "a letter in the home": ("read", str(tmp_path / "letter.txt")),
            "Talaria's environment": ("environments", "SERVICE_API_KEY"),
            "a file in the home": ("write", str(tmp_path / "planted")),
            "Talaria's settings": ("write", str(home / "planted")),
            "the project": ("write", str(Path(environment["PWD"]) / "planted")),
            "a server on this machine": ("connect", "127.0.0.1", port),
        }


def harm(told: dict[str, str], attempts: dict[str, tuple[object, ...]]) -> list[str]:
    """What succeeded. A file that was written may be in a folder that only the server saw."""
    done = [name for name in attempts if not told[name].startswith("refused")]
    return [name for name in done if attempts[name][0] != "write" or Path(str(attempts[name][1])).exists()]


@pytest.mark.parametrize("backend", FAULTS)
def test_nothing_of_what_a_hostile_server_tries_succeeds(
    hostile: Hostile, attempts: dict[str, tuple[object, ...]], backend: str
) -> None:
    if reason := FAULTS[backend]():
        pytest.skip(f"{backend}: {reason}")
    hostile.configure(backend)
    assert harm(hostile.attack(**attempts), attempts) == []


def test_all_of_it_succeeds_outside_of_the_sandbox(hostile: Hostile, attempts: dict[str, tuple[object, ...]]) -> None:
    hostile.configure(sandbox=False)
    assert harm(hostile.attack(**attempts), attempts) == [*attempts]
