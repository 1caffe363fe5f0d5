"""Where paths lead: what is outside the project is told before it is touched, and no swap of links leads elsewhere."""

import asyncio
import ctypes
import json
import os
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.descriptors import opened

from talaria.core.errors import BadArguments
from talaria.core.ids import CallId
from talaria.core.messages import ToolCall, ToolResult
from talaria.tools import file_content
from talaria.tools.base import Invocation, OpenGate, Scope
from talaria.tools.builtin.file_tools import file_tools
from talaria.tools.builtin.search_tools import search_tools
from talaria.tools.executor import Executor
from talaria.tools.file_content import ReadFiles
from talaria.tools.function import is_outside
from talaria.tools.person import Proposal
from talaria.tools.protected import Protected
from talaria.tools.registry import Toolbox

FILES = (*file_tools(ReadFiles()), *search_tools(Protected(Path("/home/ada"), Path("/home/ada/.talaria"))))

Use = Callable[..., Awaitable[ToolResult]]
SEGMENTS = st.sampled_from(
    [
        "..",
        ".",
        "...",
        "a.",
        "a..",
        " ",
        "~",
        "a",
        "é",
        "e\u0301",
        "\u202e",
        "\uff0e\uff0e",
        "-rf",
        "\\",
        "in",
        "out",
        "self",
    ]
) | st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
STARTS = st.sampled_from(["", "/", "//", "./"])
PATHS = st.tuples(STARTS, st.lists(SEGMENTS)).map(lambda given: given[0] + "/".join(given[1]))
FIXTURES = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)


def prepared(scope: Scope, name: str, **arguments: object) -> Invocation:
    executor = Executor(Toolbox(FILES), OpenGate(), scope)
    return executor.prepare(ToolCall(CallId("c"), name, json.dumps(arguments))).invocation


@pytest.fixture
def project(cwd: Path, tmp_path: Path) -> Path:
    """Links that stay inside and links that lead out."""
    (cwd / "in").symlink_to("folder")
    (cwd / "folder").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/secret").write_text("secret")
    (cwd / "out").symlink_to(tmp_path / "elsewhere")
    (cwd / "self").symlink_to(".")
    (cwd / "file-out").symlink_to(tmp_path / "elsewhere/secret")
    return cwd


@pytest.mark.parametrize(
    ("path", "leads_to"),
    [
        ("/etc/hosts", "/etc/hosts"),
        ("../x", "{tmp}/x"),
        ("out/x", "{tmp}/elsewhere/x"),
        ("self/self/out/x", "{tmp}/elsewhere/x"),
        ("file-out", "{tmp}/elsewhere/secret"),
        ("folder/../../work-two/x", "{tmp}/work-two/x"),
        ("/proc/self/cwd/../../../../etc/x", None),
    ],
)
@pytest.mark.parametrize(("tool", "verb"), [("write_file", "Write"), ("patch", "Change")])
def test_change_carries_a_question_that_names_where_the_path_leads(
    project: Path, tmp_path: Path, scope: Scope, path: str, leads_to: str | None, tool: str, verb: str
) -> None:
    arguments = {"content": "x"} if tool == "write_file" else {"old": "x", "new": "y"}
    invocation = prepared(scope, tool, path=path, **arguments)
    (real,) = invocation.effect.paths
    assert invocation.effect.kind == "writes"
    assert isinstance(invocation.question, Proposal)
    assert invocation.question.headline == f"{verb} {real}?"
    assert invocation.question.content
    if leads_to is not None:
        assert str(real) == leads_to.format(tmp=tmp_path)


def test_edits_outside_the_project_are_shown_as_a_diff_in_which_nothing_passes_for_another(scope: Scope) -> None:
    edits = [{"old": "a\n+b", "new": "c"}, {"old": "d", "new": "e\n@@ edit 3 of 3 @@\n", "all": True}]
    question = prepared(scope, "patch", path="/etc/hosts", edits=edits).question
    assert isinstance(question, Proposal)
    assert (question.content or "").split("\n") == [
        *("@@ edit 1 of 2 @@", "-a", "-+b", "+c"),
        *("@@ edit 2 of 2: every occurrence @@", "-d", "+e", "+@@ edit 3 of 3 @@", "+"),
    ]


