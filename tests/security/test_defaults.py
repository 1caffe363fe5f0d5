"""What holds when nobody has set anything. A change here is a change of what people can rely on."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.scenarios.conftest import commands, environment, home, server, talaria

from talaria.app.settings import read_settings
from talaria.config.schema import Config
from talaria.core.clock import SystemClock
from talaria.core.errors import BadConfig
from talaria.gateway.authorization import Gatekeeper, Rules
from talaria.platforms.base import Address, Arrival, PlatformSettings, Sender
from talaria.store.memory import MemoryStore
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, call
from talaria.tools.sandbox.chooser import SandboxChooser

__all__ = ["commands", "environment", "home", "server", "talaria"]

Talaria = Callable[..., "subprocess.CompletedProcess[str]"]
KEY = "sk-default-7QmX2vLpZ9rT4wKc"


def test_commands_run_in_the_strict_sandbox_without_a_network() -> None:
    terminal = Config().terminal
    assert terminal.backend == "auto"
    assert SandboxChooser(terminal).sandbox.level == "strict"
    assert (terminal.network, terminal.read, terminal.write) == ((), (), ())


def test_people_are_asked_and_nothing_is_allowed_beforehand() -> None:
    approvals = Config().approvals
    assert approvals.mode == "manual"
    assert approvals.allow == ()


def test_no_plugin_server_or_private_address_is_let_in() -> None:
    config = Config()
    assert (config.plugins.enabled, config.plugins.project) == ((), False)
    assert (config.memory.provider, config.context.engine, config.wants_plugins) == (None, "compressor", False)
    assert config.all_mcp_servers == {}
    assert config.web.allow_private == ()


def test_strangers_are_offered_a_code_and_groups_need_more() -> None:
    gateway, platform = Config().gateway, PlatformSettings()
    assert (gateway.platforms, gateway.pairing, gateway.metrics_port) == ({}, True, None)
    assert (platform.allowed_users, platform.admin_users, platform.allowed_chats) == ((), (), ())
    assert (platform.allow_all_users, platform.require_mention) == (False, True)
    someone = Arrival("1", Address("telegram", "7"), "dm", Sender("7", "Admin"), "hello")
    door = Gatekeeper(MemoryStore(SystemClock()), SystemClock(), {"telegram": Rules.of(platform)})
    assert door.judge(someone) == "stranger"
    assert door.judge(msgspec.structs.replace(someone, kind="group", is_addressed=True)) == "ignored"


def test_keys_are_kept_from_whatever_is_shown(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"SERVICE_API_KEY={KEY}\n")
    (tmp_path / ".env").chmod(0o600)
    assert read_settings(tmp_path).redactor.text(f"it is {KEY}") == "it is •••"


def test_keys_that_others_can_read_are_not_used(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"SERVICE_API_KEY={KEY}\n")
    (tmp_path / ".env").chmod(0o644)
    with pytest.raises(BadConfig, match="chmod 600"):
        read_settings(tmp_path)


def test_where_nobody_can_be_asked_the_answer_is_no(talaria: Talaria, server: ModelServer, home: Path) -> None:
    outside = home.parent / "outside.txt"
    server.say(Reply(calls=(call("write_file", path=str(outside), content="x"),)), "Done.")
    assert talaria("-q", "Write it.").returncode == 6
    assert "nobody is here to give it" in str(server.requests[-1].json["messages"][-1])
    assert not outside.exists()


LOGGING = """
import logging, click
from talaria.cli.context import settings
settings(click.Context(click.Command("any")))
logging.getLogger("talaria.any").warning("look")
"""


@pytest.fixture
def used_home(environment: dict[str, str], talaria: Talaria, home: Path) -> Path:
    """Of somebody who does not care about file modes."""

    def careless() -> None:
        os.umask(0)

    with ModelServer() as model:
        steps = (
            call("terminal", id="c1", command="seq 100000"),
            call("write_file", id="c2", path="notes.txt", content="a"),
            call("todo", id="c3", todos=[{"id": "a", "content": "b"}]),
        )
        model.say(Reply(calls=steps), Reply(calls=(call("write_file", path="notes.txt", content="b"),)), "Done.")
        address = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": KEY}
        for words in (("-q", "Go.", "-m", "openai:m"), ("sessions", "search", "Go")):
            ended = talaria(*words, env=address, preexec_fn=careless)
            assert ended.returncode == 0, ended.stderr
    subprocess.run([sys.executable, "-c", LOGGING], env=environment, check=True, preexec_fn=careless)
    return home


def test_what_is_written_belongs_to_the_person_alone_whatever_the_umask(used_home: Path) -> None:
    closed = ("", "state.db", "search.db", "undo.db", "logs", "todos", "run")
    assert [name for name in closed if (used_home / name).stat().st_mode & 0o077] == []


def test_every_file_of_the_home_is_closed_to_others_whatever_the_umask(used_home: Path) -> None:
    assert [path.name for path in used_home.rglob("*") if path.stat().st_mode & 0o077] == []


def test_servers_that_a_project_brings_are_not_started_before_somebody_agrees(
    talaria: Talaria, server: ModelServer, environment: dict[str, str]
) -> None:
    mark = Path(environment["PWD"], "started")
    entry = {"command": "/bin/sh", "args": ["-c", f"touch {mark}"]}
    Path(environment["PWD"], ".mcp.json").write_text(json.dumps({"mcpServers": {"evil": entry}}))
    server.say("Hello.")
    ended = talaria("-q", "Hi.")
    assert ended.returncode == 0
    assert "is not used until you agree to it" in ended.stderr
    assert not mark.exists()
