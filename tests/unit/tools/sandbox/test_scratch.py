from stat import S_IMODE

from talaria.tools.sandbox.scratch import scratch, surroundings


def test_the_folders_of_a_session_are_its_own_and_gone_with_all_that_is_in_them() -> None:
    with scratch() as folder:
        own = [folder, folder / "home", folder / "tmp"]
        assert [S_IMODE(place.stat().st_mode) for place in own] == [0o700] * 3
        assert {"HOME": str(own[1]), "TMPDIR": str(own[2])}.items() <= surroundings(folder).items()
        (folder / "home/left").write_text("x")
    assert not folder.exists()
