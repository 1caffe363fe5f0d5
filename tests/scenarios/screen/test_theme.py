"""Colours that fit the terminal's background."""

from pathlib import Path

import pytest
from tests.scenarios.screen.conftest import OpenScreen
from tests.scenarios.screen.emulator import ENTER, Terminal

from talaria.cli.screen.palette import ASK_BACKGROUND, DARK, LIGHT, Palette
from talaria.testing.servers.model_server import ModelServer

ASKED = ASK_BACKGROUND.encode()
CODE = "Like this:\n\n```python\nreturn 1\n```\n\nThe end."


def see_code_in(screen: Terminal, colours: Palette, server: ModelServer) -> None:
    server.say(CODE)
    screen.say("show me")
    screen.see("return 1", "The end.")
    assert f"\x1b[{colours.keyword};49mreturn".encode() in screen.raw


@pytest.mark.parametrize(
    ("reply", "colours"), [("\x1b]11;rgb:ffff/ffff/ffff\x1b\\", LIGHT), ("\x1b]11;rgb:1e1e/1e1e/1e1e\x07", DARK)]
)
def test_the_terminal_is_asked_and_its_answer_is_not_taken_for_keys(
    open_screen: OpenScreen, server: ModelServer, reply: str, colours: Palette
) -> None:
    screen = open_screen()
    screen.wait(lambda: ASKED in screen.raw, "the question for the background")
    screen.type(f"so{reply[:9]}")
    screen.see_typed("so")
    screen.type(f"{reply[9:]} far")
    screen.see_typed("so far")
    server.say("Heard.")
    screen.type(ENTER)
    screen.see("Heard.")
    see_code_in(screen, colours, server)


def test_the_setting_counts_before_anything_else(open_screen: OpenScreen, server: ModelServer, home: Path) -> None:
    with (home / "config.yaml").open("a") as config:
        config.write("display: {theme: light}\n")
    screen = open_screen(COLORFGBG="15;0")
    see_code_in(screen, LIGHT, server)
    assert ASKED not in screen.raw


def test_what_the_environment_says_is_enough(open_screen: OpenScreen, server: ModelServer) -> None:
    screen = open_screen(COLORFGBG="0;15")
    see_code_in(screen, LIGHT, server)
    assert ASKED not in screen.raw


def test_without_colours_nothing_is_asked(open_screen: OpenScreen, server: ModelServer) -> None:
    screen = open_screen(NO_COLOR="1")
    server.say(CODE)
    screen.say("show me")
    screen.see("The end.")
    assert ASKED not in screen.raw
    assert b"38;5;" not in screen.raw
