import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from talaria.model.errors import BadArguments
from talaria.model.messages import ToolResult
from talaria.tools.builtin.files import MAX_FILE_BYTES, MAX_LINE_CHARS

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


async def test_text_in_another_encoding_is_shown_as_valid_text(use: Use, cwd: Path) -> None:
    (cwd / "latin.txt").write_bytes(b"caf\xe9\n")
    assert (await use("read_file", path="latin.txt")).text == "1|caf\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("missing.txt", "Cannot read {cwd}/missing.txt: No such file or directory."),
        ("binary", "{cwd}/binary is not a text file."),
        ("folder", "Cannot read {cwd}/folder: it is a folder, device or pipe."),
        ("pipe", "Cannot read {cwd}/pipe: it is a folder, device or pipe."),
        ("/dev/zero", "Cannot read /dev/zero: it is a folder, device or pipe."),
        ("large", f"{{cwd}}/large is larger than {MAX_FILE_BYTES >> 20} MB; use the terminal"),
    ],
)
async def test_what_cannot_be_read_as_text_is_told_in_a_sentence(use: Use, cwd: Path, path: str, sentence: str) -> None:
    (cwd / "binary").write_bytes(b"\x7fELF\0\0")
    (cwd / "folder").mkdir()
    os.mkfifo(cwd / "pipe")
    with (cwd / "large").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)

    result = await use("read_file", path=path)

    assert result.is_error
    assert sentence.format(cwd=cwd) in result.text


@pytest.mark.parametrize("path", ["nul\0inside", "~nobody-of-this-name/x", "loop/x"])
@pytest.mark.parametrize("name", ["read_file", "search_files"])
async def test_path_that_cannot_be_one_is_refused_before_anything_runs(
    use: Use, cwd: Path, name: str, path: str
) -> None:
    (cwd / "loop").symlink_to(cwd / "loop")
    with pytest.raises(BadArguments, match="not a usable path"):
        await use(name, path=path, **({"pattern": "x"} if name == "search_files" else {}))


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


async def test_patch_replaces_the_one_occurrence(use: Use, cwd: Path) -> None:
    (cwd / "a.py").write_text("a = 1\r\nb = 2\r\n")

    result = await use("patch", path="a.py", old="b = 2", new="b = 3")

    assert result.text == f"Replaced 1 occurrence in {cwd}/a.py."
    assert (cwd / "a.py").read_bytes() == b"a = 1\r\nb = 3\r\n"


@pytest.mark.parametrize(
    ("old", "sentence"),
    [
        ("x", "occurs 3 times in {cwd}/a.py; give more of it, or set replace_all"),
        ("nowhere", "does not occur in {cwd}/a.py; read the file again"),
        ("", "does not occur in {cwd}/a.py; read the file again"),
    ],
)
async def test_patch_that_is_not_clear_changes_nothing(use: Use, cwd: Path, old: str, sentence: str) -> None:
    (cwd / "a.py").write_text("x = x + x")

    result = await use("patch", path="a.py", old=old, new="y")

    assert result.is_error
    assert sentence.format(cwd=cwd) in result.text
    assert (cwd / "a.py").read_text() == "x = x + x"


async def test_patch_replaces_all_when_told_to(use: Use, cwd: Path) -> None:
    (cwd / "a.py").write_text("x = x + x")

    result = await use("patch", path="a.py", old="x", new="y", replace_all=True)

    assert result.text == f"Replaced 3 occurrences in {cwd}/a.py."
    assert (cwd / "a.py").read_text() == "y = y + y"


async def test_patch_keeps_bytes_that_are_no_utf8(use: Use, cwd: Path) -> None:
    (cwd / "a.txt").write_bytes(b"caf\xe9 old")
    await use("patch", path="a.txt", old="old", new="new")
    assert (cwd / "a.txt").read_bytes() == b"caf\xe9 new"


async def test_patch_of_a_missing_file_is_told(use: Use, cwd: Path) -> None:
    result = await use("patch", path="a.txt", old="x", new="y")
    assert "Cannot read" in result.text
