"""kill -9 at any moment of recording or restoring: nothing is lost, and doing it again finishes it."""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.tools.undo_scenario import Project, picture

from talaria.store.sqlite.connection import SqliteConnection
from talaria.store.sqlite.undo import SqliteUndoStore

STEPS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod"}
ORIGINAL = {"a": b"one", "d/b": b"two", "d/e/c": b"three"}


def dies(step: int, work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a process that does `work` was killed before its `step`-th change of a file or of the store."""
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    count = 0

    def die() -> None:
        nonlocal count
        count += 1
        if count == step:
            os.kill(os.getpid(), signal.SIGKILL)

    commit = SqliteUndoStore.transaction

    @contextmanager
    def transaction(self: SqliteUndoStore, *, survives_power_cut: bool = False) -> Generator[SqliteConnection]:
        die()
        with commit(self, survives_power_cut=survives_power_cut) as connection:
            yield connection
        die()

    monkeypatch.setattr(SqliteUndoStore, "transaction", transaction)
    sys.addaudithook(lambda event, _: die() if event in STEPS else None)
    try:
        work()
    except BaseException:  # noqa: BLE001  (it is told by the exit code)
        os._exit(1)
    os._exit(0)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as made:
        yield build(Path(made) / "pristine/work")


def build(work: Path) -> Path:
    for name, content in ORIGINAL.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(content)
    (work / "link").symlink_to("a")
    (work / "d/e/c").chmod(0o640)
    return work.parent


def copy(folder: Path) -> Project:
    copied = folder.parent / "copy"
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(folder, copied, symlinks=True)
    return Project(copied / "work", copied / "home")


def change(work: Path) -> None:
    (work / "a").write_bytes(b"changed")
    shutil.rmtree(work / "d")
    (work / "d").write_bytes(b"a file now")
    (work / "link").unlink()
    (work / "new").mkdir()
    (work / "new/file").write_bytes(b"new")


def turn(project: Project) -> None:
    with project.turn("t1"):
        change(project.work)


def test_killed_while_recording(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, step = picture(folder / "work"), 1
    while True:
        project = copy(folder)
        if not dies(step, lambda project=project: turn(project), monkeypatch):
            break
        if project.checkpoints.list():
            project.checkpoints.restore(1, everything=True)
        assert picture(project.work) == before, step
        turn(project)  # it goes on as if nothing had been
        project.restore(project.checkpoints.list()[0].number)
        assert picture(project.work) == before, step
        project.recorder.close()
        step += 1
    assert step > 20


def test_killed_while_restoring(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, step = picture(folder / "work"), 1
    changed = copy(folder)
    turn(changed)
    changed.recorder.close()
    after = picture(changed.work)
    pristine = changed.work.parent.rename(folder.parent / "changed")
    while True:
        project = copy(pristine)
        if not dies(step, lambda project=project: project.restore(1), monkeypatch):
            break
        bad = [one for one in project.checkpoints.restore(1).outcomes if one.what in ("failed", "left")]
        assert not bad, step
        assert picture(project.work) == before, step
        kept = project.checkpoints.list()
        if len(kept) > 1:
            project.restore(2)
            assert picture(project.work) == after, step
        project.recorder.close()
        step += 1
    assert step > 30
