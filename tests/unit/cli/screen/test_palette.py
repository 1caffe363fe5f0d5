"""Colours that can be read: on black, on white, and on what people use in their place."""

import re
from collections.abc import Mapping

import pytest

from talaria.cli.screen.palette import BASIC, DARK, LIGHT, Palette, background_of, parse_background

BACKGROUNDS: Mapping[str, tuple[Palette, tuple[str, ...]]] = {
    "dark": (DARK, ("000000", "1e1e1e", "282c34", "2e3440", "002b36")),
    "light": (LIGHT, ("ffffff", "fdf6e3", "eeeeee")),
}
READABLE = 4.5
"""What WCAG 2 asks for text."""


def rgb(number: int) -> tuple[int, int, int]:
    """A colour of xterm from 16 on."""
    if number >= 232:
        grey = 8 + 10 * (number - 232)
        return grey, grey, grey
    levels = (0, 95, 135, 175, 215, 255)
    number -= 16
    return levels[number // 36], levels[number // 6 % 6], levels[number % 6]


def contrast(some: tuple[int, ...], other: tuple[int, ...]) -> float:
    dim, bright = sorted(map(luminance, (some, other)))
    return (bright + 0.05) / (dim + 0.05)


def luminance(colour: tuple[int, ...]) -> float:
    parts = [value / 255 for value in colour]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_every_colour_can_be_read_on_its_background(theme: str) -> None:
    palette, backgrounds = BACKGROUNDS[theme]
    poor = {
        (name, paper): round(contrast(rgb(int(ink[1])), on), 1)
        for name, code in palette._asdict().items()
        if isinstance(code, str)
        for paper in backgrounds
        if (ink := re.search(r"38;5;(\d+)", code))
        for own in [re.search(r"48;5;(\d+)", code)]
        for on in [rgb(int(own[1])) if own else tuple(bytes.fromhex(paper))]
        if contrast(rgb(int(ink[1])), on) < READABLE
    }
    assert poor == {}
    assert len(re.findall(r"38;5;", " ".join(map(str, palette)))) == len(palette) - 1


def test_the_careful_set_has_no_colour_for_most_text() -> None:
    """The terminal's own foreground is the only one that is sure to be read on its background."""
    texts = (BASIC.added_text, BASIC.removed_text, BASIC.function, BASIC.type, BASIC.builtin)
    assert {*texts} == {""}


@pytest.mark.parametrize(
    ("variable", "background"),
    [
        ("15;0", "dark"),
        ("0;15", "light"),
        ("0;default;15", "light"),
        ("12;8", "dark"),
        ("0;7", "light"),
        ("", None),
        ("15;default", None),
    ],
)
def test_the_background_is_known_from_the_environment(variable: str, background: str | None) -> None:
    assert background_of({"COLORFGBG": variable}) == background


@pytest.mark.parametrize(
    ("reply", "background"),
    [
        ("\x1b]11;rgb:ffff/ffff/ffff\x07", "light"),
        ("\x1b]11;rgb:fd/f6/e3\x1b\\", "light"),
        ("\x1b]11;rgb:1e1e/1e1e/1e1e\x1b\\", "dark"),
        ("\x1b]11;rgba:0000/2b2b/3636/ffff\x07", "dark"),
        ("\x1b]10;rgb:ffff/ffff/ffff\x07", None),
        ("\x1b]11;?\x07", None),
    ],
)
def test_the_background_is_known_from_what_the_terminal_answers(reply: str, background: str | None) -> None:
    assert parse_background(reply) == background
