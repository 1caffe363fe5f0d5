"""Undo: whatever turns did to a project comes back exactly, and nothing of the person's is lost."""

import asyncio
import hashlib
import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
from tests.unit.tools.undo_scenario import SESSION, Project, picture

from talaria.core.clock import SystemClock
from talaria.core.errors import BadInput, StoreDamaged
from talaria.core.ids import CallId, SessionId
from talaria.core.messages import ToolCall
from talaria.store.sqlite.undo import SqliteUndoStore
from talaria.tools.base import Claim, LiveOutput, OpenGate, Run, Scope
from talaria.tools.executor import Executor
from talaria.tools.function import tool
from talaria.tools.registry import Toolbox
from talaria.tools.undo.change_recorder import undo_file
from talaria.tools.undo.checkpoints import checkpoint_folder
from talaria.tools.undo.scan import CheckpointSettings


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def project(work: Path, tmp_path: Path) -> Project:
    return Project(work, tmp_path / "home")


def test_everything_that_one_command_did_comes_back(project: Project, work: Path) -> None:
    (work / "src").mkdir()
    for name in ("edited", "deleted", "renamed", "src/private", "made-a-folder"):
        (work / name).write_text(f"{name}\n")
    (work / "src/private").chmod(0o600)
    (work / "link").symlink_to("edited")
    os.link(work / "edited", work / "second name")
    before = picture(work)

    with project.turn("t1"):
        with (work / "edited").open("a") as file:
            file.write("more\n")
        (work / "deleted").unlink()
        (work / "renamed").rename(work / "src/moved")
        (work / "src/private").chmod(0o666)
        (work / "link").unlink()
        (work / "link").symlink_to("deleted")
        (work / "second name").unlink()
        (work / "made-a-folder").unlink()
        (work / "made-a-folder").mkdir()
        (work / "made-a-folder/new").write_text("new\n")
        (work / "src").chmod(0o555)

    assert picture(work) != before
    assert {one.what for one in project.restore(1).values()} == {"restored", "removed"}
    assert picture(work) == before


