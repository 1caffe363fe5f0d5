"""The pictures in docs show what the program shows."""

import pytest
from tests.scenarios.screen.pictures import (
    FOLDER,
    NAMES,
    SCENES,
    SESSIONS,
    Picture,
    Theme,
    played,
    taken,
    text_in,
    text_of,
)

from talaria.tools.sandbox import bubblewrap


@pytest.fixture(autouse=True)
def strict() -> None:
    """They are made at the level that most people have."""
    if (reason := bubblewrap.fault()) is not None:
        pytest.skip(f"commands in bubblewrap: {reason}")


def assert_kept(name: str, picture: Picture) -> None:
    kept = text_in((FOLDER / f"{name}.svg").read_text(encoding="utf-8"))
    assert text_of(picture) == kept, f"{name}.svg is old: `make screens` renews it"


def test_pictures_show_what_is_on_the_screen() -> None:
    for name, picture in taken():
        assert_kept(name, picture)


@pytest.mark.parametrize(
    ("columns", "theme"),
    [pytest.param(*one, marks=[] if one == (40, "light") else [pytest.mark.long]) for one in SESSIONS],
)
def test_pictures_of_a_session_show_what_is_on_the_screen(columns: int, theme: Theme) -> None:
    for name, picture in played(columns, theme):
        assert_kept(name, picture)


def test_no_picture_is_left_of_a_scene_that_is_gone() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == {*SCENES, *NAMES}
