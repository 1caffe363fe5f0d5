"""Going back to what files were: `/rollback` in the chat, `talaria rollback` beside it."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, call

Talaria = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def notes(environment: dict[str, str]) -> Path:
    return Path(environment["PWD"], "notes.txt")


def demo(talaria: Talaria, *lines: str) -> subprocess.CompletedProcess[str]:
    return talaria("-m", "demo", input="".join(f"{line}\n" for line in lines))


def session(talaria: Talaria) -> str:
    return json.loads(talaria("sessions", "list", "--json").stdout)[0]["id"]


@pytest.mark.parametrize("word", ["/rollback", "/rewind", "/roll"])
def test_rollback_in_the_chat_puts_files_back_and_can_be_undone(talaria: Talaria, notes: Path, word: str) -> None:
    notes.write_text("mine\n")
    ended = demo(
        talaria,
        "write hello to notes.txt",
        "replace hello with bye in notes.txt",
        f"{word} 1",
        "run cat notes.txt",
        f"{word} 3",
    )
    assert ended.returncode == 0
    assert "terminal says:\n```\nmine\n" in ended.stdout
    assert f"Back to before checkpoint 1:\n  {notes} restored\n" in ended.stderr
    assert "What was replaced is kept: /rollback 3 undoes this.\n" in ended.stderr
    assert notes.read_text() == "bye\n"


def test_rollback_without_a_number_lists_newest_first(talaria: Talaria, notes: Path) -> None:
    ended = demo(talaria, "/rollback", "write one to notes.txt", "write two to notes.txt", "/rollback")
    before, _, after = ended.stderr.partition("\n")
    assert before == "No file was changed in this conversation yet."
    *_, second, first, hint = after.splitlines()
    assert second.split()[0] == "2"
    assert first.split()[0] == "1"
    assert first.endswith(str(notes))
    assert hint == "/rollback N puts files back as they were before N."


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("x", "'x' is not the number of a checkpoint; /rollback lists them."),
        ("-1", "'-1' is not the number of a checkpoint; /rollback lists them."),
        ("9" * 5_000, "is not the number of a checkpoint; /rollback lists them."),
        ("7", "There is no checkpoint 7."),
    ],
)
def test_rollback_to_nowhere_is_told_and_changes_nothing(
    talaria: Talaria, notes: Path, argument: str, sentence: str
) -> None:
    ended = demo(talaria, "write one to notes.txt", f"/rollback {argument}")
    assert sentence in ended.stderr
    assert notes.read_text() == "one\n"


def test_model_must_read_again_what_was_rolled_back(talaria: Talaria, notes: Path) -> None:
    ended = demo(
        talaria,
        "write one to notes.txt",
        "replace one with two in notes.txt",
        "/rollback 2",
        "replace one with three in notes.txt",
        "read notes.txt",
        "replace one with four in notes.txt",
    )
    assert f"{notes} was changed since you last read or wrote it; read it again first." in ended.stdout
    assert notes.read_text() == "four\n"


def test_command_restores_the_latest_conversation_and_tells_what_somebody_else_changed(
    talaria: Talaria, notes: Path
) -> None:
    notes.write_text("mine\n")
    demo(talaria, "write hello to notes.txt")
    id = session(talaria)
    notes.write_text("by hand\n")

    asked = talaria("rollback", "1")

    assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout == (
        f"Back to before checkpoint 1:\n  {notes} left alone: you or somebody else changed it since\n"
        f"1 file was left alone. To put everything back: talaria rollback {id} 1 --all\n"
    )
    assert notes.read_text() == "by hand\n"

    ended = talaria("rollback", "1", "--all")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == (
        f"Back to before checkpoint 1:\n  {notes} restored; somebody had changed it since\n"
        f"What was replaced is kept: talaria rollback {id} 2 undoes this.\n"
    )
    assert notes.read_text() == "mine\n"
    assert talaria("rollback", id, "2").returncode == 0
    assert notes.read_text() == "by hand\n"


@pytest.mark.parametrize("arguments", [("--list",), (), ("{id}",), ("{id}", "1", "--list")])
def test_command_lists(talaria: Talaria, notes: Path, arguments: tuple[str, ...]) -> None:
    demo(talaria, "write hello to notes.txt")
    ended = talaria("rollback", *(one.format(id=session(talaria)) for one in arguments))
    assert ended.returncode == 0
    assert ended.stdout.split()[0] == "1"
    assert ended.stdout.endswith(f"  {notes}\n")
    assert notes.read_text() == "hello\n"


def test_command_shows_what_has_changed(talaria: Talaria, notes: Path) -> None:
    notes.write_text("mine\n")
    demo(talaria, "write hello to notes.txt")
    ended = talaria("rollback", "1", "--diff")
    assert ended.stdout == "notes.txt  +1 -1\n@@ -1,1 +1,1 @@\n-mine\n+hello\n"
    assert notes.read_text() == "hello\n"


def test_what_commands_did_is_known_to_rollback_diff_and_undo(talaria: Talaria, notes: Path) -> None:
    notes.write_text("mine\n")
    script = notes.with_name("run.sh")
    script.write_text("rm notes.txt; mkdir made; echo made > made/file; chmod 700 run.sh\n")
    script.chmod(0o644)
    ended = demo(talaria, "run sh run.sh", "/diff", "/rollback", "/undo", "/rollback 1", "/diff", "/rollback 2")
    told = ended.stderr
    assert "made/file (created)  +1 -0\n@@ -0,0 +1,1 @@\n+made\n" in told
    assert "notes.txt (deleted)  +0 -1\n" in told
    assert "run.sh  mode 644 → 700\n" in told
    assert "Undone: run sh run.sh\nIt changed file, notes.txt, run.sh: /rollback 1 puts that back.\n" in told
    assert f"  {notes} restored\n" in told
    assert f"  {notes.with_name('made')}/file removed: it was not there\n" in told
    assert "What was replaced is kept: /rollback 2 undoes this.\n" in told
    assert not notes.exists()
    talaria("rollback", "1")
    assert (notes.read_text(), script.stat().st_mode & 0o777) == ("mine\n", 0o644)
    assert not notes.with_name("made").exists()


def test_command_speaks_json(talaria: Talaria, notes: Path) -> None:
    demo(talaria, "write hello to notes.txt")
    id = session(talaria)
    listed = json.loads(talaria("rollback", "--json").stdout)
    restored = json.loads(talaria("rollback", "1", "--json").stdout)
    refused = talaria("rollback", "9", "--json")

    assert (listed["session"], [one["number"] for one in listed["checkpoints"]]) == (id, [1])
    assert listed["checkpoints"][0]["files"] == [{"path": str(notes), "was_there": False, "bytes": 0}]
    assert restored == {
        "session": id,
        "number": 1,
        "kept_as": 2,
        "files": [{"what": "removed", "was_changed": False, "reason": "", "is_folder": False, "path": str(notes)}],
    }
    assert (refused.returncode, json.loads(refused.stdout)["error"]["message"]) == (2, "There is no checkpoint 9.")
    assert not notes.exists()


def test_file_that_cannot_be_restored_is_told_with_an_exit_code_of_its_own(talaria: Talaria, notes: Path) -> None:
    demo(talaria, "write hello to notes.txt")
    notes.unlink()
    (notes / "folder").mkdir(parents=True)
    ended = talaria("rollback", "1", "--all")
    assert ended.returncode == 4
    assert f"{notes} NOT restored: Directory not empty" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("rollback",), "There is no conversation yet."),
        (("rollback", "nowhere", "1"), "There is no session called 'nowhere'"),
        (("rollback", "some", "x"), "'x' is not the number of a checkpoint"),
    ],
)
def test_command_that_cannot_mean_anything_is_told(talaria: Talaria, arguments: tuple[str, ...], sentence: str) -> None:
    ended = talaria(*arguments)
    assert ended.returncode == 2
    assert sentence in ended.stderr


def test_several_edits_and_a_refusal_come_back_to_the_model(talaria: Talaria, server: ModelServer, notes: Path) -> None:
    notes.write_text("one\ntwo\n")
    edits = [{"old": "one", "new": "1"}, {"old": "two", "new": "2"}]
    server.say(
        Reply(calls=(call("patch", id="a", path="notes.txt", edits=edits),)),
        Reply(calls=(call("read_file", id="b", path="notes.txt"),)),
        Reply(calls=(call("patch", id="c", path="notes.txt", edits=edits),)),
        "done",
    )
    assert talaria("-q", "go").stdout == "done\n"
    results = [one["content"] for one in server.requests[-1].json["messages"] if one["role"] == "tool"]
    assert results == [
        f"Error: You have not read {notes} in this conversation yet; read it first.",
        "1|one\n2|two",
        f"Replaced 2 occurrences in {notes}.\n--- notes.txt\n+++ notes.txt\n@@ -1,2 +1,2 @@\n-one\n-two\n+1\n+2",
    ]
    talaria("rollback", "1")
    assert notes.read_text() == "one\ntwo\n"
