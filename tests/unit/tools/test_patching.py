"""Patching files: one edit or several, and only what the model has before its eyes."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from talaria.core.messages import ToolResult

Use = Callable[..., Awaitable[ToolResult]]


@pytest.fixture
def patched(use: Use, cwd: Path) -> Use:
    """`await patched("text", path=…, …)`: reads first, as a model does."""

    async def write_and_patch(content: str | bytes, /, **arguments: object) -> ToolResult:
        (cwd / "a.py").write_bytes(content if isinstance(content, bytes) else content.encode())
        await use("read_file", path="a.py")
        return await use("patch", path="a.py", **arguments)

    return write_and_patch


async def test_patch_replaces_the_one_occurrence_and_shows_the_change(patched: Use, cwd: Path) -> None:
    result = await patched("a = 1\r\nb = 2\r\n", old="b = 2", new="b = 3")

    assert (
        result.text
        == f"Replaced 1 occurrence in {cwd}/a.py.\n--- a.py\n+++ a.py\n@@ -1,2 +1,2 @@\n a = 1\n-b = 2\n+b = 3"
    )
    assert (cwd / "a.py").read_bytes() == b"a = 1\r\nb = 3\r\n"


@pytest.mark.parametrize(
    ("old", "sentence"),
    [
        ("x", "occurs 3 times in {cwd}/a.py; give more of it, or set replace_all. It begins in lines 1, 1, 1."),
        ("nowhere", "does not occur in {cwd}/a.py; read the file again"),
        ("", "does not occur in {cwd}/a.py; read the file again"),
        ("y = x + x", "read the file again. The nearest is line 1:\n1|x = x + x"),
    ],
)
async def test_patch_that_is_not_clear_changes_nothing(patched: Use, cwd: Path, old: str, sentence: str) -> None:
    result = await patched("x = x + x", old=old, new="y")

    assert result.is_error
    assert sentence.format(cwd=cwd) in result.text
    assert (cwd / "a.py").read_text() == "x = x + x"


async def test_patch_replaces_all_when_told_to(patched: Use, cwd: Path) -> None:
    result = await patched("x = x + x", old="x", new="y", replace_all=True)

    assert result.text.startswith(f"Replaced 3 occurrences in {cwd}/a.py.\n")
    assert (cwd / "a.py").read_text() == "y = y + y"


async def test_several_edits_are_made_one_after_the_other(patched: Use, cwd: Path) -> None:
    edits = [{"old": "a", "new": "b"}, {"old": "bb", "new": "c"}, {"old": "z", "new": "y", "all": True}]
    result = await patched("ab z z", edits=edits)

    assert result.text.startswith(f"Replaced 4 occurrences in {cwd}/a.py.\n")
    assert (cwd / "a.py").read_text() == "c y y"


async def test_if_one_edit_fails_none_is_made(patched: Use, cwd: Path) -> None:
    result = await patched("a b b", edits=[{"old": "a", "new": "x"}, {"old": "b", "new": "y"}])

    assert result.text == (
        f"Error: Edit 2 of 2, so nothing was changed: The text to replace occurs 2 times in {cwd}/a.py; "
        "give more of it, or set all. It begins in lines 1, 1."
    )
    assert (cwd / "a.py").read_text() == "a b b"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"old": "a"},
        {"new": "a"},
        {"edits": [{"old": "a", "new": "b"}], "old": "a", "new": "b"},
        {"edits": [{"old": "a", "new": "b"}], "new": "b"},
        {"edits": []},
    ],
)
async def test_patch_needs_one_kind_of_edits(patched: Use, arguments: dict[str, object]) -> None:
    result = await patched("a", **arguments)
    assert result.text == "Error: patch needs either `edits`, or `old` and `new`."


async def test_edit_that_changes_nothing_is_told(patched: Use, cwd: Path) -> None:
    result = await patched("a", old="a", new="a")
    assert result.text == f"[{cwd}/a.py is unchanged: the new text equals the old one]"


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"caf\xe9 old", "old", "new", b"caf\xe9 new"),
        (b"\xef\xbb\xbfold", "old", "new", b"\xef\xbb\xbfnew"),
        (b"one\r\ntwo\r\nthree\r\n", "one\ntwo", "1\n2\n2b", b"1\r\n2\r\n2b\r\nthree\r\n"),
        (b"one\r\ntwo\r\n", "one\r\ntwo", "1\r\n2", b"1\r\n2\r\n"),
        (b"one\r\ntwo\r\n", "\ntwo", "\n2", b"one\r\n2\r\n"),
        (b"one\r\ntwo\nthree\r\n", "two\n", "2\n", b"one\r\n2\nthree\r\n"),
        (b"one\r\ntwo\nthree\r\nfour\r\n", "three\nfour", "3\n4", b"one\r\ntwo\n3\r\n4\r\n"),
        (b"one\ntwo\n", "one\r\ntwo", "1\r\n2", b"1\n2\n"),
    ],
)
async def test_bytes_around_the_change_stay_as_they_were(
    patched: Use, cwd: Path, before: bytes, old: str, new: str, after: bytes
) -> None:
    result = await patched(before, old=old, new=new)
    assert not result.is_error, result.text
    assert (cwd / "a.py").read_bytes() == after


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        ("a  \nb\n", "a\nb", "c\nb", "c\nb\n"),
        ("    if x:\n        y\n", "if x:\n    y", "if z:\n    y\n    w", "    if z:\n        y\n        w\n"),
        ("\tif x:\n\t\ty\n", "if x:\n    y\n", "if x:\n    z\n", "\tif x:\n\t\tz\n"),
        ("  a b \na  b\na b  \n", "a b\n", "c\n", "  a b \na  b\nc\n"),
        ("f( a,  b )\n", "f( a, b )", "g()", "g()\n"),
        ("a \nlast ", "a\nlast\n", "b\nlast\n", "b\nlast"),
        ("one\n  t  wo\nthree\n", "t wo\n", "", "one\nthree\n"),
    ],
)
async def test_lines_are_found_without_regard_to_white_space(
    patched: Use, cwd: Path, before: str, old: str, new: str, after: str
) -> None:
    result = await patched(before, old=old, new=new)
    assert "(found ignoring white space)" in result.text
    assert (cwd / "a.py").read_text() == after


async def test_lines_found_more_than_once_without_regard_to_white_space_are_refused(patched: Use, cwd: Path) -> None:
    result = await patched("  a = 1\n\ta = 1\n", old="a  =  1", new="b")
    assert "Ignoring white space, it occurs more than once. It begins in lines 1, 2." in result.text
    assert (cwd / "a.py").read_text() == "  a = 1\n\ta = 1\n"


async def test_pieces_that_share_signs_count_as_more_than_one(patched: Use, cwd: Path) -> None:
    assert "occurs 2 times" in (await patched("aaa", old="aa", new="b")).text
    assert (cwd / "a.py").read_text() == "aaa"


async def test_file_that_was_never_read_is_refused(use: Use, cwd: Path) -> None:
    (cwd / "a.py").write_text("old")
    result = await use("patch", path="a.py", old="old", new="new")
    assert result.text == f"Error: You have not read {cwd}/a.py in this conversation yet; read it first."
    assert (cwd / "a.py").read_text() == "old"


@pytest.mark.parametrize("change", ["read", "written", "patched"])
async def test_file_that_changed_since_is_refused_until_it_is_read_again(use: Use, cwd: Path, change: str) -> None:
    file = cwd / "a.py"
    file.write_text("one two")
    if change == "written":
        await use("write_file", path="a.py", content="one two")
    else:
        await use("read_file", path="a.py")
    if change == "patched":
        await use("patch", path="a.py", old="two", new="2")
    known = file.stat()
    file.write_text(file.read_text().replace("one", "1ne"))
    os.utime(file, ns=(known.st_atime_ns, known.st_mtime_ns))  # same size, same time: only its content tells

    refused = await use("patch", path="a.py", old="1ne", new="one")
    assert refused.text == f"Error: {file} was changed since you last read or wrote it; read it again first."

    await use("read_file", path="a.py")
    assert not (await use("patch", path="a.py", old="1ne", new="one")).is_error


async def test_file_that_was_only_touched_since_is_patched(use: Use, cwd: Path) -> None:
    (cwd / "a.py").write_text("old")
    await use("read_file", path="a.py")
    os.utime(cwd / "a.py", ns=(1, 1))
    assert not (await use("patch", path="a.py", old="old", new="new")).is_error


async def test_read_by_one_name_counts_for_a_link_to_it(use: Use, cwd: Path) -> None:
    (cwd / "a.py").write_text("old")
    (cwd / "link.py").symlink_to("a.py")
    await use("read_file", path="link.py")
    assert not (await use("patch", path="a.py", old="old", new="new")).is_error


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "Cannot read"), (b"a\0", "is not a text file"), (b"a" * ((10 << 20) + 1), "is larger than 10 MB")],
)
async def test_what_cannot_be_patched_is_told(use: Use, cwd: Path, content: bytes | None, sentence: str) -> None:
    if content is not None:
        (cwd / "a.py").write_bytes(content)
    assert sentence in (await use("patch", path="a.py", old="a", new="b")).text


async def test_text_that_would_grow_without_bound_is_refused(patched: Use, cwd: Path) -> None:
    result = await patched("a" * 100_000, old="a", new="b" * 1_000, replace_all=True)
    assert "would become larger than 20 million characters" in result.text
    assert (cwd / "a.py").stat().st_size == 100_000
