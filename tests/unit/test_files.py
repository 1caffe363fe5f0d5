"""Reading without waiting for ever, and replacing without leaving half a file."""

import os
import stat
from pathlib import Path

import pytest

from talaria.core.fs import read_bytes, read_text, replace_file


def test_reading_ends_at_its_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("12345")
    assert read_bytes(tmp_path / "a", 5) == b"12345"
    assert read_bytes(tmp_path / "a", 3) == b"123"
    assert read_text(tmp_path / "a", 3) == "123"


def test_text_in_another_encoding_is_read_as_valid_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"caf\xe9")
    assert read_text(tmp_path / "a", 10) == "caf\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("name", ["pipe", "folder", "link to pipe", "/dev/zero", "missing"])
def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link to pipe").symlink_to("pipe")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match=r"folder, device or pipe|No such file"):
        read_bytes(tmp_path / name, 10)
    assert read_text(tmp_path / name, 10) is None
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(("mode", "becomes"), [(None, 0o640), (0o600, 0o600), (0o666, 0o666)])
def test_mode_is_kept_or_as_told_whatever_the_umask(tmp_path: Path, mode: int | None, becomes: int) -> None:
    file = tmp_path / "a"
    file.write_text("old")
    file.chmod(0o640)
    replace_file(file, b"new", mode=mode)
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"new", becomes)


def test_a_new_file_gets_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    replace_file(tmp_path / "a", b"new", mode=None)
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "link").symlink_to("inner/real")
    for content in (b"one", b"two"):
        replace_file(tmp_path / "link", content, mode=None)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "inner/real").read_bytes() == content


@pytest.mark.parametrize("name", ["folder", "pipe", "missing/a"])
def test_what_cannot_be_replaced_stays_and_nothing_is_left_beside_it(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=r"folder, device or pipe|No such file"):
        replace_file(tmp_path / name, b"new", mode=0o600)
    assert {item.name for item in tmp_path.iterdir()} == {"pipe", "folder"}
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_failure_while_writing_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(TypeError):
        replace_file(tmp_path / "a", "no bytes", mode=None)  # pyright: ignore[reportArgumentType]
    assert [(item.name, item.read_text()) for item in tmp_path.iterdir()] == [("a", "old")]


def test_a_file_that_somebody_put_in_the_way_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "urandom", bytes)
    (tmp_path / "victim").write_text("precious")
    (tmp_path / f".a.{bytes(6).hex()}").symlink_to("victim")
    with pytest.raises(FileExistsError):
        replace_file(tmp_path / "a", b"evil", mode=0o600)
    assert (tmp_path / "victim").read_text() == "precious"
