"""The files that the command of a server names."""

from pathlib import Path

import pytest

from talaria.tools.mcp.server_entries import ServerEntry


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "server.py"
    file.touch()
    return file


def test_files_are_found_by_their_whole_name_and_from_the_servers_folder(program: Path) -> None:
    for entry in (
        ServerEntry(command="python3", args=("-I", str(program))),
        ServerEntry(command=str(program)),
        ServerEntry(command="python3", args=("server.py",), cwd=str(program.parent)),
    ):
        assert list(entry.programs()) == [program.resolve()]


@pytest.mark.parametrize("word", ["x" * 5_000, '{"a": 1}', "nul\0inside", "~nobody-is-called-so/x", "", "."])
def test_a_word_that_is_no_file_is_none(word: str) -> None:
    assert list(ServerEntry(command="no-such-program", args=(word,)).programs()) == []


def test_a_server_elsewhere_has_none() -> None:
    assert list(ServerEntry(url="https://example.org/mcp").programs()) == []
