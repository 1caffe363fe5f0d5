"""`talaria tools`, and what it means for a conversation."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.plugin_sources import write_plugin

from talaria.app.settings import Settings
from talaria.cli.tools import collect_tools
from talaria.config.schema import Config
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, call

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "connect-an-mcp-server.md"
Talaria = Callable[..., subprocess.CompletedProcess[str]]

HANDS = """
import os, signal
def register(ctx):
    ctx.register_tool("die", "hands", {"description": "Dies."}, lambda args: os.kill(os.getpid(), signal.SIGKILL))
    ctx.register_tool("wave", "hands", {"description": "Waves."}, lambda args: "waved")
    ctx.register_tool("clap", "hands", {"description": "Claps."}, lambda args: "clapped", check_fn=lambda: False)
    ctx.register_tool("nod", schema={"description": "Nods."}, handler=lambda args: "nodded")
"""
OFF = "Error: The person has turned off the tool {}, so it did not run. Continue without it."


def listed(talaria: Talaria) -> dict[str, dict[str, Any]]:
    """Tools by name, each with its toolset."""
    ended = talaria("tools", "list", "--json")
    assert ended.returncode == 0, ended.stderr
    toolsets = json.loads(ended.stdout)["toolsets"]
    return {tool["name"]: {**tool, "toolset": one["name"]} for one in toolsets for tool in one["tools"]}


def those_off(talaria: Talaria) -> set[str]:
    return {name for name, tool in listed(talaria).items() if not tool["is_on"]}


def setting(home: Path) -> Any:
    return yaml.safe_load((home / "config.yaml").read_text())["tools"]


def offered(server: ModelServer) -> set[str]:
    return {tool["function"]["name"] for tool in server.requests[-1].json["tools"]}


def results(server: ModelServer) -> list[str]:
    return [one["content"] for one in server.requests[-1].json["messages"] if one["role"] == "tool"]


@pytest.fixture
def hands(talaria: Talaria, home: Path, server: ModelServer) -> None:
    """A plugin with tools."""
    write_plugin(home / "plugins" / "body", HANDS)
    assert talaria("plugins", "enable", "body").returncode == 0


@pytest.mark.parametrize("arguments", [("tools",), ("tools", "list")])
def test_everything_is_on_and_listed_by_toolset(talaria: Talaria, home: Path, arguments: tuple[str, ...]) -> None:
    ended = talaria(*arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    first = "files\n  on   read_file  Read a text file. Each line is prefixed with its number.\n"
    assert ended.stdout.startswith(first)
    assert "\nplanning\n  on   todo  Keep a list of steps for longer work, and show it.\n" in ended.stdout
    assert "  off  " not in ended.stdout
    assert not re.search(r"^(skills|memory|context)", ended.stdout, re.MULTILINE)
    assert not home.exists()


def test_what_is_turned_off_and_on_goes_to_the_settings_whose_comments_stay(talaria: Talaria, home: Path) -> None:
    home.mkdir()
    (home / "config.yaml").write_text("# mine\nagent: {max_turns: 7}  # few\n")

    done = talaria("tools", "disable", "web", "patch")
    assert (done.returncode, done.stdout) == (0, "Disabled web.\nDisabled patch.\n")
    assert those_off(talaria) == {"web_fetch", "web_search", "patch"}
    assert "  off  patch  Replace text" in talaria("tools").stdout
    assert "# mine\nagent: {max_turns: 7}  # few\n" in (home / "config.yaml").read_text()

    assert talaria("tools", "enable", "web_fetch").stdout == "Enabled web_fetch.\n"
    assert those_off(talaria) == {"web_search", "patch"}
    assert setting(home) == {"disabled": ["web", "patch"], "enabled": ["web_fetch"]}

    talaria("tools", "enable", "files", "web")
    assert those_off(talaria) == set()
    assert setting(home) == {"disabled": [], "enabled": []}
    assert "# mine\nagent: {max_turns: 7}  # few\n" in (home / "config.yaml").read_text()


def test_all_but_some_can_be_turned_off(talaria: Talaria, home: Path) -> None:
    talaria("tools", "disable", "todo", "all")
    talaria("tools", "enable", "recall")
    assert listed(talaria).keys() - those_off(talaria) == {"recall", "session_search"}
    assert setting(home) == {"disabled": ["all"], "enabled": ["recall"]}
    talaria("tools", "enable", "all")
    assert those_off(talaria) == set()


@pytest.mark.parametrize("verb", ["enable", "disable"])
def test_name_that_nothing_has_is_refused_and_changes_nothing(talaria: Talaria, home: Path, verb: str) -> None:
    near, far = talaria("tools", verb, "web", "reed_file"), talaria("tools", verb, "zzz")
    assert (near.returncode, near.stdout) == (2, "")
    assert near.stderr == "talaria: There is no tool or toolset 'reed_file'; did you mean 'read_file'?\n"
    assert "'zzz'; `talaria tools list` lists them all." in far.stderr
    assert not (home / "config.yaml").exists()


def test_name_that_is_gone_is_told_of_and_can_be_taken_out(talaria: Talaria, server: ModelServer, home: Path) -> None:
    with (home / "config.yaml").open("a") as file:
        file.write("tools: {disabled: [gone, web]}\n")
    server.say("Hello.")
    told = "tools.disabled in config.yaml names 'gone', but no tool or toolset is called that.\n"
    asked = talaria("-q", "hi")
    assert (asked.returncode, asked.stderr) == (0, told)
    assert talaria("tools").stderr == f"! {told}"
    assert talaria("tools", "enable", "gone").returncode == 0
    assert setting(home) == {"disabled": ["web"]}


@pytest.mark.parametrize("text", ["tools: {disabled: web}", "tools: {off: [web]}", "tools: [web]"])
def test_setting_that_is_wrong_is_an_error(talaria: Talaria, home: Path, text: str) -> None:
    home.mkdir()
    (home / "config.yaml").write_text(text)
    ended = talaria("tools", "list", "--json")
    assert ended.returncode == 2
    assert "tools" in json.loads(ended.stdout)["error"]["message"]


def test_tool_that_is_off_is_not_shown_to_the_model_and_cannot_be_called(
    talaria: Talaria, server: ModelServer, environment: dict[str, str]
) -> None:
    talaria("tools", "disable", "terminal", "write_file")
    calls = (call("terminal", id="a", command="touch ran"), call("write_file", id="b", path="ran", content="x"))
    server.say(Reply(calls=calls), "Well.")
    assert talaria("--yolo", "-q", "go").stdout == "Well.\n"
    assert not offered(server) & {"terminal", "write_file"}
    assert {"read_file", "patch"} <= offered(server)
    assert results(server) == [OFF.format("terminal"), OFF.format("write_file")]
    assert list(Path(environment["PWD"]).iterdir()) == []


def test_conversation_keeps_its_tools_but_one_that_was_turned_off_since_does_not_run(
    talaria: Talaria, server: ModelServer
) -> None:
    server.say(Reply(calls=(call("terminal", command="echo before"),)), "One.")
    talaria("-q", "go")
    began_with, ran = server.requests[-1].json["tools"], results(server)
    talaria("tools", "disable", "terminal")
    server.say(Reply(calls=(call("terminal", command="echo after"),)), "Two.")

    assert talaria("-c", "-q", "again").stdout == "Two.\n"

    assert server.requests[-1].json["tools"] == began_with
    assert results(server) == [*ran, OFF.format("terminal")]
    assert "before" in ran[0]


def test_tools_of_a_plugin_stand_in_their_toolset_and_can_be_turned_off(
    talaria: Talaria, server: ModelServer, hands: None
) -> None:
    tools = listed(talaria)
    assert {name: tools[name]["toolset"] for name in ("wave", "clap", "nod")} == {
        "wave": "hands",
        "clap": "hands",
        "nod": "body",
    }
    assert tools["clap"]["problem"] == "plugin body says that it cannot be used now"
    assert "  on   clap  Claps.  ! plugin body says that it cannot be used now\n" in talaria("tools").stdout

    talaria("tools", "disable", "hands")
    server.say(Reply(calls=(call("wave", id="a"), call("nod", id="b"))), "Done.")
    asked = talaria("-q", "go")
    assert (asked.stdout, asked.stderr.count("no tool or toolset")) == ("Done.\n", 0)
    assert "nod" in offered(server)
    assert "wave" not in offered(server)
    assert results(server) == [OFF.format("wave"), "nodded"]


def test_call_that_died_with_its_process_ends_well_though_its_tool_was_turned_off_since(
    talaria: Talaria, server: ModelServer, hands: None
) -> None:
    server.say(Reply(calls=(call("die", id="a"), call("nod", id="b"))), "Went on.")
    assert talaria("-q", "go").returncode == -signal.SIGKILL
    talaria("tools", "disable", "hands")
    resumed = talaria("-c")
    assert (resumed.returncode, resumed.stdout) == (0, "Went on.\n")
    assert "unknown" in results(server)[0]


def test_plugin_may_not_take_the_name_of_a_tool_that_is_off(talaria: Talaria, server: ModelServer, home: Path) -> None:
    talaria("tools", "disable", "files")
    write_plugin(home / "plugins" / "body", HANDS.replace('"wave"', '"read_file"'))
    assert "its tool read_file is left out" in talaria("plugins", "enable", "body").stdout
    assert "read_file" in those_off(talaria)
    server.say(Reply(calls=(call("read_file", path="x"),)), "Done.")
    talaria("-q", "go")
    assert results(server) == [OFF.format("read_file")]


def test_tools_of_a_server_stand_in_its_toolset_once_they_are_known(
    talaria: Talaria, server: ModelServer, environment: dict[str, str]
) -> None:
    found = re.search(r"```python\n(.*?)```", HOW_TO.read_text("utf-8"), re.DOTALL)
    assert found is not None
    Path(environment["PWD"], "almanac.py").write_text(found[1])
    talaria("mcp", "add", "almanac", "--", sys.executable, "almanac.py")
    unknown = "mcp:almanac  ! its tools are not known yet; to ask for them: talaria mcp test almanac\n"
    assert unknown in talaria("tools").stdout
    assert talaria("mcp", "test", "almanac").returncode == 0
    assert "\nmcp:almanac\n  on   mcp_almanac_moon  Tell the phase of the moon" in talaria("tools").stdout

    assert talaria("tools", "disable", "mcp:almanac").returncode == 0
    server.say(Reply(calls=(call("mcp_almanac_moon", day=3),)), "Done.")
    asked = talaria("--yolo", "-q", "go")
    assert (asked.stdout, asked.stderr.count("no tool or toolset")) == ("Done.\n", 0)
    assert "mcp_almanac_moon" not in offered(server)
    assert results(server) == [OFF.format("mcp_almanac_moon")]


def test_list_of_steps_outlives_the_process_and_goes_with_its_conversation(
    talaria: Talaria, server: ModelServer, home: Path
) -> None:
    steps = [{"id": "a", "content": "Look", "status": "in_progress"}]
    server.say(Reply(calls=(call("todo", id="a", todos=steps),)), "One.", Reply(calls=(call("todo", id="b"),)), "Two.")
    talaria("-q", "go")
    talaria("-c", "-q", "go on")
    assert results(server) == ["[>] a: Look\n[0 of 1 completed; > in progress, - cancelled]"] * 2
    (kept,) = (home / "todos").iterdir()
    assert talaria("sessions", "delete", kept.stem, "--yes").returncode == 0
    assert not kept.exists()


def test_question_is_not_asked_where_nobody_is_there(talaria: Talaria, server: ModelServer) -> None:
    server.say(Reply(calls=(call("clarify", question="Which?", choices=["a", "b"]),)), "I took a.")
    assert talaria("-q", "go").stdout == "I took a.\n"
    assert results(server)[0].startswith("Error: Nobody is available to answer. Choose the most sensible option")


def test_toolset_whose_package_is_missing_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "playwright", None)
    browser = asyncio.run(collect_tools(Settings(tmp_path, Config(), {}))).groups["browser"]
    assert browser.problem.startswith("needs a package that is not installed; run: ")
    assert browser.problem.endswith("-m pip install 'talaria-agent[browser]'")
