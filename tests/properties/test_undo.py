"""Whatever a turn's tools and commands did inside the project, going back restores bytes, modes and links exactly; and
what the person did since is never lost without asking."""

import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.tools.undo_scenario import Project, picture

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where nothing waits for a disk, if there is such a place."""
UNREADABLE = 0o000 if os.geteuid() == 0 else 0o400
"""What cannot be read is named, and not restored: so only root can do the worst."""
NAMES = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "f", "f/g"])
CONTENT = st.binary(max_size=3)
STEPS = st.one_of(
    st.tuples(st.just("write"), NAMES, CONTENT),
    st.tuples(st.just("append"), NAMES, CONTENT),
    st.tuples(st.just("overwrite in place, with the old times"), NAMES, CONTENT),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("delete"), NAMES, st.none()),
    st.tuples(st.just("chmod"), NAMES, st.sampled_from([0o600, 0o755, 0o444, UNREADABLE, 0o500])),
    st.tuples(st.just("symlink"), NAMES, st.sampled_from(["a", "../a", "nowhere", "d"])),
    st.tuples(st.just("link"), NAMES, NAMES),
    st.tuples(st.just("folder"), NAMES, st.none()),
    st.tuples(st.just("pipe"), NAMES, st.none()),
)
TURNS = st.lists(st.lists(STEPS, max_size=5), min_size=1, max_size=4)
GIT = {
    "commit": ["commit", "-qam", "more"],
    "branch": ["checkout", "-q", "-B", "other"],
    "back": ["checkout", "-q", "-f", "HEAD~0"],
    "stash": ["stash", "-q", "-u"],
    "gc": ["gc", "-q", "--prune=now"],
    "reset": ["reset", "-q", "--hard"],
    "tag": ["tag", "-f", "t"],
}


def do(work: Path, what: str, name: str, given: object) -> None:
    """One step, as a command would do it; what is impossible is left undone."""
    path = work / name
    if path.is_fifo() and isinstance(given, bytes):
        return  # nobody reads it
    try:
        match what, given:
            case "write", bytes(content):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            case "append", bytes(content):
                with path.open("ab") as file:
                    file.write(content)
            case "overwrite in place, with the old times", bytes(content):
                times = path.stat()
                with path.open("r+b") as file:
                    file.write(content)
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            case "rename", str(other):
                path.rename(work / other)
            case "delete", _:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            case "chmod", int(mode):
                path.chmod(mode)
            case "symlink", str(target):
                path.symlink_to(target)
            case "link", str(other):
                if stat.S_ISREG((work / other).lstat().st_mode):
                    os.link(work / other, path)
            case "folder", _:
                path.mkdir()
            case "pipe", _:
                os.mkfifo(path)
            case "git", _:
                command = ["git", "-c", "user.name=A", "-c", "user.email=a@b", "-c", "gc.auto=0", *GIT[name]]
                subprocess.run(command, cwd=work, capture_output=True, check=False)
            case _:
                raise AssertionError(what)
    except (OSError, shutil.SameFileError):
        pass


@settings(max_examples=80, deadline=None)
@given(before=st.lists(STEPS, max_size=6), turns=TURNS, choice=st.integers(0, 9))
def test_going_back_restores_bytes_modes_and_links_exactly(
    before: list[tuple[str, str, object]], turns: list[list[tuple[str, str, object]]], choice: int
) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        project = Project(Path(folder, "work"), Path(folder, "home"))
        project.work.mkdir()
        for step in before:
            do(project.work, *step)
        pictures = [picture(project.work)]
        for number, steps in enumerate(turns):
            with project.turn(f"t{number}"):
                for step in steps:
                    do(project.work, *step)
            pictures.append(picture(project.work))
        number = choice % len(turns)
        listed = [one for one in project.checkpoints.list() if int(one.turn[1:]) >= number]
        if not listed:
            assert pictures[number] == pictures[-1]
            return
        last = project.checkpoints.restore(listed[-1].number)
        assert {one.what for one in last.outcomes} <= {"restored", "removed", "same"}
        assert picture(project.work) == pictures[number]
        if last.saved_as is not None:
            project.checkpoints.restore(last.saved_as)
            assert picture(project.work) == pictures[-1]


@settings(max_examples=60, deadline=None)
@given(before=st.lists(STEPS, max_size=6), steps=st.lists(STEPS, max_size=6), edits=st.dictionaries(NAMES, CONTENT))
def test_edits_of_the_person_survive_going_back(
    before: list[tuple[str, str, object]], steps: list[tuple[str, str, object]], edits: dict[str, bytes]
) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        project = Project(Path(folder, "work"), Path(folder, "home"))
        project.work.mkdir()
        for step in before:
            do(project.work, *step)
        original = picture(project.work)
        with project.turn("t"):
            for step in steps:
                do(project.work, *step)
        left = picture(project.work)
        for name, content in edits.items():
            if not (project.work / name).is_symlink():
                do(project.work, "write", name, content)
        edited = {n: one for n, one in picture(project.work).items() if one[0] == "file" and left.get(n) != one}
        if not project.checkpoints.list():
            return
        project.checkpoints.restore(1)
        now = picture(project.work)
        for name, one in edited.items():
            assert now[name][2] == one[2] or now.get(name) == original.get(name)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.one_of(STEPS, st.tuples(st.just("git"), st.sampled_from(sorted(GIT)), st.none())), max_size=8))
def test_git_operations_are_undone_exactly(steps: list[tuple[str, str, object]]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        project = Project(Path(folder, "work"), Path(folder, "home"))
        project.work.mkdir()
        subprocess.run(["git", "init", "-q"], cwd=project.work, check=True)
        do(project.work, "write", "a", b"1")
        do(project.work, "write", "d/b", b"2")
        subprocess.run(["git", "add", "."], cwd=project.work, check=True)
        do(project.work, "git", "commit", None)
        before = picture(project.work)
        with project.turn("t"):
            for step in steps:
                do(project.work, *step)
        if project.checkpoints.list():
            project.checkpoints.restore(1)
        assert picture(project.work) == before
