import asyncio
import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talaria.app.build import open_store
from talaria.core.entries import Noted
from talaria.core.ids import SessionId
from talaria.store.base import NewSession
from talaria.store.chat_ports import Inbound
from talaria.testing.manual_clock import ManualClock

Talaria = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def id(talaria: Talaria) -> str:
    """A conversation with the demo: one turn, one tool call."""
    ended = talaria("-m", "demo", "-q", "run echo needle-$((40+2))", "--output-format", "json")
    return json.loads(ended.stdout)["session"]


def document(ended: subprocess.CompletedProcess[str]) -> Any:
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert ended.stdout.count("\n") == 1
    return json.loads(ended.stdout)


def test_list_of_none_says_so_beside_the_output(talaria: Talaria) -> None:
    ended = talaria("sessions", "list")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr == "No conversations yet; `talaria` starts one.\n"
    assert document(talaria("sessions", "list", "--json")) == []


def test_list_shows_the_latest_first(talaria: Talaria, id: str) -> None:
    talaria("-m", "demo", "-q", "hello")
    lines = talaria("sessions", "list").stdout.splitlines()
    assert (len(lines), lines[0].endswith("  hello")) == (2, True)
    assert lines[1].startswith(id)
    assert talaria("sessions", "list", "--limit", "1").stdout.count("\n") == 1
    rows = document(talaria("sessions", "list", "--json"))
    assert [row["preview"] for row in rows] == ["hello", "run echo needle-$((40+2))"]
    assert (rows[1]["id"], rows[1]["message_count"], rows[1]["is_interrupted"]) == (id, 4, False)


def test_show_prints_the_conversation(talaria: Talaria, id: str) -> None:
    shown = talaria("sessions", "show", id).stdout
    assert shown.startswith(f"{id} · (untitled) · demo:demo · ")
    assert "\n› run echo needle-$((40+2))\n● terminal " in shown
    assert "\n  needle-42\n" in shown
    told = document(talaria("sessions", "show", id, "--json"))
    assert (told["id"], len(told["entries"])) == (id, 6)
    assert told["entries"][0]["entry"]["type"] == "turn_started"


def test_search_finds_messages_with_all_words(talaria: Talaria, id: str) -> None:
    assert talaria("sessions", "search", "needle", "echo").stdout.startswith(id)
    hits = document(talaria("sessions", "search", "needle", "--json"))
    assert {hit["session"] for hit in hits} == {id}
    nothing = talaria("sessions", "search", "haystack")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "", "Nothing found.\n")


def test_search_says_in_which_conversation_and_when_and_shows_the_words_below(talaria: Talaria, id: str) -> None:
    talaria("sessions", "rename", id, "Hay\u202estack")
    head, hit = talaria("sessions", "search", "needle", "echo").stdout.splitlines()
    assert re.fullmatch(rf"{id}  \d{{4}}-\d\d-\d\d \d\d:\d\d  Haystack", head)
    assert hit == "    user: run echo needle-$((40+2))"


def test_export_writes_every_entry_as_a_line(talaria: Talaria, id: str, tmp_path: Path) -> None:
    lines = talaria("sessions", "export", id).stdout.splitlines()
    file = tmp_path / "out.jsonl"
    assert talaria("sessions", "export", id, "-o", str(file)).stderr == f"Wrote 6 entries to {file}.\n"
    assert file.read_text().splitlines() == lines
    assert (len(lines), json.loads(lines[0])["id"]) == (7, id)
    assert document(talaria("sessions", "export", id, "-o", str(file), "--json")) == {
        "ok": True,
        "session": id,
        "file": str(file),
    }


def test_rename_gives_a_name_to_find_it_by(talaria: Talaria, id: str) -> None:
    assert talaria("sessions", "rename", id, "first talk").stderr == f"{id} is now called first talk.\n"
    told = document(talaria("sessions", "rename", "first talk", "second name", "--json"))
    assert told == {"ok": True, "session": id, "title": "second name"}
    assert talaria("sessions", "show", "second name").stdout.startswith(f"{id} · second name")


def test_fork_is_a_conversation_of_its_own(talaria: Talaria, id: str) -> None:
    told = document(talaria("sessions", "fork", id, "--title", "branch", "--json"))
    copy = told["session"]
    assert (told["ok"], copy != id) == (True, True)
    talaria("-m", "demo", "-r", "branch", "-q", "hello")
    counts = {row["id"]: row["message_count"] for row in document(talaria("sessions", "list", "--json"))}
    assert counts == {id: 4, copy: 6}
    assert "continue with `talaria -r " in talaria("sessions", "fork", id).stderr


def test_delete_with_yes_is_for_good(talaria: Talaria, id: str, home: Path) -> None:
    (home / "spill" / id).mkdir(parents=True)
    assert document(talaria("sessions", "delete", id, "--yes", "--json")) == {"ok": True, "session": id}
    assert document(talaria("sessions", "list", "--json")) == []
    assert document(talaria("sessions", "search", "needle", "--json")) == []
    assert not (home / "spill" / id).exists()


