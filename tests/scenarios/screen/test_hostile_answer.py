"""An answer full of escape sequences, in a real terminal: they are read, not obeyed."""

import re

from tests.scenarios.screen.conftest import OpenScreen
from tests.scenarios.screen.emulator import ENTER

from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, call

ATTACK = "\x1b]0;owned\x07\x1b]52;c;b3duZWQ=\x07\x1b[3;5r\x1b[?1049h\x1bc\x1b(0\x9b2J\x07"
BACKGROUND = b"\x1b]11;?\x1b\\"
"""Our own question for the colour of the background."""
STEERING = re.compile(rb"\x1b\]|\x1bP|\x1bc|\x1b\(|\x1b\[[\d;]*[Hr]|\x1b\[\?1049h|\x07|\xc2[\x80-\x9f]")


def test_escape_sequences_of_a_model_and_of_its_tools_are_shown_and_not_carried_out(
    server: ModelServer, open_screen: OpenScreen
) -> None:
    server.say(
        Reply(calls=(call("terminal", command=f"echo {ATTACK}"),)),
        Reply(text=f"Before {ATTACK} after.\n\n```\n{ATTACK}\n```\n\nThe end."),
    )
    screen = open_screen(columns=120)
    screen.type("attack")
    screen.type(ENTER)
    screen.see(r"Before \x1b]0;owned\x07\x1b]52;c;b3duZWQ=\x07", "after.", "The end.")
    assert screen.titles == []
    assert STEERING.findall(screen.raw.replace(BACKGROUND, b"", 1)) == []


def test_escape_sequences_that_are_pasted_are_shown_and_not_carried_out(
    server: ModelServer, open_screen: OpenScreen
) -> None:
    server.say(Reply(text="Understood."))
    screen = open_screen(columns=120)
    screen.paste(ATTACK)
    screen.type(ENTER)
    screen.see(r"› \x1b]0;owned\x07\x1b]52;c;b3duZWQ=\x07", "Understood.")
    assert screen.titles == []
    assert STEERING.findall(screen.raw.replace(BACKGROUND, b"", 1)) == []
