import os
from pathlib import Path
from stat import S_IMODE

from talaria.core.trees import Root
from talaria.tools.sandbox.system import scratch, scratch_variables


def test_the_folders_of_a_session_are_its_own_and_gone_with_all_that_is_in_them() -> None:
    with scratch() as folder:
        own = [folder, folder / "home", folder / "tmp"]
        assert [S_IMODE(place.stat().st_mode) for place in own] == [0o700] * 3
        assert {"HOME": str(own[1]), "TMPDIR": str(own[2])}.items() <= scratch_variables(folder).items()
        (folder / "home/left").write_text("x")
    assert not folder.exists()


def test_folders_that_are_deeper_than_a_path_can_be_are_removed_too() -> None:
    with scratch() as folder, Root.open(folder / "tmp") as here:
        at = os.dup(here.descriptor)
        for _ in range(3_000):
            os.mkdir("deep", dir_fd=at)
            inner = os.open("deep", os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = inner
        os.close(at)
        (folder / "home/link").symlink_to("/etc")
    assert not folder.exists()
    assert Path("/etc/passwd").exists()
