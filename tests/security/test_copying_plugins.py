"""A plugin is copied from a folder in which commands may still work."""

import shutil
import time
from contextlib import suppress
from itertools import count, takewhile
from pathlib import Path

from tests.security.swapping import swapping

from talaria.plugins.plugin_host import LeadsElsewhere, copy_folder
from talaria.testing.patience import PATIENCE_S

KEY = "canary-key-T7pLx2QvN9kRw4ZcB6mYs1Hd"


def held(folder: Path) -> str:
    return "".join(file.read_text() for file in folder.rglob("*") if file.is_file())


def test_a_folder_that_is_swapped_for_a_link_does_not_bring_private_files_along(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private/id").write_text(KEY)
    (tmp_path / "plugin/a").mkdir(parents=True)
    (tmp_path / "plugin/a/id").write_text("ours")

    def copied(number: int) -> str:
        """All that was copied before the link was found."""
        with suppress(LeadsElsewhere, OSError):
            copy_folder(tmp_path / "plugin", tmp_path / f"ours-{number}", skipped=frozenset())
        return held(tmp_path / f"ours-{number}")

    def copied_by_path(number: int) -> str:
        """The control: it looks whether there are links, and then copies."""
        if any(one.is_symlink() for one in (tmp_path / "plugin").iterdir() if one.name == "a"):
            return ""
        with suppress(shutil.Error, OSError):
            shutil.copytree(tmp_path / "plugin", tmp_path / f"theirs-{number}", ignore_dangling_symlinks=True)
        return held(tmp_path / f"theirs-{number}")

    with swapping(tmp_path / "plugin/a", tmp_path / "private", tmp_path):
        end = time.monotonic() + PATIENCE_S
        tries = takewhile(lambda _: time.monotonic() < end, count())
        assert any(KEY in copied_by_path(number) for number in tries), "the attack itself does not work"
        found = [copied(number) for number in range(800)]
    assert not any(KEY in text for text in found)
    assert any("ours" in text for text in found)
