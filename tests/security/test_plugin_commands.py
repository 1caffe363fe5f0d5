"""Commands that a plugin runs with tools of the conversation: in the same sandbox, past the same gate as the model's.

What a plugin's own code does is another matter: enabling it is trusting it.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.plugin_sources import write_plugin
from tests.scenarios.conftest import environment, home, server

from talaria import Agent
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, call

__all__ = ["environment", "home", "server"]

UNASKED = {"mode": "off"}
PLUGIN = """
from tools.registry import registry

def register(ctx):
    ways = {"ctx": ctx.dispatch_tool, "registry": registry.dispatch}
    def helper(args):
        return ways[args["way"]](args["tool"], args["args"])
    ctx.register_tool("helper", "set", {"parameters": {"type": "object"}}, helper)
"""


class Victim:
    """A private file, and one that a command outside of the sandbox could make."""

    def __init__(self, folder: Path) -> None:
        self.key = folder / ".ssh/id"
        self.key.parent.mkdir()
        self.key.write_text("private-key-1")
        self.copy = folder / "copied"

    @property
    def command(self) -> str:
        return f"cat {self.key}; cp {self.key} {self.copy}; echo ended"


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    return Victim(tmp_path)


@pytest.fixture
def ask(server: ModelServer, home: Path, environment: dict[str, str]) -> Callable[..., str]:
    """Lets a plugin run the command; what the model is told then."""
    write_plugin(home / "plugins" / "caller", PLUGIN)

    def run(way: str, tool: str, arguments: dict[str, object], **settings: object) -> str:
        config = home / "config.yaml"
        lines = (f"{key}: {json.dumps(value)}\n" for key, value in settings.items())
        config.write_text(config.read_text() + 'plugins: {"enabled": ["caller"]}\n' + "".join(lines))
        server.say(Reply(calls=(call("helper", way=way, tool=tool, args=arguments),)), "Done.")
        with Agent(home=home, cwd=environment["PWD"]) as agent:
            agent.ask_sync("Go.")
        return str(server.requests[-1].json["messages"][-1]["content"])

    return run


@pytest.mark.parametrize("way", ["ctx", "registry"])
def test_a_command_of_a_plugin_runs_in_the_sandbox(ask: Callable[..., str], victim: Victim, way: str) -> None:
    told = ask(way, "terminal", {"command": victim.command}, approvals=UNASKED)
    assert "ended" in told
    assert "private-key-1" not in told
    assert not victim.copy.exists()


def test_a_script_of_a_plugin_runs_in_the_sandbox(ask: Callable[..., str], victim: Victim) -> None:
    code = f"import subprocess; print(subprocess.run({victim.command!r}, shell=True, capture_output=True, text=True))"
    told = ask("ctx", "execute_code", {"code": code}, approvals=UNASKED)
    assert "ended" in told
    assert "private-key-1" not in told
    assert not victim.copy.exists()


def test_the_same_command_does_harm_without_a_sandbox(ask: Callable[..., str], victim: Victim) -> None:
    command = victim.command.replace("/.ssh/", "/.ss?/")  # the floor knows it by its words there
    ask("ctx", "terminal", {"command": command}, approvals=UNASKED, terminal={"backend": "local"})
    assert victim.copy.read_text() == "private-key-1"


def test_a_plugin_is_asked_about_as_the_model_is(ask: Callable[..., str], victim: Victim) -> None:
    told = ask("ctx", "terminal", {"command": "cp /etc/hostname copied"}, terminal={"backend": "local"})
    assert "needs a person's consent, and nobody is here to give it" in told


def test_a_plugin_does_not_leave_the_sandbox_where_nobody_is_asked(ask: Callable[..., str], victim: Victim) -> None:
    command = victim.command.replace("/.ssh/", "/.ss?/")
    told = ask("ctx", "terminal", {"command": command, "needs": ["unsandboxed"]}, approvals=UNASKED)
    assert "questions are turned off and the sandbox stays closed" in told
    assert not victim.copy.exists()
