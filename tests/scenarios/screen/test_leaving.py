"""Ctrl-C at rest: leaves only the second time, and only soon after the first."""

import os
import signal
import sys
from collections.abc import Iterator

import pytest
from tests.scenarios.screen.conftest import READY, Held, see_quiet
from tests.scenarios.screen.emulator import INTERRUPT, Terminal

from talaria.testing.servers.model_server import ModelServer

TURNED_BY_HAND = """
import runpy, signal
from talaria.core.clock import SystemClock

seconds = 0.0

def pass_two_seconds(*_):
    global seconds
    seconds += 2.0

SystemClock.monotonic = lambda _: seconds
signal.signal(signal.SIGUSR1, pass_two_seconds)
runpy.run_module("talaria.cli.main", run_name="__main__")
"""
HINT = "Press Ctrl-C again"


@pytest.fixture
def screen(environment: dict[str, str], server: ModelServer) -> Iterator[Terminal]:
    """Its clock stands still but for two seconds at a time."""
    around = {**environment, "TERM": "xterm-256color"}
    with Terminal([sys.executable, "-c", TURNED_BY_HAND], around) as opened:
        opened.see(READY)
        see_quiet(opened)
        yield opened


def pass_two_seconds(screen: Terminal) -> None:
    os.kill(screen.pid, signal.SIGUSR1)


def hints(screen: Terminal) -> int:
    return sum(HINT in line for line in screen.scrollback)


def interrupt_twice(screen: Terminal) -> None:
    screen.type(INTERRUPT)
    screen.wait(lambda: hints(screen) == 1, "the first hint")
    pass_two_seconds(screen)
    screen.type(INTERRUPT)
    screen.wait(lambda: hints(screen) == 2, "the second hint")


def test_second_control_c_leaves_only_within_two_seconds(screen: Terminal) -> None:
    interrupt_twice(screen)
    screen.type(INTERRUPT)
    assert screen.end() == 0
    assert hints(screen) == 2
    assert screen.is_restored


def test_control_c_that_stops_a_turn_is_the_first_of_two(screen: Terminal, server: ModelServer, held: Held) -> None:
    server.say(held.reply)
    screen.say("go")
    screen.see("Working … ", " terminal  until [ -e go ]")
    screen.type(INTERRUPT)
    screen.see("Interrupted.")
    see_quiet(screen)
    screen.type(INTERRUPT)
    assert screen.end() == 0
    assert hints(screen) == 0


def test_control_c_long_after_a_stopped_turn_is_the_first_one_again(
    screen: Terminal, server: ModelServer, held: Held
) -> None:
    server.say(held.reply)
    screen.say("go")
    screen.see("Working … ", " terminal  until [ -e go ]")
    screen.type(INTERRUPT)
    screen.see("Interrupted.")
    see_quiet(screen)
    pass_two_seconds(screen)
    interrupt_twice(screen)
    screen.type(INTERRUPT)
    assert screen.end() == 0