@pytest.mark.parametrize("path", ["x", "in/x", "self/in/../x", "folder/../x", "./...", "deep/new/x", "out/../work/x"])
def test_change_inside_the_project_stays_there(project: Path, scope: Scope, path: str) -> None:
    invocation = prepared(scope, "write_file", path=path, content="x")
    assert invocation.effect.paths[0].is_relative_to(project)
    assert not is_outside(invocation.effect.paths[0], scope)


def test_project_that_is_reached_by_a_link_is_the_project(project: Path, tmp_path: Path, scope: Scope) -> None:
    (tmp_path / "link").symlink_to(project)
    through = Scope(scope.session, tmp_path / "link", scope.spill)
    for path, is_out in (("x", False), ("../x", True)):
        invocation = prepared(through, "write_file", path=path, content="x")
        assert is_outside(invocation.claim.writes[0], through) is is_out


@pytest.mark.parametrize("tool", ["read_file", "search_files"])
def test_reading_tells_where_and_what_is_asked_outside_the_project(
    project: Path, tmp_path: Path, scope: Scope, tool: str
) -> None:
    arguments = {"pattern": "x"} if tool == "search_files" else {}
    elsewhere = tmp_path / "elsewhere"
    invocation = prepared(scope, tool, path="out", **arguments)
    searched = Proposal(f"Search {elsewhere}?", '{\n  "pattern": "x"\n}', "arguments as JSON")
    shown = searched if arguments else Proposal(f"Read {elsewhere}?", None, "")
    assert (invocation.question, invocation.effect.kind) == (shown, "reads")
    assert (invocation.effect.paths, invocation.claim.folder) == ((elsewhere,), elsewhere)


@settings(max_examples=500, deadline=None, suppress_health_check=FIXTURES)
@given(PATHS)
def test_effect_of_any_path_is_where_the_file_system_leads_and_what_is_outside_asks(
    project: Path, scope: Scope, path: str
) -> None:
    try:
        invocation = prepared(scope, "write_file", path=path, content="x")
    except BadArguments:
        return
    (real,) = invocation.effect.paths
    assert real.is_absolute()
    assert ".." not in real.parts
    assert not any(part.is_symlink() for part in (real, *real.parents))
    assert invocation.claim.writes == (real,)
    assert is_outside(real, scope) != (PurePosixPath(project) in (real, *real.parents))


@settings(max_examples=100, deadline=None, suppress_health_check=FIXTURES)
@given(
    st.lists(SEGMENTS.filter(lambda part: part not in (".", "..", "~", "in", "out", "self")), min_size=1, max_size=3)
)
def test_file_is_written_under_exactly_its_name(project: Path, use: Use, parts: list[str]) -> None:
    path = "/".join(["./new", *parts])
    before = {file for file in project.parent.rglob("*") if file.is_file() and "home" not in file.parts}
    result = asyncio.run(_used(use, path))
    if result.is_error:
        assert "Cannot write" in result.text
        return
    file = project / "new" / "/".join(parts)
    after = {one for one in project.parent.rglob("*") if one.is_file() and "home" not in one.parts}
    assert os.fsencode(file) in {os.fsencode(one) for one in after}
    assert after - before <= {file}
    file.unlink()


async def _used(use: Use, path: str) -> ToolResult:
    return await use("write_file", path=path, content="x")


@contextmanager
def swapping(path: Path, elsewhere: Path) -> Generator[None]:
    """A thread makes `path` a folder and a link to `elsewhere`, in turns, as fast as it can."""
    link, has_ended = path.with_name("link-itself"), threading.Event()
    link.symlink_to(elsewhere)
    exchange = ctypes.CDLL(None).renameat2
    names = (-100, os.fsencode(path), -100, os.fsencode(link), 2)  # AT_FDCWD, RENAME_EXCHANGE

    def swap() -> None:
        while not has_ended.is_set():
            exchange(*names)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


