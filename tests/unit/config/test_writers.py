"""Settings that others can change are refused; a group that is the person's own is nobody else."""

import os
import pwd
import stat
from pathlib import Path

import pytest

from talaria.app.settings import read_settings
from talaria.config.edit import can_others_write, check_writers
from talaria.core.errors import BadConfig


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text("model: {provider: demo}\n")
    (home / "config.yaml").chmod(0o600)
    return home


@pytest.mark.parametrize(("name", "mode"), [("config.yaml", 0o602), ("config.yaml", 0o666), (".", 0o757), (".", 0o702)])
def test_settings_that_others_can_change_are_refused(home: Path, name: str, mode: int) -> None:
    (home / name).chmod(mode)
    with pytest.raises(BadConfig, match=f"Other users can change .*; run: chmod go-w {home}"):
        read_settings(home)
    (home / name).chmod(mode & ~0o022)
    read_settings(home)


@pytest.mark.parametrize("mode", [0o644, 0o755, 0o600])
def test_settings_that_others_can_only_read_are_taken(home: Path, mode: int) -> None:
    (home / "config.yaml").chmod(mode)
    read_settings(home)


def found(mode: int, gid: int) -> os.stat_result:
    return os.stat_result((mode, 0, 0, 1, os.geteuid(), gid, 0, 0, 0, 0))


def test_only_the_persons_own_group_may_write() -> None:
    own = pwd.getpwuid(os.geteuid()).pw_gid
    other = 1 if own != 1 else 2
    assert not can_others_write(found(stat.S_IFREG | 0o664, own))
    assert can_others_write(found(stat.S_IFREG | 0o664, other))
    assert not can_others_write(found(stat.S_IFREG | 0o644, other))


def test_where_others_can_make_files_the_settings_have_to_be_ones_own(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to somebody else")
    tmp_path.chmod(0o1777)
    file = tmp_path / "config.yaml"
    file.write_text("")
    file.chmod(0o600)
    check_writers(tmp_path, file)
    os.chown(file, 65534, 65534)
    with pytest.raises(BadConfig, match="belongs to another user"):
        check_writers(tmp_path, file)
