"""How far long work is, on a terminal and elsewhere."""

import io

import pyte
import pytest

from talaria.cli.notices import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO) -> str:
    screen = pyte.Screen(80, 3)
    pyte.Stream(screen).feed(stream.getvalue())
    assert screen.display[1].strip() == screen.display[2].strip() == ""
    return screen.display[0].rstrip()


def test_line_on_a_terminal_is_rewritten_and_goes_at_the_end() -> None:
    clock, stream = Clock(), Terminal()
    with Progress("Copying", stream=stream, now=clock) as show:
        assert shown(stream) == "Copying"
        clock.now = 65.0
        show(1, 3)
        assert shown(stream) == "Copying · 33 % · 1:05"
        clock.now = 66.0
        show(7)
        assert shown(stream) == "Copying · 7 · 1:06"
    assert shown(stream) == ""
    assert stream.getvalue().endswith("\r")
    assert "\n" not in stream.getvalue()


def test_line_is_rewritten_ten_times_a_second_at_most() -> None:
    clock, stream = Clock(), Terminal()
    with Progress("Copying", stream=stream, now=clock) as show:
        for step in range(1000):
            clock.now = step / 1000
            show(step, 1000)
    assert stream.getvalue().count("%") == 9


def test_elsewhere_there_is_a_line_every_ten_seconds_and_none_for_short_work() -> None:
    clock, stream = Clock(), io.StringIO()
    with Progress("Copying", stream=stream, now=clock) as show:
        show(1, 100)
        clock.now = 9.9
        show(2, 100)
        assert stream.getvalue() == ""
        clock.now = 10.0
        show(50, 100)
        clock.now = 19.0
        show(60, 100)
    assert stream.getvalue() == "Copying · 50 % · 0:10\n"


@pytest.mark.parametrize(("done", "total", "expected"), [(0, 0, "100 %"), (5, 3, "100 %"), (2_000, None, "2,000")])
def test_odd_numbers_are_no_trouble(done: int, total: int | None, expected: str) -> None:
    clock, stream = Clock(), Terminal()
    with Progress("Copying", stream=stream, now=clock) as show:
        clock.now = 1.0
        show(done, total)
        assert shown(stream) == f"Copying · {expected} · 0:01"


def test_what_a_file_is_called_cannot_move_the_cursor() -> None:
    stream = Terminal()
    with Progress("Copying \x1b[2J\n" + "x" * 200, stream=stream, now=Clock()):
        assert len(shown(stream)) == 79
        assert "\x1b" not in stream.getvalue()
