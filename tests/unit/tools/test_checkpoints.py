"""Checkpoints: what files held before a turn changed them comes back, byte for byte, and nothing goes unsaid."""

import json
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from talaria.model.errors import BadInput
from talaria.model.ids import CallId, SessionId
from talaria.model.messages import ToolCall, ToolResult
from talaria.tools import places
from talaria.tools.approval import OpenGate
from talaria.tools.base import Scope
from talaria.tools.builtin.files import file_tools
from talaria.tools.builtin.search import search_tools
from talaria.tools.builtin.seen import Seen
from talaria.tools.checkpoints import MAX_FILE_BYTES, Checkpoints, checkpoint_folder
from talaria.tools.executor import Executor
from talaria.tools.protected import Protected
from talaria.tools.registry import Toolbox

FILES = (*file_tools(Seen()), *search_tools(Protected(Path("/home/ada"), Path("/home/ada/.talaria"))))

Use = Callable[..., Awaitable[ToolResult]]


@pytest.fixture
def kept(scope: Scope) -> Checkpoints:
    return Checkpoints(scope.checkpoints, now=lambda: 1_000.0)


def change(kept: Checkpoints, path: Path, content: bytes, turn: str = "") -> str:
    """As the tools do it."""
    before = places.read(path, MAX_FILE_BYTES)
    told = kept.keep(path, before, content, turn)
    places.write(path, content, before)
    return told


def outcomes(kept: Checkpoints, number: int) -> dict[str, tuple[str, bool]]:
    return {one.path.name: (one.what, one.was_changed) for one in kept.restore(number).outcomes}


async def in_turn(scope: Scope, turn: str, name: str, **arguments: object) -> ToolResult:
    executor = Executor(Toolbox(FILES), OpenGate(), replace(scope, turn=turn))
    return await executor.call(ToolCall(CallId("c"), name, json.dumps(arguments)))


def test_folder_is_the_same_for_tools_and_commands(tmp_path: Path, scope: Scope) -> None:
    assert checkpoint_folder(tmp_path / "home", scope.session) == scope.checkpoints
    assert checkpoint_folder(tmp_path, SessionId("../../x")).parent == tmp_path / "checkpoints"


async def test_changes_of_one_turn_are_one_checkpoint_with_what_was_there_first(
    scope: Scope, cwd: Path, kept: Checkpoints
) -> None:
    (cwd / "a").write_text("one")
    await in_turn(scope, "t1", "read_file", path="a")
    await in_turn(scope, "t1", "patch", path="a", old="one", new="two")
    await in_turn(scope, "t1", "patch", path="a", old="two", new="three")
    await in_turn(scope, "t1", "write_file", path="b", content="new")
    await in_turn(scope, "t2", "write_file", path="a", content="four")

    assert [(one.number, one.turn, [Path(file.path).name for file in one.files]) for one in kept.list()] == [
        (2, "t2", ["a"]),
        (1, "t1", ["a", "b"]),
    ]
    kept.restore(2)
    assert (cwd / "a").read_text() == "three"
    kept.restore(1)
    assert (cwd / "a").read_text() == "one"
    assert not (cwd / "b").exists()


async def test_where_no_turn_is_known_every_call_has_a_checkpoint_of_its_own(
    use: Use, cwd: Path, kept: Checkpoints
) -> None:
    await use("write_file", path="a", content="one")
    await use("write_file", path="a", content="two")
    assert len(kept.list()) == 2
    kept.restore(2)
    assert (cwd / "a").read_text() == "one"


async def test_refused_change_keeps_nothing(use: Use, cwd: Path, kept: Checkpoints) -> None:
    (cwd / "a").write_text("one")
    await use("read_file", path="a")
    assert (await use("patch", path="a", old="nowhere", new="x")).is_error
    assert kept.list() == []


def test_restoring_undoes_all_that_came_after_and_can_be_undone_itself(kept: Checkpoints, cwd: Path) -> None:
    a, b, c = cwd / "a", cwd / "b", cwd / "c"
    a.write_bytes(b"a0")
    b.write_bytes(b"b0")
    change(kept, a, b"a1", "t1")
    change(kept, b, b"b1", "t2")
    change(kept, a, b"a2", "t3")
    change(kept, c, b"c1", "t3")

    restored = kept.restore(1)
    assert (a.read_bytes(), b.read_bytes(), c.exists()) == (b"a0", b"b0", False)
    assert restored.kept_as == 4
    assert kept.list()[0].why == "before going back to 1"

    kept.restore(4)
    assert (a.read_bytes(), b.read_bytes(), c.read_bytes()) == (b"a2", b"b1", b"c1")
    kept.restore(3)
    assert (a.read_bytes(), b.read_bytes(), c.exists()) == (b"a1", b"b1", False)


