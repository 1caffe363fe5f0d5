"""`talaria mcp`, and the how-to that tells of it, as they stand."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from talaria.app.settings import read_settings
from talaria.core.secret import Secret

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "connect-an-mcp-server.md"
Talaria = Callable[..., subprocess.CompletedProcess[str]]


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", HOW_TO.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def work(environment: dict[str, str]) -> Path:
    """With the how-to's server in it, and its Python first."""
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    folder = Path(environment["PWD"])
    (folder / "almanac.py").write_text(block("python"))
    return folder


def test_the_server_of_the_how_to_answers(talaria: Talaria, work: Path) -> None:
    added, tested, listed = (talaria(*shlex.split(line)[1:]) for line in block("sh").splitlines())
    assert added.returncode == 0
    assert added.stdout.splitlines() == [
        "almanac runs in the sandbox (reaches nothing; changes nothing).",
        "Added almanac. Try it: talaria mcp test almanac",
    ]
    assert tested.stdout.startswith("almanac answers; 1 tools, ")
    assert "  mcp_almanac_moon  Tell the phase of the moon on a day of the month.\n" in tested.stdout
    assert listed.stdout == "enabled   almanac  python almanac.py  (config.yaml, 1 tools)\n"


def test_the_doctor_tries_each_server(talaria: Talaria, work: Path) -> None:
    talaria("mcp", "add", "almanac", "--", "python", "almanac.py")
    talaria("mcp", "add", "gone", "--", "python", "nowhere.py")
    told = talaria("doctor")
    assert "  ok  mcp almanac: answers; 1 tools\n" in told.stdout
    assert "fail  mcp gone: The MCP server gone ended with exit code 2" in told.stdout
    assert told.returncode == 2


def test_the_settings_of_the_how_to_are_understood(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(block("yaml"))
    (tmp_path / ".env").write_text("MCP_TICKETS_AUTHORIZATION='Bearer t'\n")
    (tmp_path / ".env").chmod(0o600)
    servers = read_settings(tmp_path).config.all_mcp_servers
    assert servers["tickets"].headers == {"Authorization": Secret("Bearer t")}
    assert not servers["tickets"].tools.admits("delete_all")
    assert servers["almanac"].command == "python"


def test_project_file_is_used_after_it_was_agreed_to(talaria: Talaria, work: Path) -> None:
    (work / ".mcp.json").write_text(block("json"))
    before = talaria("mcp", "list")
    assert before.stdout == ""
    assert "is not used until you agree to it: talaria mcp trust" in before.stderr
    assert "There is no MCP server 'almanac'" in talaria("mcp", "test", "almanac").stderr

    unasked = talaria("mcp", "trust")
    assert unasked.returncode == 2
    assert "  almanac: python almanac.py\n" in unasked.stdout
    assert talaria("mcp", "trust", "--yes").returncode == 0

    assert talaria("mcp", "list").stdout == "enabled   almanac  python almanac.py  (.mcp.json, tools unknown)\n"
    assert talaria("mcp", "test", "almanac").returncode == 0


def test_server_that_does_not_answer_is_a_failure(talaria: Talaria, work: Path) -> None:
    talaria("mcp", "add", "broken", "--", "python", "-c", "raise SystemExit('no almanac here')")
    ended = talaria("mcp", "test", "broken", "--json")
    assert ended.returncode == 2
    assert json.loads(ended.stdout)["error"]["message"] == (
        "The MCP server broken ended with exit code 1: no almanac here; "
        "it runs in the sandbox, as mcp_servers.broken.sandbox says."
    )


def test_values_that_may_be_secret_go_to_the_secrets(talaria: Talaria, home: Path) -> None:
    talaria("mcp", "add", "t", "--url", "https://t.example/mcp", "--header", "X-Key=k-1", "--header", "B=${HOME}")
    assert "k-1" not in (home / "config.yaml").read_text()
    assert (home / ".env").read_text() == "MCP_T_X_KEY=k-1\n"
    entry = read_settings(home).config.mcp_servers["t"]
    assert entry.headers["X-Key"] == Secret("k-1")
    listed = json.loads(talaria("mcp", "list", "--json").stdout)
    assert listed["servers"][0]["place"] == "https://t.example/mcp"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["add", "a b", "--", "x"], "cannot be a server's name"),
        (["add", "a"], "Give either a command"),
        (["add", "a", "--url", "http://x", "--", "x"], "Give either a command"),
        (["add", "a", "--env", "novalue", "--", "x"], "'novalue' is not NAME=VALUE."),
        (["add", "a", "--url", "ftp://x"], "begins with http:// or https://"),
        (["test", "nobody"], "There is no MCP server 'nobody'; known servers: none."),
        (["trust"], "There is no .mcp.json in"),
    ],
)
def test_mistakes_are_one_sentence(talaria: Talaria, arguments: list[str], sentence: str) -> None:
    ended = talaria("mcp", *arguments)
    assert ended.returncode == 2
    assert sentence in ended.stderr
    assert ended.stdout == ""


def test_name_is_taken_once(talaria: Talaria, home: Path) -> None:
    talaria("mcp", "add", "a", "--", "x")
    assert "There is already a server a" in talaria("mcp", "add", "a", "--", "y").stderr
