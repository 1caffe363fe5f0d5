"""Old files go; whatever is not ours, new, or only linked to, stays."""

import os
from pathlib import Path

import pytest

from talaria.gateway.retention import DAY_S, delete_old_files

NOW = 1_800_000_000.0
OLD, NEW = NOW - 31 * DAY_S, NOW - 29 * DAY_S


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return tmp_path / "people"


def put(file: Path, at: float) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("x")
    os.utime(file, (at, at))
    os.utime(file.parent, (at, at))
    return file


async def cleared(home: Path, workspace: Path) -> int:
    return delete_old_files(home, workspace, 30, NOW, ["telegram", "slack"])


async def test_old_attachments_of_people_go(home: Path, workspace: Path) -> None:
    gone = [put(workspace / person / "attachments" / "1-photo.jpg", OLD) for person in ("telegram-1001", "slack-U1")]
    kept = [
        put(workspace / "telegram-1001" / "attachments" / "2-photo.jpg", NEW),
        put(workspace / "telegram-1001" / "notes.txt", OLD),
        put(workspace / "telegram-1001" / "attachments" / "sorted" / "3-photo.jpg", OLD),
        put(workspace / "my-project" / "attachments" / "contract.pdf", OLD),
        put(workspace / "attachments" / "contract.pdf", OLD),
    ]
    assert await cleared(home, workspace) == 2
    assert not any(file.exists() for file in gone)
    assert all(file.exists() for file in kept)


async def test_no_link_is_followed(home: Path, workspace: Path, tmp_path: Path) -> None:
    treasure = put(tmp_path / "elsewhere" / "attachments" / "treasure", OLD)
    workspace.mkdir()
    (workspace / "telegram-1").symlink_to(treasure.parent.parent)
    (workspace / "telegram-2").mkdir()
    (workspace / "telegram-2" / "attachments").symlink_to(treasure.parent)
    (workspace / "telegram-3" / "attachments").mkdir(parents=True)
    link = workspace / "telegram-3" / "attachments" / "link"
    link.symlink_to(treasure)
    os.utime(link, (OLD, OLD), follow_symlinks=False)
    (home / "spill").mkdir(parents=True)
    (home / "spill" / "session").symlink_to(treasure.parent)
    (home / "logs").symlink_to(treasure.parent)
    put(treasure.parent / "gateway.log.1", OLD)
    assert await cleared(home, workspace) == 0
    assert treasure.exists()
    assert (treasure.parent / "gateway.log.1").exists()


async def test_a_workspace_that_is_itself_a_link_is_cleared(home: Path, workspace: Path, tmp_path: Path) -> None:
    put(tmp_path / "disk" / "telegram-1" / "attachments" / "photo", OLD)
    workspace.symlink_to(tmp_path / "disk")
    assert await cleared(home, workspace) == 1


async def test_spilled_output_goes_with_its_folder(home: Path, workspace: Path) -> None:
    old = put(home / "spill" / "one" / "c1-output.txt", OLD)
    running = put(home / "spill" / "two" / "c1-output.txt", NEW)
    put(home / "spill" / "two" / "c0-output.txt", OLD)
    fresh = home / "spill" / "three"
    fresh.mkdir()
    os.utime(fresh, (NEW, NEW))
    assert await cleared(home, workspace) == 2
    assert not old.parent.exists()
    assert [file.name for file in running.parent.iterdir()] == ["c1-output.txt"]
    assert fresh.exists()


async def test_only_logs_that_were_put_aside_go(home: Path, workspace: Path) -> None:
    put(home / "logs" / "gateway.log.3", OLD)
    kept = [
        put(home / "logs" / name, at) for name, at in (("gateway.log", OLD), ("gateway.log.1", NEW), ("a.txt", OLD))
    ]
    assert await cleared(home, workspace) == 1
    assert all(file.exists() for file in kept)


async def test_where_nothing_is_nothing_goes(home: Path, workspace: Path) -> None:
    assert await cleared(home, workspace) == 0