def test_mode_and_bytes_come_back(kept: Checkpoints, cwd: Path) -> None:
    file = cwd / "a.sh"
    file.write_bytes(b"\0\xff\r\n")
    file.chmod(0o750)
    change(kept, file, b"x")
    file.chmod(0o600)
    kept.restore(1)
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"\0\xff\r\n", 0o750)


def test_what_somebody_else_changed_since_is_restored_told_and_kept(kept: Checkpoints, cwd: Path) -> None:
    for name in ("ours", "theirs", "gone", "new"):
        (cwd / name).write_bytes(b"old")
    (cwd / "new").unlink()
    for name in ("ours", "theirs", "gone", "new"):
        change(kept, cwd / name, b"changed", "t")
    (cwd / "theirs").write_bytes(b"by hand")
    (cwd / "gone").unlink()
    (cwd / "new").write_bytes(b"by hand, too")

    assert outcomes(kept, 1) == {
        "ours": ("restored", False),
        "theirs": ("restored", True),
        "gone": ("restored", True),
        "new": ("removed", True),
    }
    assert {file.name: file.read_bytes() for file in cwd.iterdir()} == dict.fromkeys(("ours", "theirs", "gone"), b"old")

    kept.restore(2)
    assert (cwd / "theirs").read_bytes() == b"by hand"
    assert (cwd / "new").read_bytes() == b"by hand, too"
    assert not (cwd / "gone").exists()


def test_file_that_is_as_it_was_is_left_alone(kept: Checkpoints, cwd: Path) -> None:
    (cwd / "a").write_bytes(b"old")
    change(kept, cwd / "a", b"new")
    (cwd / "a").write_bytes(b"old")
    inode = (cwd / "a").stat().st_ino
    restored = kept.restore(1)
    assert ([one.what for one in restored.outcomes], restored.kept_as) == (["same"], None)
    assert (cwd / "a").stat().st_ino == inode


def test_what_cannot_be_restored_is_told_and_the_rest_is_restored(kept: Checkpoints, cwd: Path, tmp_path: Path) -> None:
    for name in ("a", "folder/b", "c"):
        (cwd / name).parent.mkdir(exist_ok=True)
        (cwd / name).write_bytes(b"old")
        change(kept, cwd / name, b"new", "t")
    (cwd / "a").unlink()
    (cwd / "a").mkdir()
    (cwd / "folder").rename(tmp_path / "moved")
    (cwd / "folder").symlink_to(tmp_path / "moved")

    restored = {one.path.name: one for one in kept.restore(1).outcomes}

    assert {name: one.what for name, one in restored.items()} == {"a": "failed", "b": "failed", "c": "restored"}
    assert restored["a"].reason == "it is a folder, device or pipe"
    assert restored["b"].reason == "it is a link, or leads through one"
    assert (tmp_path / "moved/b").read_bytes() == b"new"


def test_number_that_is_not_there_is_refused(kept: Checkpoints, cwd: Path) -> None:
    change(kept, cwd / "a", b"x")
    for number in (0, 2, -1):
        with pytest.raises(BadInput, match=f"There is no checkpoint {number}."):
            kept.restore(number)
        with pytest.raises(BadInput, match=f"There is no checkpoint {number}."):
            kept.diff(number)
    assert (cwd / "a").read_bytes() == b"x"


def test_diff_shows_what_restoring_would_change(kept: Checkpoints, cwd: Path) -> None:
    (cwd / "a").write_text("one\ntwo\n")
    (cwd / "binary").write_bytes(b"\0")
    change(kept, cwd / "a", b"one\n2\n", "t")
    change(kept, cwd / "binary", b"\0\0", "t")
    change(kept, cwd / "new", b"new\n", "t")
    assert kept.diff(1) == "\n".join(
        [
            f"--- {cwd}/a",
            f"+++ {cwd}/a",
            "@@ -1,2 +1,2 @@",
            " one",
            "-2",
            "+two",
            f"[{cwd}/binary: 2 bytes now, 1 then]",
            f"--- {cwd}/new",
            f"+++ {cwd}/new",
            "@@ -1,1 +0,0 @@",
            "-new",
        ]
    )
    assert (cwd / "a").read_text() == "one\n2\n"


def test_nobody_else_can_read_what_was_kept(kept: Checkpoints, cwd: Path, scope: Scope) -> None:
    (cwd / "a").write_text("secret")
    before = os.umask(0)
    try:
        change(kept, cwd / "a", b"x")
    finally:
        os.umask(before)
    found = [scope.checkpoints.parent, scope.checkpoints, *scope.checkpoints.rglob("*")]
    assert {stat.S_IMODE(one.stat().st_mode) for one in found if one.is_dir()} == {0o700}
    assert {stat.S_IMODE(one.stat().st_mode) for one in found if one.is_file()} == {0o600}


