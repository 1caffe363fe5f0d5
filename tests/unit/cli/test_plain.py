"""A conversation without a screen, whose answers go into a pipe."""

import os
from contextlib import redirect_stdout

from talaria.cli.options import CliOptions
from talaria.cli.plain import PlainInterface
from talaria.core.events import TextDelta


def test_a_line_is_in_the_pipe_before_the_turn_has_ended() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "w") as out, redirect_stdout(out):
        show = PlainInterface(CliOptions(is_one_shot=True)).observer()
        show(TextDelta("one\ntwo"))
        os.set_blocking(reading, False)
        assert os.read(reading, 100) == b"one\n"


def test_a_reader_that_leaves_stops_the_turn() -> None:
    reading, writing = os.pipe()
    stopped: list[bool] = []
    with os.fdopen(writing, "w") as out, redirect_stdout(out):
        front = PlainInterface(CliOptions(is_one_shot=True))
        front.stop_turn = lambda: stopped.append(True)
        show = front.observer()
        os.close(reading)
        show(TextDelta("one\n"))
        show(TextDelta("two\n"))
    assert (stopped, front.has_reader) == ([True], False)
