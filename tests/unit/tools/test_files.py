"""Reading and writing files."""

import asyncio
import json
import os
import stat
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from talaria.core.ids import CallId
from talaria.core.messages import ToolCall, ToolResult
from talaria.store.sqlite.undo import SqliteUndoStore
from talaria.tools.base import OpenGate, Scope
from talaria.tools.builtin.file_tools import file_tools
from talaria.tools.executor import Executor
from talaria.tools.file_content import MAX_LINE_CHARS, MAX_READ_BYTES, MAX_SHOWN_BYTES, ReadFiles
from talaria.tools.registry import Toolbox
from talaria.tools.undo.change_recorder import ChangeRecorder

Use = Callable[..., Awaitable[ToolResult]]


@pytest.mark.parametrize(
    ("window", "shown"),
    [
        ({}, "1|one\n2|two\n3|three"),
        ({"limit": 2}, "1|one\n2|two\n[1 more lines; continue with offset=3]"),
        ({"offset": 2}, "2|two\n3|three"),
        ({"offset": 2, "limit": 1}, "2|two\n[1 more lines; continue with offset=3]"),
        ({"offset": -5, "limit": 0}, "1|one\n[2 more lines; continue with offset=2]"),
        ({"offset": 4}, "[the file ends at line 3]"),
    ],
)
async def test_lines_are_shown_behind_their_numbers(use: Use, cwd: Path, window: dict[str, int], shown: str) -> None:
    (cwd / "a.txt").write_text("one\ntwo\nthree\n")
    assert (await use("read_file", path="a.txt", **window)).text == shown


async def test_empty_file_says_that_it_is_empty(use: Use, cwd: Path) -> None:
    (cwd / "a.txt").touch()
    assert (await use("read_file", path="a.txt")).text == "[empty]"


async def test_cut_line_says_how_much_is_missing(use: Use, cwd: Path) -> None:
    (cwd / "a.txt").write_text("x" * (MAX_LINE_CHARS + 1234))
    assert (await use("read_file", path="a.txt")).text.endswith("x[… 1,234 more characters]")


async def test_lines_end_without_carriage_return_and_begin_without_byte_order_mark(use: Use, cwd: Path) -> None:
    (cwd / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n\r\nfour")
    assert (await use("read_file", path="a.txt")).text == "1|one\n2|two\n3|\n4|four"


async def test_line_that_ends_where_a_piece_of_the_file_does_is_read_whole(use: Use, cwd: Path) -> None:
    """Files are read piece by piece; a sign, a line and a line's end may lie across their border."""
    for border in range(65_530, 65_540):
        (cwd / "a.txt").write_text(f"{'x' * border}é\r\nlast\n", newline="")
        shown = (await use("read_file", path="a.txt", offset=2)).text
        assert shown == "2|last"
        cut = border + 2 - MAX_LINE_CHARS
        assert f"[… {cut:,} more characters]" in (await use("read_file", path="a.txt", limit=1)).text


async def test_page_ends_where_there_is_no_more_room_and_goes_on_from_there(use: Use, cwd: Path) -> None:
    lines = [f"{number} {'x' * 500}" for number in range(300)]
    (cwd / "a.txt").write_text("\n".join(lines))
    seen: list[str] = []
    while len(seen) < len(lines):
        page = (await use("read_file", path="a.txt", offset=len(seen) + 1)).text
        assert len(page) < MAX_SHOWN_BYTES + 100
        shown = [line.partition("|")[2] for line in page.split("\n") if not line.startswith("[")]
        seen += shown
        assert f"[{len(lines) - len(seen)} more lines; continue with offset={len(seen) + 1}]" in page or seen == lines
    assert seen == lines


async def test_large_file_is_read_in_bounded_memory(use: Use, cwd: Path) -> None:
    line = b"x" * 99 + b"\n"
    (cwd / "large.log").write_bytes(line * 300_000)
    tracemalloc.start()
    try:
        page = (await use("read_file", path="large.log", offset=300_000)).text
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert page == f"300000|{'x' * 99}"
    assert peak < 8 << 20


async def test_file_of_the_system_without_a_size_is_read(use: Use) -> None:
    assert "1|" in (await use("read_file", path="/proc/self/status", limit=1)).text


async def test_text_in_another_encoding_is_shown_as_valid_text(use: Use, cwd: Path) -> None:
    (cwd / "latin.txt").write_bytes(b"caf\xe9\n")
    assert (await use("read_file", path="latin.txt")).text == "1|caf\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("missing.txt", "Cannot read {cwd}/missing.txt: No such file or directory."),
        ("binary", "{cwd}/binary is not a text file; if it is an image, use view_image."),
        ("folder", "Cannot read {cwd}/folder: it is a folder, device or pipe."),
        ("pipe", "Cannot read {cwd}/pipe: it is a folder, device or pipe."),
        ("/dev/zero", "Cannot read /dev/zero: it is a folder, device or pipe."),
        ("/", "Cannot read /: it is a folder, device or pipe."),
        ("socket", "Cannot read {cwd}/socket: it is a folder, device or pipe."),
        ("large", f"{{cwd}}/large is larger than {MAX_READ_BYTES >> 20} MB; use the terminal"),
    ],
)
async def test_what_cannot_be_read_as_text_is_told_in_a_sentence(use: Use, cwd: Path, path: str, sentence: str) -> None:
    (cwd / "binary").write_bytes(b"\x7fELF\0\0")
    (cwd / "folder").mkdir()
    os.mkfifo(cwd / "pipe")
    os.mknod(cwd / "socket", stat.S_IFSOCK | 0o600)
    with (cwd / "large").open("wb") as file:
        file.truncate(10 << 30)

    result = await use("read_file", path=path)

    assert result.is_error
    assert sentence.format(cwd=cwd) in result.text