def test_oldest_are_dropped_and_told_when_there_is_no_more_room(scope: Scope, cwd: Path) -> None:
    kept = Checkpoints(scope.checkpoints, max_bytes=250)
    told = [change(kept, cwd / "a", b"x" * 100 + b"%d" % number) for number in range(5)]
    dropped = [f"[{count} of the oldest checkpoints were dropped to make room]" for count in (2, 1)]
    assert told == ["", "", "", *dropped]
    assert [one.number for one in kept.list()] == [5, 4]
    kept.restore(4)
    assert (cwd / "a").read_bytes().endswith(b"x2")


def test_no_more_than_so_many_are_kept(scope: Scope, cwd: Path) -> None:
    kept = Checkpoints(scope.checkpoints, max_count=3)
    for number in range(6):
        change(kept, cwd / "a", b"%d" % number)
    assert [one.number for one in kept.list()] == [6, 5, 4]
    assert {item.name for item in scope.checkpoints.iterdir()} == {"4", "5", "6", ".lock"}


def test_what_is_too_large_to_keep_is_told_and_never_lost_by_restoring(scope: Scope, cwd: Path) -> None:
    kept = Checkpoints(scope.checkpoints, max_bytes=100)
    (cwd / "a").write_bytes(b"x" * 101)
    told = change(kept, cwd / "a", b"new")
    assert told == "[what it held before was too large to keep: it cannot be rolled back]"
    (outcome,) = kept.restore(1).outcomes
    assert (outcome.what, outcome.reason) == ("failed", "what it held before was too large to keep")
    assert (cwd / "a").read_bytes() == b"new"


def test_what_could_not_be_kept_is_not_replaced(scope: Scope, cwd: Path) -> None:
    kept = Checkpoints(scope.checkpoints, max_bytes=100)
    (cwd / "a").write_bytes(b"old")
    change(kept, cwd / "a", b"new")
    (cwd / "a").write_bytes(b"x" * 101)
    (outcome,) = kept.restore(1).outcomes
    assert (outcome.what, outcome.reason) == ("failed", "there is no room to keep what it holds now")
    assert (cwd / "a").read_bytes() == b"x" * 101


def test_damaged_blob_is_told_and_not_restored(kept: Checkpoints, cwd: Path, scope: Scope) -> None:
    (cwd / "a").write_bytes(b"old")
    change(kept, cwd / "a", b"new")
    (blob,) = (file for file in (scope.checkpoints / "1").iterdir() if file.name != "manifest.json")
    blob.write_bytes(b"0ld")
    (outcome,) = kept.restore(1).outcomes
    assert (outcome.what, outcome.reason) == ("failed", "what was kept of it is damaged")
    assert (cwd / "a").read_bytes() == b"new"


@pytest.mark.parametrize("manifest", [None, b"", b"{", b"[]", b'{"number": "x"}'])
def test_checkpoint_that_a_crash_left_half_does_not_count(
    kept: Checkpoints, cwd: Path, scope: Scope, manifest: bytes | None
) -> None:
    change(kept, cwd / "a", b"1")
    (scope.checkpoints / "2").mkdir()
    if manifest is not None:
        (scope.checkpoints / "2/manifest.json").write_bytes(manifest)
    change(kept, cwd / "a", b"2", "t")
    assert [one.number for one in kept.list()] == [3, 1]


def test_name_that_is_no_text_comes_back(kept: Checkpoints, cwd: Path) -> None:
    file = Path(os.fsdecode(os.fsencode(cwd) + b"/caf\xe9"))
    change(kept, file, b"x")
    assert [one.what for one in kept.restore(1).outcomes] == ["removed"]
    assert not file.exists()


def test_list_of_nothing_makes_nothing(kept: Checkpoints, scope: Scope) -> None:
    assert kept.list() == []
    assert not scope.checkpoints.parent.exists()


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.binary(max_size=3), st.sampled_from(["t1", "t2", "t3", ""])), max_size=8
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, st.lists(st.integers(0, 20), max_size=3))
def test_every_restore_leads_to_what_was_there_before_its_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, bytes, str]], choices: list[int]
) -> None:
    work, home = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("home")
    kept = Checkpoints(home / "checkpoints/s")
    states: dict[int, dict[str, bytes]] = {}

    def state() -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in work.iterdir()}

    for name, content, turn in steps:
        before = state()
        change(kept, work / name, content, turn)
        states.setdefault(kept.list()[0].number, before)
    for choice in choices if states else []:
        number = sorted(states)[choice % len(states)]
        before = state()
        restored = kept.restore(number)
        assert state() == states[number]
        if restored.kept_as is not None:
            states[restored.kept_as] = before
        assert not any(one.was_changed for one in restored.outcomes)
