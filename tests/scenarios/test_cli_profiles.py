"""Homes beside the usual one: made, listed, used and deleted."""

import json
import stat
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from talaria.core.ids import new_owner_id
from talaria.gateway.claims import claim, gateway_file
from talaria.store.sqlite.presence import Presence
from talaria.testing.servers.model_server import ModelServer

Talaria = Callable[..., subprocess.CompletedProcess[str]]


def test_a_profile_is_made_listed_used_and_deleted(talaria: Talaria, home: Path) -> None:
    made = talaria("profiles", "create", "work")
    assert made.stderr == f"Created {home}/profiles/work; use it with `talaria -p work`.\n"
    assert stat.S_IMODE((home / "profiles" / "work").stat().st_mode) == 0o700
    talaria("-p", "work", "-m", "demo", "-q", "hello")
    assert (talaria("sessions", "list").stdout, talaria("-p", "work", "sessions", "list").stdout.count("\n")) == ("", 1)
    listed = talaria("-p", "work", "profiles", "list").stdout.splitlines()
    assert [line.split() for line in listed] == [
        ["default", str(home)],
        ["*", "work", f"{home}/profiles/work"],
    ]
    assert talaria("profiles", "delete", "work", "--yes").returncode == 0
    assert json.loads(talaria("profiles", "list", "--json").stdout) == [
        {"name": "default", "home": str(home), "is_used": True}
    ]


def test_a_clone_has_the_settings_and_keys_and_no_conversation(
    talaria: Talaria, server: ModelServer, home: Path
) -> None:
    talaria("config", "set", "GROQ_API_KEY", "gsk-hush")
    server.say("One.", "Two.")
    talaria("-q", "hello")
    talaria("profiles", "create", "work", "--clone")
    made = home / "profiles" / "work"
    assert (made / ".env").read_text() == "GROQ_API_KEY=gsk-hush\n"
    assert stat.S_IMODE((made / ".env").stat().st_mode) == 0o600
    assert talaria("-p", "work", "sessions", "list").stdout == ""
    assert talaria("-p", "work", "-q", "hello").stdout == "Two.\n"


@pytest.mark.parametrize("command", [["-q", "x", "-m", "demo"], ["sessions", "list"], ["config", "path"]])
def test_a_profile_that_is_not_there_is_told_with_the_nearest(talaria: Talaria, home: Path, command: list[str]) -> None:
    talaria("profiles", "create", "work")
    ended = talaria("-p", "wrok", *command)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "talaria: There is no profile 'wrok'; did you mean 'work'? `talaria profiles create wrok` creates it.\n"
    )
    assert not (home / "profiles" / "wrok").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["create", "work"], "There is already a profile 'work'."),
        (["create", "../up"], "'../up' is not a profile name"),
        (["create", "default"], "There is already a profile 'default'."),
        (["delete", "default", "-y"], "The usual home, "),
        (["delete", "wrok", "-y"], "did you mean 'work'?"),
        (["delete", "work"], "Nobody can be asked whether to delete work: add --yes."),
    ],
)
def test_what_cannot_be_done_is_told(talaria: Talaria, home: Path, arguments: list[str], says: str) -> None:
    talaria("profiles", "create", "work")
    ended = talaria("profiles", *arguments)
    assert (ended.returncode, says in ended.stderr) == (2, True), ended.stderr
    assert (home / "profiles" / "work").is_dir()


@pytest.mark.parametrize("who", ["a gateway", "a chat"])
def test_a_profile_in_use_is_not_deleted(talaria: Talaria, home: Path, who: str) -> None:
    talaria("profiles", "create", "work")
    work = home / "profiles" / "work"
    with claim(gateway_file(work), "taken") if who == "a gateway" else sitting_in(work):
        ended = talaria("profiles", "delete", "work", "--yes")
    assert (ended.returncode, "is in use" in ended.stderr, work.is_dir()) == (2, True, True)
    assert talaria("profiles", "delete", "work", "--yes").returncode == 0
    assert not work.exists()


@contextmanager
def sitting_in(home: Path) -> Generator[None]:
    presence = Presence(home / "run")
    presence.lock(new_owner_id())
    yield
    presence.unlock_all()