@pytest.mark.parametrize("path", ["nul\0inside", "~nobody-of-this-name/x", "loop/x"])
@pytest.mark.parametrize("name", ["read_file", "search_files"])
async def test_path_that_cannot_be_one_is_refused_before_anything_runs(
    use: Use, cwd: Path, name: str, path: str
) -> None:
    (cwd / "loop").symlink_to(cwd / "loop")
    result = await use(name, path=path, **({"pattern": "x"} if name == "search_files" else {}))
    assert "not a usable path" in result.text


async def test_write_makes_folders_and_tells_the_size(use: Use, cwd: Path) -> None:
    result = await use("write_file", path="deep/er/a.txt", content="héllo\n")

    assert result.text == f"Wrote 7 bytes to {cwd}/deep/er/a.txt."
    assert (cwd / "deep/er/a.txt").read_text() == "héllo\n"


@pytest.mark.parametrize("mode", [0o600, 0o755, 0o640])
@pytest.mark.parametrize("change", ["write_file", "patch"])
async def test_change_keeps_the_mode(use: Use, cwd: Path, mode: int, change: str) -> None:
    file = cwd / "a.sh"
    file.write_text("old")
    file.chmod(mode)

    if change == "write_file":
        await use("write_file", path="a.sh", content="new")
    else:
        await use("read_file", path="a.sh")
        await use("patch", path="a.sh", old="old", new="new")

    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("new", mode)


async def test_writes_at_the_same_time_leave_the_umask_as_it_was(use: Use, cwd: Path) -> None:
    before = os.umask(0o027)
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(40):
                group.create_task(_write(use, f"{number}.txt"))
        modes = {stat.S_IMODE(file.stat().st_mode) for file in cwd.iterdir()}
    finally:
        after = os.umask(before)

    assert (modes, after) == ({0o640}, 0o027)


async def _write(use: Use, path: str) -> None:
    assert not (await use("write_file", path=path, content="x")).is_error


async def test_write_replaces_the_file_whole_so_that_a_reader_never_sees_half(use: Use, cwd: Path) -> None:
    file = cwd / "a.txt"
    file.write_text("old")

    with file.open() as reader:
        await use("write_file", path="a.txt", content="new" * 1000)
        assert reader.read() == "old"  # the old content lives on for whoever has it open: nothing was overwritten

    assert file.read_text() == "new" * 1000
    assert [item.name for item in cwd.iterdir()] == ["a.txt"]


