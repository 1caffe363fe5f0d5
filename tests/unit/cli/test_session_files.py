"""What goes from the disk with a conversation."""

import os
from pathlib import Path

from tests.unit.tools.undo_scenario import SESSION, Project

from talaria.app.session_files import remove_files
from talaria.cli.backup.archive import is_kept
from talaria.core.ids import SessionId
from talaria.core.trees import Root
from talaria.tools.quarantine import Quarantine


def test_what_was_moved_to_quarantine_goes_with_its_conversation_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").write_text("kept")
    for session in ("one", "two"):
        project = tmp_path / session
        (project / "folder").mkdir(parents=True)
        (project / "folder/link").symlink_to(tmp_path / "outside")
        (tmp_path / "home").mkdir(exist_ok=True)
        with Root.open(project) as root:
            Quarantine(tmp_path / "home", SessionId(session)).move(root, ["folder"])
    remove_files(tmp_path / "home", SessionId("one"))
    assert [one.name for one in (tmp_path / "home/quarantine").iterdir()] == ["two"]
    assert (tmp_path / "outside/kept").read_text() == "kept"


def test_what_could_be_undone_goes_with_its_conversation(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    secret = os.urandom(32).hex()
    project = Project(tmp_path / "work", tmp_path / "home")
    (project.work / "a").write_text(secret)
    project.command("t1", (project.work / "a").unlink)
    project.recorder.close()
    remove_files(project.home, SESSION)
    assert Project(project.work, project.home).checkpoints.list() == []
    assert not any(secret.encode() in file.read_bytes() for file in project.home.iterdir())


def test_what_could_be_undone_is_not_in_a_backup() -> None:
    assert not is_kept("undo.db", with_secrets=True)
    assert not is_kept("undo.db-wal", with_secrets=True)
