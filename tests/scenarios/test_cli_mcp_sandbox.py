"""Who decides that a server runs outside the sandbox, and how people say what one needs."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs
from tests.scenarios.typescript import Terminal

from talaria.app.settings import read_settings
from talaria.tools.mcp.offers import Listing, listing_file, write_listing
from talaria.tools.mcp.server_entries import SandboxNeeds, ServerEntry

Talaria = Callable[..., subprocess.CompletedProcess[str]]
SERVER = str(Path(__file__).parents[1] / "security" / "hostile_mcp_server.py")
COMMAND = [sys.executable, "-I", "-S", SERVER]


def entry(home: Path, name: str = "evil") -> ServerEntry:
    return read_settings(home).config.all_mcp_servers[name]


def place(talaria: Talaria) -> dict[str, bool]:
    """Which servers are in the sandbox."""
    return {row["name"]: row["is_sandboxed"] for row in json.loads(talaria("mcp", "list", "--json").stdout)["servers"]}


@pytest.fixture
def earlier(home: Path, talaria: Talaria) -> ServerEntry:
    """An entry that a version without sandboxed servers has used."""
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text(
        f"mcp_servers: {json.dumps({'evil': {'command': COMMAND[0], 'args': COMMAND[1:]}})}"
    )
    write_listing(listing_file(home, "evil", entry(home)), Listing())
    return entry(home)


def test_entries_of_earlier_versions_run_as_before_and_the_doctor_asks(
    talaria: Talaria, home: Path, earlier: ServerEntry
) -> None:
    assert place(talaria) == {"evil": False}
    told = talaria("doctor").stdout
    assert "warn  mcp evil: runs outside the sandbox, with all your permissions" in told
    assert "`talaria mcp sandbox evil` moves it inside" in told

    assert talaria("mcp", "sandbox", "evil").returncode == 0
    assert place(talaria) == {"evil": True}
    assert "runs outside the sandbox" not in talaria("doctor").stdout


def test_a_decision_to_keep_it_outside_ends_the_question(talaria: Talaria, home: Path, earlier: ServerEntry) -> None:
    assert talaria("mcp", "sandbox", "evil", "--off").returncode == 0
    assert entry(home).sandbox is False
    assert place(talaria) == {"evil": False}
    assert "runs outside the sandbox" not in talaria("doctor").stdout


def test_another_command_under_the_same_name_is_a_new_entry(talaria: Talaria, home: Path, earlier: ServerEntry) -> None:
    assert place(talaria) == {"evil": False}
    file = home / "config.yaml"
    file.write_text(file.read_text().replace('"-S", ', ""))
    write_listing(listing_file(home, "evil", entry(home)), Listing())
    assert place(talaria) == {"evil": True}


def test_an_entry_that_is_written_by_hand_is_new_whatever_ran_before(talaria: Talaria, home: Path) -> None:
    talaria("sessions", "list")
    talaria("mcp", "add", "evil", "--", *COMMAND)
    file = home / "config.yaml"
    file.write_text(f"mcp_servers: {json.dumps({'evil': {'command': COMMAND[0], 'args': COMMAND[1:]}})}")
    assert talaria("mcp", "test", "evil").returncode == 0
    assert place(talaria) == {"evil": True}


def test_needs_are_written_down_and_added_to(talaria: Talaria, home: Path, environment: dict[str, str]) -> None:
    here = environment["PWD"]
    added = talaria("mcp", "add", "evil", "--network", "a.example", "--write", ".", "--", *COMMAND)
    assert added.stdout.startswith(f"evil runs in the sandbox (reaches a.example; changes {here}).\n")
    assert entry(home).sandbox == SandboxNeeds(network=("a.example",), write=(here,))
    talaria("mcp", "sandbox", "evil", "--network", "b.example", "--read", "~/notes")
    assert entry(home).sandbox == SandboxNeeds(network=("a.example", "b.example"), read=("~/notes",), write=(here,))
    talaria("mcp", "add", "free", "--no-sandbox", "--", *COMMAND)
    assert place(talaria) == {"evil": True, "free": False}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["add", "a", "--url", "https://a.example", "--network", "b"], "only apply to a command in the sandbox"),
        (["add", "a", "--no-sandbox", "--read", "b", "--", "x"], "only apply to a command in the sandbox"),
        (["sandbox", "a"], "There is no MCP server 'a' in config.yaml; known servers: none."),
        (["sandbox", "a", "--off", "--read", "b"], "Use --off alone"),
    ],
)
def test_mistakes_are_one_sentence(talaria: Talaria, arguments: list[str], sentence: str) -> None:
    ended = talaria("mcp", *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert sentence in ended.stderr


def test_a_project_cannot_take_its_servers_out_of_the_sandbox(talaria: Talaria, environment: dict[str, str]) -> None:
    entries = {"evil": {"command": COMMAND[0], "args": COMMAND[1:], "cwd": "/", "sandbox": {"network": ["a.example"]}}}
    file = Path(environment["PWD"], ".mcp.json")
    file.write_text(json.dumps({"mcpServers": entries}))
    told = talaria("mcp", "trust", "--yes").stdout
    assert "    in the sandbox: reaches a.example; changes nothing; starts in / and reads it\n" in told
    assert place(talaria) == {"evil": True}
    file.write_text(json.dumps({"mcpServers": {"evil": {**entries["evil"], "sandbox": False}}}))
    refused = talaria("mcp", "trust", "--yes")
    assert refused.returncode == 2
    assert "only your config.yaml can take a server out of the sandbox" in refused.stderr


def test_refused_hosts_are_shown_and_can_be_allowed_at_once(
    talaria: Talaria, home: Path, environment: dict[str, str]
) -> None:
    with Terminal(environment, "mcp", "add", "evil", "--", *COMMAND, "updates.example") as adding:
        adding.answer("Hosts it must reach", "\n")
        adding.answer("Folders it may change", ".\n")
        adding.end()
    needs = SandboxNeeds(write=(environment["PWD"],))
    assert entry(home).sandbox == needs
    ended = talaria("mcp", "test", "evil")
    assert "it tried to reach updates.example from the sandbox, which was refused" in ended.stderr
    with Terminal(environment, "mcp", "test", "evil") as trying:
        trying.answer("Allow?", "y\n")
        trying.end()
    assert entry(home).sandbox == structs.replace(needs, network=("updates.example",))