async def test_write_through_a_link_changes_what_it_points_to(use: Use, cwd: Path) -> None:
    (cwd / "real.txt").write_text("old")
    (cwd / "link.txt").symlink_to("real.txt")

    await use("write_file", path="link.txt", content="new")

    assert (cwd / "link.txt").is_symlink()
    assert (cwd / "real.txt").read_text() == "new"


@pytest.mark.parametrize("path", ["file/inside.txt", "folder", "pipe", "x" * 300])
async def test_unwritable_target_is_told_and_leaves_nothing_behind(use: Use, cwd: Path, path: str) -> None:
    (cwd / "file").write_text("in the way")
    (cwd / "folder").mkdir()
    os.mkfifo(cwd / "pipe")

    result = await use("write_file", path=path, content="x")

    assert result.is_error
    assert f"Cannot write {cwd / path}: " in result.text
    assert {item.name for item in cwd.iterdir()} == {"file", "folder", "pipe"}


async def test_file_with_the_longest_possible_name_can_be_written(use: Use, cwd: Path) -> None:
    assert not (await use("write_file", path="x" * 255, content="x")).is_error


@pytest.mark.parametrize(
    ("before", "content", "after"),
    [
        (b"\xef\xbb\xbfold\r\n", "a\nb\n", b"\xef\xbb\xbfa\r\nb\r\n"),
        (b"old\r\nold\n", "a\nb\n", b"a\nb\n"),
        (b"old\r\n", "a\r\nb\n", b"a\r\nb\n"),
        (b"old\n", "a\r\nb\r\n", b"a\r\nb\r\n"),
        (b"old\n", "\ufeffa\n", b"\xef\xbb\xbfa\n"),
        (b"\xef\xbb\xbf", "\ufeffa\n", b"\xef\xbb\xbfa\n"),
        (b"\0\r\n", "a\n", b"a\n"),
    ],
)
async def test_byte_order_mark_and_line_ends_are_kept(
    use: Use, cwd: Path, before: bytes, content: str, after: bytes
) -> None:
    (cwd / "a.txt").write_bytes(before)
    result = await use("write_file", path="a.txt", content=content)
    assert (cwd / "a.txt").read_bytes() == after
    assert result.text == f"Wrote {len(after)} bytes to {cwd}/a.txt."


async def test_file_that_changed_since_it_was_read_is_not_written_over(use: Use, cwd: Path) -> None:
    (cwd / "a.txt").write_text("old")
    await use("read_file", path="a.txt")
    (cwd / "a.txt").write_text("new by somebody else")

    refused = await use("write_file", path="a.txt", content="mine")

    sentence = f"{cwd}/a.txt was changed since you last read or wrote it; read it again first."
    assert refused.text == f"Error: {sentence}"
    assert (cwd / "a.txt").read_text() == "new by somebody else"
    await use("read_file", path="a.txt")
    assert not (await use("write_file", path="a.txt", content="mine")).is_error


async def test_file_that_went_away_since_it_was_read_is_written_again(use: Use, cwd: Path) -> None:
    (cwd / "a.txt").write_text("old")
    await use("read_file", path="a.txt")
    (cwd / "a.txt").unlink()
    assert not (await use("write_file", path="a.txt", content="mine")).is_error


async def test_nothing_is_written_when_what_was_there_cannot_be_kept(scope: Scope, cwd: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("where a folder belongs")
    recorder = ChangeRecorder(SqliteUndoStore(tmp_path / "file/undo.db"), tmp_path)
    executor = Executor(Toolbox(file_tools(ReadFiles())), OpenGate(), scope, lambda: recorder)
    (cwd / "a.txt").write_text("old")
    arguments = json.dumps({"path": "a.txt", "content": "new"})
    result = await executor.call(ToolCall(CallId("c"), "write_file", arguments))
    assert result.text.startswith("Error: Nothing was changed, because it could not be undone: ")
    assert (cwd / "a.txt").read_text() == "old"
