"""Searching files."""

import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from talaria.core.messages import ToolResult
from talaria.tools.searching.file_tree import MAX_FILE_BYTES, SKIPPED_FOLDERS

Use = Callable[..., Awaitable[ToolResult]]


def hits(text: str) -> list[str]:
    """`path:line:text` of each match."""
    path, found = "", list[str]()
    for line in text.splitlines():
        if match := re.fullmatch(r"(\d+)\|(.*)", line):
            found.append(f"{path}:{match[1]}:{match[2]}")
        else:
            path = line
    return found


@pytest.fixture
def tree(cwd: Path) -> Path:
    (cwd / "src").mkdir()
    (cwd / "src/a.py").write_text("import os\nneedle = 1\n")
    (cwd / "src/b.txt").write_text("a needle, and another needle\n")
    (cwd / "top.py").write_text("nothing here\n")
    return cwd


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.py", ["src/a.py", "top.py"]),
        ("a.*", ["src/a.py"]),
        ("src/*", ["src/a.py", "src/b.txt"]),
        ("*", ["src/a.py", "src/b.txt", "top.py"]),
        ("[z-a", []),
    ],
)
async def test_names_are_found_by_glob(use: Use, tree: Path, pattern: str, found: list[str]) -> None:
    result = await use("search_files", pattern=pattern, target="names")
    assert sorted(result.text.split("\n")) == ([str(tree / name) for name in found] or ["[nothing found]"])


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"pattern": "needle"}, ["src/a.py:2:needle = 1", "src/b.txt:1:a needle, and another needle"]),
        ({"pattern": r"^needle\b"}, ["src/a.py:2:needle = 1"]),
        ({"pattern": "needle", "glob": "*.txt"}, ["src/b.txt:1:a needle, and another needle"]),
        ({"pattern": "needle", "path": "src/a.py"}, ["src/a.py:2:needle = 1"]),
    ],
)
async def test_content_is_found_with_file_and_line(
    use: Use, tree: Path, arguments: dict[str, str], found: list[str]
) -> None:
    result = await use("search_files", **arguments)
    assert hits(result.text) == [f"{tree}/{line}" for line in found]


@pytest.mark.parametrize("pattern", ["(unclosed", "a{999999999999}", "(" * 5000])
async def test_pattern_that_is_no_regular_expression_is_told(use: Use, tree: Path, pattern: str) -> None:
    result = await use("search_files", pattern=pattern)
    assert result.is_error
    assert "is not a regular expression" in result.text


async def test_missing_folder_is_told(use: Use, cwd: Path) -> None:
    result = await use("search_files", pattern="x", path="nowhere")
    assert result.text == f"Error: {cwd}/nowhere does not exist."


@pytest.mark.parametrize("folder", sorted(SKIPPED_FOLDERS))
@pytest.mark.parametrize("target", ["names", "content"])
async def test_folders_of_machines_are_skipped(use: Use, cwd: Path, folder: str, target: str) -> None:
    (cwd / folder).mkdir()
    (cwd / folder / "needle").write_text("needle")
    assert (await use("search_files", pattern="needle", target=target)).text == "[nothing found]"


@pytest.mark.parametrize("content", [b"needle\0", b"needle" + b" " * MAX_FILE_BYTES])
async def test_binary_and_huge_files_are_skipped(use: Use, cwd: Path, content: bytes) -> None:
    (cwd / "file").write_bytes(content)
    assert (await use("search_files", pattern="needle")).text == "[nothing found]"


async def test_broken_link_is_skipped(use: Use, tree: Path) -> None:
    (tree / "broken").symlink_to("nowhere")
    assert (await use("search_files", pattern="import")).text == f"{tree}/src/a.py\n1|import os"


