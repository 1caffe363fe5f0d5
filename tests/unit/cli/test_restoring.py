"""A restore in this very process: what it keeps of the old home, and what it refuses to unpack."""

import asyncio
import io
import os
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from talaria.app.build import open_store
from talaria.cli.backup.archive import unpack
from talaria.cli.main import main
from talaria.cli.notices import Progress
from talaria.core.errors import BadInput


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("TALARIA_HOME", str(home))
    monkeypatch.setenv("HOME", str(tmp_path))

    async def make() -> None:
        async with open_store(home):
            pass

    asyncio.run(make())
    (home / "SOUL.md").write_text("You are kind.")
    return home


def test_restores_in_the_same_second_keep_every_old_home(home: Path, tmp_path: Path) -> None:
    archive = tmp_path / "kept.tar.gz"
    assert main(["backup", str(archive)]) == 0
    now = time.time()
    for second in range(20):
        taken = time.strftime("home.before-restore-%Y-%m-%d-%H%M%S", time.localtime(now + second))
        (tmp_path / taken / "old").mkdir(parents=True)
    for soul in ("first", "second"):
        (home / "SOUL.md").write_text(soul)
        assert main(["restore", str(archive), "--yes"]) == 0
    kept = [file.read_text() for file in tmp_path.glob("home.before-restore-*/SOUL.md")]
    assert sorted(kept) == ["first", "second"]


@pytest.mark.parametrize(
    ("size_bytes", "comment", "sentence"),
    [
        (2 << 30, "", "it would unpack to more than 1,024 MB"),
        (0, "x" * (2 << 20), "the header of a file in it is too long"),
    ],
)
def test_what_would_fill_the_disk_is_not_unpacked(tmp_path: Path, size_bytes: int, comment: str, sentence: str) -> None:
    archive, folder = tmp_path / "bomb.tar.gz", tmp_path / "new"
    folder.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        bomb = tarfile.TarInfo("home/skills/bomb")
        bomb.size, bomb.pax_headers = size_bytes, {"comment": comment} if comment else {}
        tar.fileobj.write(bomb.tobuf(tarfile.PAX_FORMAT))  # pyright: ignore[reportOptionalMemberAccess, reportUnknownMemberType]
    with pytest.raises(BadInput, match=sentence), Progress("Unpacking") as show:
        unpack(archive, folder, show)
    assert [*folder.iterdir()] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
@pytest.mark.parametrize(("size_bytes", "fits"), [(1 << 20, True), (8 << 20, False)])
def test_what_is_larger_than_the_disk_is_not_unpacked(tmp_path: Path, size_bytes: int, fits: bool) -> None:
    archive, disk = tmp_path / "large.tar.gz", tmp_path / "disk"
    disk.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        large = tarfile.TarInfo("home/skills/large")
        large.size = size_bytes
        tar.addfile(large, io.BytesIO(bytes(size_bytes)))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=70m", "tmpfs", disk], check=True)  # of which 64 stay free
    try:
        with pytest.raises((OSError, BadInput)) as refused, Progress("Unpacking") as show:
            unpack(archive, disk, show)
        assert ("No space left" in str(refused.value)) is not fits  # what fits is refused for what else is missing
        assert [*disk.rglob("large")] == ([disk / "skills/large"] if fits else [])
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