def test_deleted_repository_comes_back_whole(project: Project, work: Path) -> None:
    def git(*words: str) -> str:
        command = ["git", "-C", str(work), "-c", "user.name=A", "-c", "user.email=a@b", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    (work / "thesis.txt").write_text("years of work\n")
    git("add", ".")
    git("commit", "-qm", "first")
    before = picture(work)
    project.command(
        "t1", lambda: subprocess.run(["rm", "-rf", "thesis.txt", ".git/refs", ".git/objects"], cwd=work, check=True)
    )
    assert subprocess.run(["git", "-C", str(work), "log"], capture_output=True, check=False).returncode != 0
    project.restore(1)
    assert picture(work) == before
    assert "first" in git("log", "--oneline")
    assert git("fsck", "--full", "--strict") == ""
    assert git("status", "--porcelain") == ""


def test_restoring_undoes_all_that_came_after_and_can_be_undone_itself(project: Project, work: Path) -> None:
    a, b, c = work / "a", work / "b", work / "c"
    a.write_text("a0")
    b.write_text("b0")
    project.command("t1", lambda: a.write_text("a1"))
    project.command("t2", lambda: b.write_text("b1"))
    project.command("t3", lambda: (a.write_text("a2"), c.write_text("c1")))
    project.restore(1)
    assert (a.read_text(), b.read_text(), c.exists()) == ("a0", "b0", False)
    assert project.checkpoints.list()[0].why == "before going back to 1"
    project.restore(4)
    assert (a.read_text(), b.read_text(), c.read_text()) == ("a2", "b1", "c1")
    project.restore(3)
    assert (a.read_text(), b.read_text(), c.exists()) == ("a1", "b1", False)


def test_calls_of_one_turn_are_one_checkpoint_with_what_was_there_first(project: Project, work: Path) -> None:
    (work / "a").write_text("one")
    project.command("t1", lambda: (work / "a").write_text("two"))
    with project.turn("t1", work / "a"):
        (work / "a").write_text("three")
    project.command("t2", lambda: (work / "a").write_text("four"))
    assert [(one.number, one.turn) for one in project.checkpoints.list()] == [(2, "t2"), (1, "t1")]
    project.restore(1)
    assert (work / "a").read_text() == "one"


def test_turn_that_changes_nothing_has_no_checkpoint(project: Project, work: Path) -> None:
    (work / "a").write_text("one")
    project.command("t1", lambda: None)
    project.command("t2", (work / "a").read_text)
    assert project.checkpoints.list() == []


def test_edits_of_the_person_after_a_turn_stay_unless_all_is_wanted(project: Project, work: Path) -> None:
    for name in ("ours", "theirs", "gone", "back"):
        (work / name).write_text("old")
    with project.turn("t1"):
        for name in ("ours", "theirs", "gone", "back", "new"):
            (work / name).write_text("changed")
    (work / "theirs").write_text("by hand")
    (work / "gone").unlink()
    (work / "new").write_text("by hand, too")
    (work / "back").write_text("old")

    assert {name: one.what for name, one in project.restore(1).items()} == {
        "ours": "restored",
        "theirs": "left",
        "gone": "left",
        "new": "left",
        "back": "same",
    }
    assert (work / "theirs").read_text() == "by hand"
    assert (work / "new").read_text() == "by hand, too"
    assert not (work / "gone").exists()

    project.restore(1, everything=True)
    assert picture(work).keys() == {"ours", "theirs", "gone", "back"}
    assert {path.read_text() for path in work.iterdir()} == {"old"}
    assert project.restore(3)["theirs"].what == "restored"
    assert (work / "theirs").read_text() == "by hand"


@pytest.mark.parametrize("turns", [("t1", "t2"), ("t1", "t1")])
def test_edit_of_the_person_between_two_changes_of_ours_is_not_lost_unasked(
    project: Project, work: Path, turns: tuple[str, str]
) -> None:
    (work / "a").write_text("old")
    project.command(turns[0], lambda: (work / "a").write_text("ours"))
    (work / "a").write_text("by hand, for an hour")
    project.command(turns[1], lambda: (work / "a").write_text("ours again"))
    assert project.restore(1)["a"].what == "left"
    assert (work / "a").read_text() == "ours again"


def test_edit_of_a_file_that_no_turn_touched_is_none_of_our_business(project: Project, work: Path) -> None:
    (work / "a").write_text("old")
    (work / "b").write_text("old")
    project.command("t1", lambda: (work / "a").write_text("ours"))
    (work / "b").write_text("by hand")
    project.command("t2", lambda: (work / "a").write_text("ours again"))
    assert project.restore(1).keys() == {"a"}
    assert (work / "b").read_text() == "by hand"


def test_what_a_background_process_may_have_done_is_told_apart(project: Project, work: Path) -> None:
    (work / "log").write_text("")
    project.background.add(SESSION)
    project.command("t1", lambda: (work / "a").write_text("a"))
    (work / "log").write_text("by the server")
    project.background.clear()
    assert {name: one.what for name, one in project.restore(1).items()} == {"a": "removed", "log": "left"}
    project.restore(1, everything=True)
    assert (work / "log").read_text() == ""


def test_same_size_and_time_do_not_hide_a_change(project: Project, work: Path) -> None:
    file = work / "a"
    file.write_text("one")
    os.utime(file, (5, 5))
    project.command("t1", lambda: None)

    def swap() -> None:
        file.write_text("two")
        os.utime(file, (5, 5))

    project.command("t2", swap)
    assert project.restore(2)["a"].what == "restored"
    assert file.read_text() == "one"


def test_file_changed_within_one_tick_of_the_clock_is_read_again(project: Project, work: Path) -> None:
    """Its stamp would be the same: so what was changed a moment ago never counts as known."""
    (work / "a").write_text("one")
    project.command("t1", lambda: None)
    store = SqliteUndoStore(undo_file(project.home))
    mode, size, mtime, ctime, *_ = store.files(store.project(str(work)))["a"].stamp
    assert (stat.S_ISREG(mode), size, mtime) == (True, 3, (work / "a").stat().st_mtime_ns)
    assert ctime != (work / "a").stat().st_ctime_ns


def test_kept_content_does_not_change_with_the_file(project: Project, work: Path) -> None:
    (work / "a").write_text("one")
    inode = (work / "a").stat().st_ino
    with project.turn("t1"), (work / "a").open("r+") as file:
        file.write("two")
    assert (work / "a").stat().st_ino == inode
    project.restore(1)
    assert (work / "a").read_text() == "one"


def test_large_file_comes_back(project: Project, work: Path) -> None:
    content = os.urandom(1 << 20) * 9
    (work / "big").write_bytes(content)
    project.command("t1", lambda: (work / "big").write_bytes(b"small"))
    project.restore(1)
    assert hashlib.sha256((work / "big").read_bytes()).digest() == hashlib.sha256(content).digest()


def test_names_that_are_not_text_and_pipes_come_back(project: Project, work: Path) -> None:
    strange = Path(os.fsdecode(os.fsencode(work) + b"/caf\xe9\n"))
    strange.write_bytes(b"x")
    os.mkfifo(work / "pipe", 0o640)
    (work / "pipe").chmod(0o640)
    before = picture(work)
    project.command("t1", lambda: (strange.unlink(), (work / "pipe").unlink()))
    project.restore(1)
    assert picture(work) == before


def test_what_is_not_recorded_is_named(tmp_path: Path, work: Path) -> None:
    project = Project(work, tmp_path / "home", CheckpointSettings(max_file_mb=1))
    for folder in ("node_modules/x", "src/__pycache__", "tests/__pycache__", "target", "build"):
        (work / folder).mkdir(parents=True)
    (work / "target/CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55")
    (work / "big.iso").write_bytes(b"x" * (1 << 20) + b"y")
    (work / "build/made").write_text("kept")
    project.command(
        "t1", lambda: subprocess.run(["rm", "-rf", "node_modules", "big.iso", "build"], cwd=work, check=True)
    )
    restored = project.checkpoints.restore(1)
    assert (work / "build/made").read_text() == "kept"
    left_out = project.checkpoints.restore(1).left_out
    assert left_out["src/__pycache__"] == left_out["target"] == "can be generated again"
    assert {"node_modules", "big.iso"} <= restored.left_out.keys()
    assert restored.left_out["big.iso"] == "over 1 MB"


@pytest.mark.parametrize("limit", ["max_files", "max_project_mb"])
def test_project_that_is_too_large_is_said_to_be(tmp_path: Path, work: Path, limit: str) -> None:
    settings = CheckpointSettings(max_files=3) if limit == "max_files" else CheckpointSettings(max_project_mb=1)
    project = Project(work, tmp_path / "home", settings)
    for number in range(4):
        (work / f"{number}").write_bytes(b"x" * (300 << 10))
    assert project.record.begin(SESSION, "t1", None) is None
    with project.turn("t2", work / "0"):
        (work / "0").write_text("new")
    restored = project.checkpoints.restore(1)
    assert "more than" in restored.unrecorded
    assert (work / "0").read_bytes() == b"x" * (300 << 10)


def test_own_home_inside_a_project_is_not_recorded(work: Path) -> None:
    project = Project(work, work / ".talaria")
    (work / "a").write_text("old")
    project.command("t1", lambda: (work / "a").write_text("new"))
    assert [str(one.path) for one in project.checkpoints.list()[0].files] == [str(work / "a")]


def test_link_that_came_in_the_way_is_not_followed(project: Project, work: Path, tmp_path: Path) -> None:
    (work / "folder").mkdir()
    (work / "folder/b").write_text("old")
    project.command("t1", lambda: (work / "folder/b").write_text("new"))
    (work / "folder").rename(tmp_path / "moved")
    (work / "folder").symlink_to(tmp_path / "moved")
    outcome = project.restore(1, everything=True)["folder/b"]
    assert (outcome.what, outcome.reason) == ("failed", "it is a link, or leads through one")
    assert (tmp_path / "moved/b").read_text() == "new"


def test_file_outside_the_project_comes_back(project: Project, tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere.txt"
    outside.write_text("old")
    with project.turn("t1", outside):
        outside.write_text("new")
    project.checkpoints.restore(1)
    assert outside.read_text() == "old"


def test_number_that_is_not_there_is_refused(project: Project, work: Path) -> None:
    project.command("t1", lambda: (work / "a").write_text("x"))
    for number in (0, 2, -1):
        with pytest.raises(BadInput, match=f"There is no checkpoint {number}."):
            project.restore(number)
        with pytest.raises(BadInput, match=f"There is no checkpoint {number}."):
            project.changes(number)


def test_changes_since_a_checkpoint(project: Project, work: Path) -> None:
    (work / "edited").write_text("one\ntwo\n")
    (work / "deleted").write_text("x\n")
    (work / "script").write_text("#!/bin/sh\n")
    with project.turn("t1"):
        (work / "edited").write_text("one\n2\n")
        (work / "deleted").unlink()
        (work / "new").write_text("new\n")
        (work / "script").chmod(0o755)
        (work / "link").symlink_to("new")
    assert project.changes(1) == {
        "edited": "changed",
        "deleted": "deleted",
        "link": "created",
        "new": "created",
        "script": "changed",
    }


def test_nobody_else_can_read_what_was_kept(project: Project, work: Path) -> None:
    (work / "a").write_text("secret")
    before = os.umask(0)
    try:
        project.command("t1", lambda: None)
    finally:
        os.umask(before)
    found = list(project.home.iterdir())
    assert {stat.S_IMODE(one.stat().st_mode) for one in found} == {0o600}
    assert stat.S_IMODE(project.home.stat().st_mode) == 0o700


def test_old_checkpoints_and_their_content_go(project: Project, work: Path) -> None:
    secret = os.urandom(32).hex()  # so short that it is not compressed
    (work / "a").write_text(secret)
    project.command("t1", (work / "a").unlink)
    project.now += 31 * 86_400
    project.command("t2", lambda: (work / "b").write_text("x"))
    project.recorder.prune()
    assert [one.turn for one in project.checkpoints.list()] == ["t2"]
    project.recorder.close()
    assert not any(secret.encode() in file.read_bytes() for file in project.home.iterdir())


def test_the_oldest_go_when_they_take_too_much_room(tmp_path: Path, work: Path) -> None:
    project = Project(work, tmp_path / "home", CheckpointSettings(max_mb=3))
    for number in range(8):
        (work / "a").write_bytes(os.urandom(1 << 20))
        project.now += 1
        project.command(f"t{number}", lambda: (work / "a").write_bytes(b""))
    project.recorder.prune()
    turns = [one.turn for one in project.checkpoints.list()]
    assert turns[0] == "t7"
    assert "t0" not in turns
    assert undo_file(project.home).stat().st_size < 4 << 20


def test_forgotten_session_leaves_nothing_behind(project: Project, work: Path) -> None:
    secret = os.urandom(32).hex()  # so short that it is not compressed
    (work / "a").write_text(secret)
    project.command("t1", lambda: (work / "a").write_text("new"))
    assert any(secret.encode() in file.read_bytes() for file in project.home.iterdir())
    project.recorder.forget((SESSION,))
    assert project.checkpoints.list() == []
    project.recorder.close()
    assert not any(secret.encode() in file.read_bytes() for file in project.home.iterdir())


def test_session_that_is_not_forgotten_keeps_its_checkpoints(project: Project, work: Path) -> None:
    (work / "a").write_text("old")
    with project.turn("t1", session="another"):
        (work / "b").write_text("x")
    project.command("t1", lambda: (work / "a").write_text("new"))
    project.recorder.forget((SessionId("another"),))
    project.restore(1)
    assert (work / "a").read_text() == "old"


def test_damaged_content_is_told_and_not_restored(project: Project, work: Path) -> None:
    (work / "a").write_text("old and long enough to be found" * 10)
    project.command("t1", lambda: (work / "a").write_text("new"))
    store = SqliteUndoStore(undo_file(project.home))
    with store.transaction() as db:
        db.execute("UPDATE piece SET content = zeroblob(length(content))")
    outcome = project.restore(1)["a"]
    assert outcome.what == "failed"
    assert (work / "a").read_text() == "new"


def test_file_of_a_newer_version_is_left_alone(project: Project, work: Path) -> None:
    project.command("t1", lambda: (work / "a").write_text("x"))
    project.recorder.close()
    store = SqliteUndoStore(undo_file(project.home))
    with store.transaction() as db:
        db.execute("PRAGMA user_version = 99")
    store.close()
    with pytest.raises(StoreDamaged, match="newer version"):
        Project(work, project.home).checkpoints.list()


def test_two_processes_see_each_other(project: Project, work: Path) -> None:
    other = Project(work, project.home)
    (work / "a").write_text("one")
    project.command("t1", lambda: (work / "a").write_text("two"))
    with other.turn("t1", session="another"):
        (work / "a").write_text("three")
    project.command("t2", lambda: (work / "b").write_text("x"))
    assert project.restore(1)["a"].what == "left"
    assert other.recorder.checkpoints(SessionId("another")).restore(1).outcomes[0].what == "restored"
    assert (work / "a").read_text() == "two"


def test_what_a_call_did_is_its_own_although_another_process_saw_it_first(project: Project, work: Path) -> None:
    other = Project(work, project.home)
    (work / "a").write_text("one")
    with project.turn("t1"):
        (work / "a").write_text("two")
        with other.turn("t1", session="another"):
            (work / "b").write_text("x")
    assert project.restore(1)["a"].what == "restored"
    assert (work / "a").read_text() == "one"


def test_what_was_made_in_a_conversation_is_known(project: Project, work: Path) -> None:
    (work / "mine").write_text("x")
    project.command("t1", lambda: ((work / "new").write_text("x"), (work / "mine").write_text("y")))
    assert project.recorder.has_created(SESSION, work / "new")
    assert not project.recorder.has_created(SESSION, work / "mine")
    assert not project.recorder.has_created(SessionId("another"), work / "new")


def write_old_checkpoint(home: Path, number: int, path: Path, before: bytes | None, left: bytes) -> None:
    """As earlier versions did."""
    folder = checkpoint_folder(home, SESSION) / str(number)
    folder.mkdir(parents=True)
    digest = hashlib.sha256(before).hexdigest() if before is not None else ""
    if before is not None:
        (folder / digest).write_bytes(before)
    kept = {
        "path": str(path),
        "was_there": before is not None,
        "blob": digest,
        "mode": 0o644,
        "size_bytes": len(before or b""),
        "left": hashlib.sha256(left).hexdigest(),
    }
    manifest = {"number": number, "at": 1.0, "turn": f"old{number}", "why": "", "files": [kept]}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_checkpoints_of_earlier_versions_can_be_restored_with_those_that_came_after(
    project: Project, work: Path
) -> None:
    (work / "a").write_bytes(b"2")
    write_old_checkpoint(project.home, 1, work / "a", b"0", b"1")
    write_old_checkpoint(project.home, 2, work / "a", b"1", b"2")
    write_old_checkpoint(project.home, 3, work / "new", None, b"x")
    (work / "new").write_bytes(b"x")
    project.command("t1", lambda: (work / "a").write_bytes(b"3"))
    assert [one.turn for one in project.checkpoints.list()] == ["t1", "old3", "old2", "old1"]
    project.restore(2)
    assert (work / "a").read_bytes() == b"1"
    assert not (work / "new").exists()


@pytest.mark.parametrize("manifest", [None, b"", b"{", b"[]", b'{"number": "x"}'])
def test_old_checkpoint_that_a_crash_left_half_does_not_count(
    project: Project, work: Path, manifest: bytes | None
) -> None:
    write_old_checkpoint(project.home, 1, work / "a", b"0", b"1")
    folder = checkpoint_folder(project.home, SESSION) / "2"
    folder.mkdir()
    if manifest is not None:
        (folder / "manifest.json").write_bytes(manifest)
    assert [one.number for one in project.checkpoints.list()] == [1]


@tool(claim=Claim(command="a command"))
async def command(script: str, run: Run) -> str:
    """A command without a sandbox."""
    await asyncio.to_thread(subprocess.run, ["sh", "-c", script], cwd=run.scope.cwd, check=True)
    return "done"


async def test_call_of_a_command_is_recorded_shown_and_can_be_undone(project: Project, work: Path) -> None:
    (work / "a").write_text("one\ntwo\n")
    for number in range(1_200):
        (work / f"{number}.txt").write_text("x")
    scope = Scope(SESSION, work, project.home / "spill/s", turn="t1")
    executor = Executor(Toolbox((command,)), OpenGate(), scope, lambda: project.recorder)
    call = ToolCall(CallId("c"), "command", json.dumps({"script": "echo one > a; rm 5.txt; mkdir d; git init -q"}))
    progress: list[str] = []
    prepared = executor.prepare(call)
    await executor.admit(prepared)
    result = await executor.run(prepared, LiveOutput(progress.append, SystemClock()))
    assert [(one.path, one.kind, one.added, one.removed) for one in result.changes] == [
        ("5.txt", "deleted", 0, 1),
        ("a", "changed", 0, 1),
    ]
    assert progress[-1] == "recording the project: 1,201 of 1,201 files"
    project.restore(1)
    assert (work / "a").read_text() == "one\ntwo\n"
    assert not (work / ".git").exists()


async def test_damage_to_a_repository_is_shown(project: Project, work: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=work, check=True)
    executor = Executor(
        Toolbox((command,)), OpenGate(), Scope(SESSION, work, project.home / "spill/s"), lambda: project.recorder
    )
    call = ToolCall(CallId("c"), "command", json.dumps({"script": "rm .git/HEAD"}))
    result = await executor.call(call)
    assert [(one.path, one.note) for one in result.changes] == [
        (".git", "damaged: 1 file of git is gone: HEAD"),
    ]


def test_list_of_nothing_makes_nothing(project: Project) -> None:
    assert project.checkpoints.list() == []
    assert not project.home.exists()