def test_swapped_links_never_lead_a_write_or_a_read_elsewhere(cwd: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret").write_text("secret")
    (cwd / "folder").mkdir()
    target, secret = cwd / "folder/new", cwd / "folder/secret"
    outcomes = {"written": 0, "refused": 0}
    with swapping(cwd / "folder", elsewhere):
        for number in range(3_000):
            try:
                assert file_content.read_file(secret, 100) is None
                file_content.write_file(target, b"%d" % number, file_content.read_file(target, 100))
                outcomes["written"] += 1
            except OSError:
                outcomes["refused"] += 1
    assert [file.name for file in elsewhere.iterdir()] == ["secret"]
    assert (elsewhere / "secret").read_text() == "secret"
    assert min(outcomes.values()) > 0, outcomes  # else this has shown nothing


def test_file_that_is_swapped_for_a_link_is_never_read_through_it(cwd: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (cwd / "a").write_text("ours")
    outcomes = {"read": 0, "refused": 0}
    with swapping(cwd / "a", tmp_path / "secret"):
        for _ in range(5_000):
            try:
                found = file_content.read_file(cwd / "a", 100)
                assert found is not None
                assert found.content == b"ours"
                outcomes["read"] += 1
            except OSError:
                outcomes["refused"] += 1
    assert min(outcomes.values()) > 0, outcomes


@pytest.mark.parametrize("name", ["read_file", "write_file"])
async def test_link_that_comes_after_the_question_is_not_followed(
    cwd: Path, tmp_path: Path, scope: Scope, name: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a").write_text("secret")
    (cwd / "folder").mkdir()
    (cwd / "folder/a").write_text("ours")
    executor = Executor(Toolbox(FILES), OpenGate(), scope)
    arguments = {"path": "folder/a", **({"content": "x"} if name == "write_file" else {})}
    call = executor.prepare(ToolCall(CallId("c"), name, json.dumps(arguments)))

    (cwd / "folder").rename(cwd / "moved")
    (cwd / "folder").symlink_to(tmp_path / "elsewhere")
    await executor.admit(call)
    result = await executor.run(call)

    assert result.is_error
    assert "it is a link, or leads through one" in result.text
    assert (tmp_path / "elsewhere/a").read_text() == "secret"


async def test_file_that_has_become_a_link_after_the_question_is_not_followed(
    cwd: Path, tmp_path: Path, scope: Scope
) -> None:
    (tmp_path / "secret").write_text("secret")
    (cwd / "a").write_text("ours")
    executor = Executor(Toolbox(FILES), OpenGate(), scope)
    calls = [
        executor.prepare(ToolCall(CallId("c"), name, json.dumps({"path": "a", **more})))
        for name, more in (("read_file", {}), ("write_file", {"content": "x"}))
    ]
    (cwd / "a").unlink()
    (cwd / "a").symlink_to(tmp_path / "secret")

    for call in calls:
        await executor.admit(call)
        assert "it is a link" in (await executor.run(call)).text
    assert (tmp_path / "secret").read_text() == "secret"


def test_file_that_was_changed_between_reading_and_writing_is_not_written(cwd: Path) -> None:
    (cwd / "a").write_text("old")
    found = file_content.read_file(cwd / "a", 100)
    (cwd / "a").write_text("newer")
    with pytest.raises(OSError, match="changed in the meantime"):
        file_content.write_file(cwd / "a", b"mine", found)
    with pytest.raises(OSError, match="changed in the meantime"):
        file_content.write_file(cwd / "a", b"mine", None)
    assert (cwd / "a").read_text() == "newer"


def test_no_descriptor_is_left_open(cwd: Path) -> None:
    before = opened(cwd.resolve())
    file_content.write_file(cwd / "deep/er/a", b"x", None)
    file_content.read_file(cwd / "deep/er/a", 10)
    file_content.read_file(cwd / "deep/missing/a", 10)
    for path in (cwd / "deep/er/a/b", cwd / "deep"):
        with pytest.raises(OSError, match=r"Not a directory|folder"):
            file_content.read_file(path, 10)
    file_content.remove(cwd / "deep/er/a")
    assert opened(cwd.resolve()) == before
