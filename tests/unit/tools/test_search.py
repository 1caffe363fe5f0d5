import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from talaria.model.messages import ToolResult
from talaria.tools.builtin.searching import MAX_FILE_BYTES, SKIPPED_FOLDERS

Use = Callable[..., Awaitable[ToolResult]]


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
    assert result.text.split("\n") == [f"{tree}/{line}" for line in found]


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
    assert (await use("search_files", pattern="import")).text == f"{tree}/src/a.py:1:import os"


async def test_pipe_is_skipped_and_never_waited_for(use: Use, tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    assert (await use("search_files", pattern="import")).text == f"{tree}/src/a.py:1:import os"


async def test_limit_cuts_and_says_that_there_is_more(use: Use, cwd: Path) -> None:
    (cwd / "a.txt").write_text("needle\n" * 5)

    assert (await use("search_files", pattern="needle", limit=5)).text.count("needle") == 5
    cut = await use("search_files", pattern="needle", limit=2)

    assert cut.text.split("\n")[2:] == ["[there are more matches; narrow the search]"]


async def test_pathological_pattern_is_killed_and_freezes_nobody(
    use: Use, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cwd / "trap").write_text("a" * 60 + "b")
    monkeypatch.setattr("talaria.tools.builtin.search.TIME_S", 0.5)
    result = await use("search_files", pattern="(a+)+$")
    assert result.text == "Error: The search took longer than 0 seconds; narrow it."
