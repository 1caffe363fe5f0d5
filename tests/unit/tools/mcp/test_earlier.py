"""Which entries stay outside of the sandbox because an earlier version ran them there."""

from pathlib import Path

import pytest
from msgspec import structs

from talaria.tools.mcp.offers import Listing, listing_file, write_listing
from talaria.tools.mcp.project_servers import EARLIER_FILE, find_earlier
from talaria.tools.mcp.server_entries import SandboxNeeds, ServerEntry

ENTRY = ServerEntry(command="npx", args=("-y", "tracker"))


def use(home: Path, entry: ServerEntry) -> None:
    """As a version does that reaches it."""
    write_listing(listing_file(home, "tracker", entry), Listing())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    use(tmp_path, ENTRY)
    return tmp_path


def test_an_entry_that_was_used_before_stays_outside(home: Path) -> None:
    assert find_earlier({"tracker": ENTRY}, home) == {"tracker"}
    assert find_earlier({"tracker": ENTRY}, home) == {"tracker"}
    assert (home / EARLIER_FILE).stat().st_mode & 0o777 == 0o600


def test_one_that_was_never_used_is_new(tmp_path: Path) -> None:
    assert find_earlier({"tracker": ENTRY}, tmp_path) == frozenset()
    use(tmp_path, ENTRY)  # by us
    assert find_earlier({"tracker": ENTRY}, tmp_path) == frozenset()


def test_one_that_is_added_later_is_new(home: Path) -> None:
    other = ServerEntry(command="uvx")
    find_earlier({"tracker": ENTRY}, home)
    write_listing(listing_file(home, "other", other), Listing())
    assert find_earlier({"tracker": ENTRY, "other": other}, home) == {"tracker"}


@pytest.mark.parametrize("change", [{"command": "node"}, {"args": ("-y", "other")}])
def test_another_command_is_a_new_entry(home: Path, change: dict[str, object]) -> None:
    find_earlier({"tracker": ENTRY}, home)
    assert find_earlier({"tracker": structs.replace(ENTRY, **change)}, home) == frozenset()


@pytest.mark.parametrize("decision", [False, True, SandboxNeeds()])
def test_what_the_person_has_decided_counts(home: Path, decision: SandboxNeeds | bool) -> None:
    find_earlier({"tracker": ENTRY}, home)
    assert find_earlier({"tracker": structs.replace(ENTRY, sandbox=decision)}, home) == frozenset()


def test_servers_elsewhere_and_broken_records_name_nobody(home: Path) -> None:
    assert find_earlier({"tracker": ServerEntry(url="https://a.example")}, home) == frozenset()
    assert not (home / EARLIER_FILE).exists()
    (home / EARLIER_FILE).write_text("[1")
    assert find_earlier({"tracker": ENTRY}, home) == frozenset()
