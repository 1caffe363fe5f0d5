from pathlib import Path

import pytest

from talaria.config.secrets import environment, read_env
from talaria.core.errors import BadConfig


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / ".env"


def write(file: Path, content: bytes, mode: int = 0o600) -> None:
    file.write_bytes(content)
    file.chmod(mode)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("K=v", "v"),
        ("  K = v  ", "v"),
        ("export K=v", "v"),
        ("K=", ""),
        ("K=a=b", "a=b"),
        ("K='v w'", "v w"),
        ('K="v w"', "v w"),
        ('K="v" # a comment', "v"),
        ('K="v # no comment"', "v # no comment"),
        ('K="it\'s"', "it's"),
        ("K=v # a comment", "v"),
        ("K=# all comment", ""),
        ("K=v#w", "v#w"),
        ("K='", "'"),
        ('K="open', '"open'),
    ],
)
def test_value_is_read_as_a_shell_would(file: Path, line: str, value: str) -> None:
    write(file, f"# first\n\n{line}\nOTHER=1\r\n".encode())
    assert read_env(file) == {"K": value, "OTHER": "1"}


def test_mark_of_a_windows_editor_is_no_part_of_the_name(file: Path) -> None:
    write(file, b"\xef\xbb\xbfK=v\r\n")
    assert read_env(file) == {"K": "v"}


def test_no_file_means_no_secrets(file: Path) -> None:
    assert read_env(file) == {}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_file_that_others_can_read_is_refused_with_the_way_out(file: Path, mode: int) -> None:
    write(file, b"K=v", mode)
    with pytest.raises(BadConfig) as told:
        read_env(file)
    assert str(told.value) == f"{file} can be read by other users; `chmod 600 {file}` makes it private."


@pytest.mark.parametrize("line", ["no equals", "=v", "a b=c", "1K=v", "K-K=v"])
def test_line_that_says_nothing_is_told_by_number_but_not_by_content(file: Path, line: str) -> None:
    write(file, f"A=1\n{line}\n".encode())
    with pytest.raises(BadConfig) as told:
        read_env(file)
    assert str(told.value) == f"{file}, line 2: expected NAME=value."


def test_file_that_is_no_text_is_told(file: Path) -> None:
    write(file, b"K=\xff\xfe")
    with pytest.raises(BadConfig, match="not UTF-8 text"):
        read_env(file)


def test_folder_in_its_place_is_told(file: Path) -> None:
    file.mkdir(mode=0o700)
    with pytest.raises(BadConfig, match=rf"Cannot read {file}: Is a directory\."):
        read_env(file)


def test_process_environment_wins_over_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(file, b"BOTH=file\nONLY_FILE=1\n")
    monkeypatch.setenv("BOTH", "process")
    told = environment(file)
    assert (told["BOTH"], told["ONLY_FILE"]) == ("process", "1")


def test_what_was_added_to_the_environment_since_does_not_count_if_told_so(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file, b"A=ours\nB=ours", 0o600)
    process = {"B": "at the start"}
    monkeypatch.setenv("A", "added")
    assert environment(file, process) == {"A": "ours", "B": "at the start"}
    assert environment(file)["A"] == "added"
