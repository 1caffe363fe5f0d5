"""A restore in this very process: what it keeps of the old home, and what it refuses to unpack."""

import asyncio
import tarfile
import time
from pathlib import Path

import pytest

from talaria.cli.keeping.reading import unpack
from talaria.cli.main import main
from talaria.cli.progress import Progress
from talaria.compose import open_store
from talaria.model.errors import BadInput


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
        (0, "x" * (2 << 20), "what it says of a file is too long"),
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
