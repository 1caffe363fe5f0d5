"""The pictures in docs show what the program shows."""

from tests.scenarios.screen.pictures import FOLDER, SCENES, taken, text_in, text_of


def test_pictures_show_what_is_on_the_screen() -> None:
    for name, picture in taken():
        kept = text_in((FOLDER / f"{name}.svg").read_text(encoding="utf-8"))
        assert text_of(picture) == kept, f"{name}.svg is old: python -m tests.scenarios.screen.pictures renews it"


def test_no_picture_is_left_of_a_scene_that_is_gone() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(SCENES)
