"""What commands print: below their line while they run, the end of it in the scrollback, all of it on demand."""

import re

from tests.scenarios.screen.conftest import WAIT, Held, OpenScreen, see_quiet
from tests.scenarios.screen.emulator import DETAILS

from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, call


def test_output_is_live_and_failures_are_told_in_forty_columns(
    open_screen: OpenScreen, server: ModelServer, held: Held
) -> None:
    prints = rf"seq 20; printf '漢字\t1%%\r99%%'; {WAIT}; printf '\rall {'漢字' * 20}\n'; exit 3"
    server.say(
        Reply("Trying.", calls=(call("terminal", command=prints),)),
        Reply(calls=(call("no_such_tool", why="x"),)),
        "That was it.",
    )
    screen = open_screen(columns=40, rows=30, is_ready=False)
    screen.say("go")
    screen.see("    17", "    18", "    19", "    20", "    99%", "Working … ")
    assert "    16\n" not in screen.text
    screen.type("typed meanwhile")
    screen.see_typed("typed meanwhile")
    held.let_go()
    screen.see("That was it.")
    see_quiet(screen)
    lines = screen.scrollback
    (failed,) = [place for place, line in enumerate(lines) if "✗ terminal" in line]
    assert re.search(r"…  exit 3 · \d+\.\d s$", lines[failed])
    assert lines[failed + 1 : failed + 5] == ["    17", "    18", "    19", "    20"]
    assert lines[failed + 5].startswith("    all 漢")
    assert lines[failed + 6] == "    … 16 more lines: Ctrl-O"
    assert lines[failed + 7 : failed + 9] == ["  ✗ no_such_tool  why=x  invalid", "    There is no tool called"]
    screen.type("\x15")
    screen.type(DETAILS)
    screen.see("● terminal", "● no_such_tool")
    told = screen.scrollback[screen.scrollback.index("● terminal") :]
    assert [f"    {number}" for number in range(1, 21)] == [line for line in told if re.fullmatch(r"    \d+", line)]
    assert not any("✓" in line for line in screen.scrollback)