def test_delete_does_not_happen_when_nobody_can_be_asked(talaria: Talaria, id: str) -> None:
    ended = talaria("sessions", "delete", id, input="y\n")
    assert ended.returncode == 2
    assert ended.stderr == f"talaria: Nobody can be asked whether {id} may be deleted: add --yes.\n"
    assert talaria("sessions", "list").stdout.startswith(id)


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "nope"],
        ["export", "nope"],
        ["rename", "nope", "x"],
        ["delete", "nope", "--yes"],
        ["fork", "nope"],
    ],
)
def test_unknown_conversation_is_told_also_as_json(talaria: Talaria, arguments: list[str]) -> None:
    ended = talaria("sessions", *arguments, "--json")
    sentence = "There is no session called 'nope'; `talaria sessions list` shows them."
    assert (ended.returncode, ended.stderr) == (2, f"talaria: {sentence}\n")
    told = json.loads(ended.stdout)
    assert told == {"ok": False, "error": {"type": "UnknownSession", "message": sentence}, "exit_code": 2}


def test_what_a_command_refuses_is_told_as_json_too(talaria: Talaria, id: str, tmp_path: Path) -> None:
    refused = [
        talaria("sessions", "delete", id, "--json"),
        talaria("sessions", "export", id, "-o", str(tmp_path), "--json"),
        talaria("sessions", "rename", id, " ", "--json"),
    ]
    for ended in refused:
        told = json.loads(ended.stdout)
        assert (ended.returncode, told["ok"], told["exit_code"]) == (2, False, 2)
        assert ended.stderr == f"talaria: {told['error']['message']}\n"


def aged(home: Path, id: str, days: float) -> None:
    """As if it had not been used for so long."""

    async def work() -> None:
        async with open_store(home, ManualClock(time.time() - days * 86_400)) as store:
            owner = await store.owners.join("test")
            epoch = await store.journal.seize(SessionId(id), owner)
            assert isinstance(epoch, int)
            await store.journal.record(SessionId(id), epoch, [Noted("of then")])
            await store.journal.release(SessionId(id), epoch)

    asyncio.run(work())


def test_prune_deletes_what_is_old_with_its_files_and_says_how_much(talaria: Talaria, id: str, home: Path) -> None:
    talaria("-m", "demo", "-q", "hello")
    aged(home, id, 91)
    for folder in ("spill", "checkpoints"):
        (home / folder / id).mkdir(parents=True, exist_ok=True)
    would = talaria("sessions", "prune", "--older-than", "90d", "--dry-run")
    assert would.stdout.startswith(f"{id}  20")
    assert would.stderr == "1 conversation (4 messages, 0.0 MB) would be deleted. Nothing was changed.\n"
    assert len(document(talaria("sessions", "list", "--json"))) == 2
    ended = talaria("sessions", "prune", "--older-than", "90d", "--yes")
    assert (ended.returncode, ended.stderr) == (0, "Deleted 1 conversation (4 messages, 0.0 MB).\n")
    assert [row["preview"] for row in document(talaria("sessions", "list", "--json"))] == ["hello"]
    assert not (home / "spill" / id).exists()
    assert not (home / "checkpoints" / id).exists()
    assert document(talaria("sessions", "prune", "--older-than", "90d", "--yes", "--json"))["sessions"] == []


def test_prune_keeps_so_many_of_the_latest(talaria: Talaria, id: str, home: Path) -> None:
    talaria("-m", "demo", "-q", "hello")
    told = document(talaria("sessions", "prune", "--keep", "1", "--yes", "--json"))
    assert (told["ok"], [one["id"] for one in told["sessions"]]) == (True, [id])
    assert document(talaria("sessions", "prune", "--empty", "--yes", "--json"))["sessions"] == []
    assert [row["preview"] for row in document(talaria("sessions", "list", "--json"))] == ["hello"]


async def test_prune_leaves_what_runs_and_what_has_mail(talaria: Talaria, home: Path) -> None:
    home.mkdir(mode=0o700)
    async with open_store(home) as store:
        for name in ("running", "mail", "idle"):
            await store.sessions.create(NewSession(SessionId(name), "test"))
        await store.journal.seize(SessionId("running"), await store.owners.join("terminal"))
        await store.inbox.accept([Inbound("telegram", "bot", "42", "1", SessionId("mail"), "body")])
        told = document(talaria("sessions", "prune", "--empty", "--keep", "0", "--yes", "--json"))
        assert [one["id"] for one in told["sessions"]] == ["idle"]
        assert sorted(one.id for one in await store.sessions.list()) == ["mail", "running"]


def test_prune_wants_to_know_which_and_asks(talaria: Talaria, id: str) -> None:
    which = talaria("sessions", "prune", "--yes")
    assert (which.returncode, which.stderr.startswith("talaria: Say which conversations to delete")) == (2, True)
    age = talaria("sessions", "prune", "--older-than", "soon", "--yes")
    assert age.stderr == "talaria: 'soon' is not an age: give a number and h, d or w, as in 90d.\n"
    nobody = talaria("sessions", "prune", "--keep", "0", input="y\n")
    assert nobody.stderr == "talaria: Nobody can be asked whether they may be deleted: add --yes.\n"
    assert talaria("sessions", "list").stdout.startswith(id)


def test_reindex_makes_the_index_anew(talaria: Talaria, id: str, home: Path) -> None:
    for file in home.glob("search.db*"):
        file.unlink()
    assert talaria("sessions", "reindex").stderr == "Indexed 3 messages.\n"
    assert document(talaria("sessions", "reindex", "--json")) == {"ok": True, "messages": 3}
    assert talaria("sessions", "search", "needle").stdout.startswith(id)
