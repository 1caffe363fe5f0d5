"""What a turn pays so that it can be undone: a project is recorded before it changes. Beside it what others do: git."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measuring import Lap, Plan
from benchmarks.table import Row
from talaria.store.sqlite.undo import SqliteUndoStore
from talaria.tools.undo.project_record import ProjectRecord

_FILES = 10_000
_MANY_FILES = 100_000
_PER_FOLDER = 20
_LINE = "def function_{0}(value: int) -> int:\n    return value + {0}\n"
_UNCHANGED_MS, _COLD_S = 50.0, 2.0


def rows(plan: Plan) -> Iterator[Row]:
    for files, runs in ((_FILES, plan.of(20, 5)), *(((_MANY_FILES, 3),) if not plan.is_quick else ())):
        with _project(files) as work:
            cold_floor, cold = _measure_cold(work, plan.of(3, 1) if files == _FILES else 1)
            floor, unchanged = _measure_unchanged(work, runs)
        what, has_limit = f"{files:,} files", files == _FILES
        limit = _COLD_S if has_limit else None
        yield Row(
            f"recording {what} / git add -A", cold_floor.median_s, cold.median_s, "s", len(cold.laps), limit=limit
        )
        limit = _UNCHANGED_MS if has_limit else None
        yield Row(f"{what} unchanged / git status", floor.median_ms, unchanged.median_ms, "ms", runs, limit=limit)


@contextmanager
def _project(files: int) -> Generator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder, "work")
        for number in range(files):
            path = work / f"package{number // 1000}/module{number // _PER_FOLDER}/file{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(_LINE.format(number + line) for line in range(20 + number % 200)))
        past = time.time() - 60
        for path in work.rglob("*"):
            os.utime(path, (past, past))
        time.sleep(3)  # what was changed just now is read once more, which is not what is measured
        yield work


def _measure_cold(work: Path, runs: int) -> tuple[Lap, Lap]:
    floor, ours = Lap(), Lap()
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as home:
            git = _git(work, Path(home, "git"))
            with floor:
                git("add", "-A")
            store = SqliteUndoStore(Path(home, "undo.db"))
            with ours:
                _call(ProjectRecord(store, work), "t0")
            store.close()
    return floor, ours


def _measure_unchanged(work: Path, runs: int) -> tuple[Lap, Lap]:
    """Only what comes before the first change of a turn."""
    floor, ours = Lap(1), Lap(1)
    with tempfile.TemporaryDirectory() as home:
        git = _git(work, Path(home, "git"))
        git("add", "-A")
        store = SqliteUndoStore(Path(home, "undo.db"))
        record = ProjectRecord(store, work)
        _call(record, "t0")
        for number in range(runs + 1):
            with floor:
                git("status", "--porcelain")
            with ours:
                recording = record.begin("s", f"t{number + 1}", None)
            if recording is None or record.end(recording):
                raise RuntimeError("it was not recorded as unchanged")
        store.close()
    return floor, ours


def _call(record: ProjectRecord, turn: str) -> None:
    recording = record.begin("s", turn, None)
    if recording is None:
        raise RuntimeError(f"it was not recorded: {record.reason}")
    record.end(recording)


def _git(work: Path, store: Path) -> Callable[..., None]:
    program = shutil.which("git")
    if program is None:
        raise RuntimeError("git is not installed")
    subprocess.run([program, "init", "-q", "--bare", store], check=True)

    def run(*words: str) -> None:
        command = [program, f"--git-dir={store}", f"--work-tree={work}", *words]
        subprocess.run(command, check=True, capture_output=True)

    return run
