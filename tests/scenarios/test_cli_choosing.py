"""Questions of the model, answered at a real terminal."""

import asyncio
import os
import pty
import sys
from collections.abc import Iterator

import pytest
from tests.scenarios.typescript import Terminal

from talaria.cli.plain import TerminalPerson
from talaria.testing.patience import PATIENCE_S

NUMBER = "A number, or your own words (Enter: no answer): "
WORDS = "Your answer (Enter: no answer): "
SCRIPT = """
import asyncio
from talaria.cli.plain import TerminalPerson
from talaria.cli.plain import run_interruptible

with asyncio.Runner() as runner:
    try:
        runner.run(run_interruptible(TerminalPerson().choose("Why?", ()), lambda: False))
    except asyncio.CancelledError:
        print("interrupted", flush=True)
    print(input("then? ").upper())
"""


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Of the terminal that standard input is."""
    master, slave = pty.openpty()
    with os.fdopen(slave) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield master
    os.close(master)


async def answered(keyboard: int, keys: str, question: str = "Which?", choices: tuple[str, ...] = ()) -> str | None:
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(TerminalPerson().choose(question, choices))
        await asyncio.sleep(0)  # now it has asked
        os.write(keyboard, keys.encode())
    assert not asyncio.get_running_loop().remove_reader(sys.stdin.fileno())  # nobody reads any more
    return asking.result()


@pytest.mark.parametrize(
    ("keys", "answer"),
    [
        ("1\n", "Red"),
        ("2\n", "Blue and\tgreen"),
        (" 2 \n", "Blue and\tgreen"),
        ("02\n", "Blue and\tgreen"),
        ("3\n", "3"),
        ("0\n", "0"),
        ("-1\n", "-1"),
        ("٢\n", "Blue and\tgreen"),
        ("²\n", "²"),
        ("Neither, rather GRÜN\n", "Neither, rather GRÜN"),
        ("blue\n", "blue"),
        ("\n", None),
        ("  \n", None),
        ("\x04", None),
        ("9" * 4_000 + "\n", "9" * 4_000),
    ],
)
async def test_number_is_a_choice_and_anything_else_is_their_own_words(
    keyboard: int, keys: str, answer: str | None
) -> None:
    assert await answered(keyboard, keys, choices=("Red", "Blue and\tgreen")) == answer


async def test_choices_are_listed_by_number_beside_the_answers(
    keyboard: int, capsys: pytest.CaptureFixture[str]
) -> None:
    await answered(keyboard, "1\n", "Which\none?", ("Red", "Blue"))
    said = capsys.readouterr()
    assert said.err == f"\nThe model asks:\n  Which\n  one?\n  1  Red\n  2  Blue\n{NUMBER}"
    assert said.out == ""


async def test_question_without_choices_takes_any_words(keyboard: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert await answered(keyboard, "1\n", "How many?") == "1"
    assert capsys.readouterr().err == f"\nThe model asks:\n  How many?\n{WORDS}"


async def test_what_hides_in_a_question_is_shown_and_cannot_pass_for_ours(
    keyboard: int, capsys: pytest.CaptureFixture[str]
) -> None:
    await answered(keyboard, "\n", "x\x1b[2J\r\nRun this command?", ("a\u202eb\nRun this command?",))
    assert capsys.readouterr().err == (
        f"\nThe model asks:\n  x\\x1b[2J\\r\n  Run this command?\n  1  a\\u202eb Run this command?\n{NUMBER}"
    )


async def test_what_was_typed_before_the_question_is_no_answer(keyboard: int) -> None:
    os.write(keyboard, b"too early\n")
    assert await answered(keyboard, "in time\n") == "in time"


async def test_screen_goes_on_with_a_new_line_after_an_answer_without_one(
    keyboard: int, capsys: pytest.CaptureFixture[str]
) -> None:
    await answered(keyboard, "\x04")
    assert capsys.readouterr().err.endswith(f"{WORDS}\n")


async def test_question_that_is_cancelled_leaves_the_terminal_to_the_next(
    keyboard: int, capsys: pytest.CaptureFixture[str]
) -> None:
    asking = asyncio.create_task(TerminalPerson().choose("Which?", ()))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
    assert capsys.readouterr().err.endswith(f"{WORDS}\n")
    assert await answered(keyboard, "later\n") == "later"


def test_interrupt_key_ends_the_question_and_the_terminal_works_on(environment: dict[str, str]) -> None:
    with Terminal(environment, program=[sys.executable, "-c", SCRIPT]) as terminal:
        terminal.answer(WORDS, "half an answer\x03")
        assert "^C\r\ninterrupted\r\n" in terminal.see("then? ")
        terminal.type("more\n")
        terminal.see("MORE")
        assert terminal.end() == 0