async def test_pipe_is_skipped_and_never_waited_for(use: Use, tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    assert (await use("search_files", pattern="import")).text == f"{tree}/src/a.py\n1|import os"


async def test_limit_cuts_and_says_that_there_is_more(use: Use, cwd: Path) -> None:
    (cwd / "a.txt").write_text("needle\n" * 5)

    assert (await use("search_files", pattern="needle", limit=5)).text.count("needle") == 5
    cut = await use("search_files", pattern="needle", limit=2)

    assert cut.text.split("\n")[1:] == [
        "1|needle",
        "2|needle",
        "[there are more matches; narrow the search, or continue with offset=2]",
    ]


@pytest.mark.parametrize("target", ["content", "names"])
async def test_pages_together_are_the_whole(use: Use, cwd: Path, target: str) -> None:
    for number in range(5):
        (cwd / f"needle-{number}").write_text("needle\nneedle\n")
    pattern = "needle*" if target == "names" else "needle"
    whole = await use("search_files", pattern=pattern, target=target)
    pages = [
        (await use("search_files", pattern=pattern, target=target, limit=3, offset=offset)).text
        for offset in range(0, 12, 3)
    ]
    if target == "names":
        assert [line for page in pages for line in page.split("\n") if line[0] != "["] == whole.text.split("\n")
    else:
        assert [hit for page in pages for hit in hits(page)] == hits(whole.text)


async def test_matches_are_grouped_below_their_file(use: Use, cwd: Path) -> None:
    (cwd / "a.txt").write_bytes(b"needle one\r\nnothing\r\nneedle two\r\n")
    (cwd / "b.txt").write_text("needle three")
    result = await use("search_files", pattern="needle \\w+$")
    assert result.text == f"{cwd}/a.txt\n1|needle one\n3|needle two\n{cwd}/b.txt\n1|needle three"


async def test_many_long_matches_end_where_there_is_no_more_room_and_say_so(use: Use, cwd: Path) -> None:
    (cwd / "a.txt").write_text(f"needle {'x' * 5000}\n" * 500)
    first = (await use("search_files", pattern="needle", limit=10_000)).text
    *lines, note = first.split("\n")
    assert len(first) < 33_000
    assert all(len(line) < 310 for line in lines)
    assert note == f"[there are more matches; narrow the search, or continue with offset={len(lines) - 1}]"
    following = (await use("search_files", pattern="needle", offset=len(lines) - 1, limit=1)).text
    assert following.split("\n")[1].startswith(f"{len(lines)}|needle x")


async def test_what_git_ignores_is_skipped(use: Use, cwd: Path) -> None:
    (cwd / ".gitignore").write_text("*.log\n!kept.log\n/build/\ndeep/**/x\n")
    (cwd / "deep/.gitignore").parent.mkdir()
    (cwd / "deep/.gitignore").write_text("own\n")
    wanted = ["kept.log", "src/build/a", "deep/x.txt", "own", ".hidden"]
    for name in [*wanted, "a.log", "src/b.log", "build/a", "deep/one/two/x", "deep/x", "deep/own"]:
        (cwd / name).parent.mkdir(parents=True, exist_ok=True)
        (cwd / name).write_text("needle")

    by_content = {hit.split(":")[0] for hit in hits((await use("search_files", pattern="needle")).text)}
    by_name = set((await use("search_files", pattern="*", target="names")).text.split("\n"))
    by_glob = await use("search_files", pattern="needle", glob="*.log")

    assert by_content == {str(cwd / name) for name in wanted}
    assert by_name == by_content | {str(cwd / ".gitignore"), str(cwd / "deep/.gitignore")}
    assert hits(by_glob.text) == [f"{cwd}/kept.log:1:needle"]


async def test_folders_around_say_too_what_is_ignored_up_to_the_repository(use: Use, cwd: Path) -> None:
    (cwd / "inner/.git").mkdir(parents=True)
    (cwd / "inner/src").mkdir()
    (cwd / ".gitignore").write_text("*.txt\n")
    (cwd / "inner/.gitignore").write_text("*.log\n")
    for name in ("a.txt", "a.log", "a.py"):
        (cwd / "inner/src" / name).write_text("needle")
    result = await use("search_files", pattern="needle", path="inner/src")
    assert hits(result.text) == [f"{cwd}/inner/src/a.py:1:needle", f"{cwd}/inner/src/a.txt:1:needle"]


async def test_ignored_folder_is_searched_when_it_is_named(use: Use, cwd: Path) -> None:
    (cwd / ".gitignore").write_text("build/\n")
    (cwd / "build").mkdir()
    (cwd / "build/a").write_text("needle")
    assert hits((await use("search_files", pattern="needle", path="build")).text) == [f"{cwd}/build/a:1:needle"]


async def test_link_to_a_file_or_folder_elsewhere_is_not_followed(use: Use, cwd: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/a").write_text("needle")
    (cwd / "file").symlink_to(tmp_path / "secret/a")
    (cwd / "folder").symlink_to(tmp_path / "secret")
    assert (await use("search_files", pattern="needle")).text == "[nothing found]"


async def test_pattern_that_only_python_understands_is_searched_for(use: Use, tree: Path) -> None:
    result = await use("search_files", pattern=r"(?<=import )os(?! x)")
    assert hits(result.text) == [f"{tree}/src/a.py:1:import os"]


async def test_a_plain_pattern_may_be_tied_to_the_beginning_of_a_line(use: Use, tree: Path) -> None:
    """Such a pattern is tried on the whole file first."""
    assert hits((await use("search_files", pattern="^needle")).text) == [f"{tree}/src/a.py:2:needle = 1"]
    assert hits((await use("search_files", pattern="needle$")).text) == [
        f"{tree}/src/b.txt:1:a needle, and another needle"
    ]
    assert (await use("search_files", pattern="os.needle")).text == "[nothing found]"


async def test_double_star_means_any_depth(use: Use, tree: Path) -> None:
    found = await use("search_files", pattern="**/*.py", target="names")
    assert found.text.split("\n") == [str(tree / "top.py"), str(tree / "src/a.py")]
    found = await use("search_files", pattern="import", glob="src/**/*.py")
    assert hits(found.text) == [f"{tree}/src/a.py:1:import os"]


async def test_name_that_is_no_text_is_shown_as_valid_text(use: Use, cwd: Path) -> None:
    Path(os.fsdecode(os.fsencode(cwd) + b"/caf\xe9")).write_text("needle")
    result = await use("search_files", pattern="caf*", target="names")
    assert result.text == f"{cwd}/caf\N{REPLACEMENT CHARACTER}"


async def test_pattern_of_any_length_is_answered_in_a_sentence(use: Use, cwd: Path) -> None:
    result = await use("search_files", pattern="x" * 200_000)
    assert result.text == "Error: The pattern is longer than 10,000 characters."


async def test_program_that_the_project_brings_along_is_not_run(
    use: Use, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rg = tree / "bin/rg"
    rg.parent.mkdir()
    rg.write_text(f"#!/bin/sh\necho ran > {tree}/ran\n")
    rg.chmod(0o755)
    monkeypatch.setenv("PATH", f"{rg.parent}:.:bin")
    monkeypatch.chdir(tree)
    assert len(hits((await use("search_files", pattern="needle")).text)) == 2
    assert not (tree / "ran").exists()


async def test_search_that_runs_out_of_time_shows_what_it_has_found(
    use: Use, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cwd / "a").write_text("aab\n")
    (cwd / "b").write_text("a" * 60 + "c")
    monkeypatch.setattr("talaria.tools.builtin.search_tools.TIME_S", 1.0)
    result = await use("search_files", pattern="(a+)+b")
    assert result.text == f"{cwd}/a\n1|aab\n[the search was stopped after 1 seconds; narrow it]"


@pytest.mark.parametrize(
    ("rule", "left_out", "stays"),
    [
        ("name", ["name", "a/name", "name/b"], ["names", "a/names"]),
        ("/name", ["name"], ["a/name"]),
        ("a/name", ["a/name"], ["b/a/name"]),
        ("name/", ["name/b", "a/name/b"], ["b/name"]),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z"], ["z", "a/zz"]),
        ("**/z", ["z", "a/b/z"], ["az"]),
        ("a/**", ["a/b", "a/b/c"], ["b/a"]),
        ("*.[ch]", ["x.c", "a/x.h"], ["x.cc", "x.d"]),
        ("x[!a-c]", ["xd"], ["xa"]),
        ("a?c", ["abc"], ["ac", "a/c"]),
        ("\\!x", ["!x"], ["x"]),
        ("\\#x", ["#x"], ["x"]),
        ("# x", [], ["x", "# x"]),
        ("x  ", ["x"], ["y"]),
        ("a*z", ["abz", "az"], ["a/z"]),
        ("[", [], ["x"]),
    ],
)
async def test_rules_mean_what_they_mean_to_git(
    use: Use, cwd: Path, rule: str, left_out: list[str], stays: list[str]
) -> None:
    for number, name in enumerate([*left_out, *stays]):
        (cwd / str(number) / name).parent.mkdir(parents=True, exist_ok=True)
        (cwd / str(number) / name).write_text("needle")
        (cwd / str(number) / ".gitignore").write_text(f"{rule}\n")
    found = {hit.split(":")[0] for hit in hits((await use("search_files", pattern="needle")).text)}
    assert found == {str(cwd / str(number) / name) for number, name in enumerate(stays, len(left_out))}


async def test_pathological_pattern_is_killed_and_freezes_nobody(
    use: Use, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cwd / "trap").write_text("a" * 60 + "b")
    monkeypatch.setattr("talaria.tools.builtin.search_tools.TIME_S", 0.5)
    result = await use("search_files", pattern="(?=a)(a+)+$")  # no other program knows how to look ahead
    assert result.text == "Error: The search took longer than 0 seconds; narrow it."
