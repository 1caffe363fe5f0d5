"""Text from elsewhere as it is shown in lists."""

import json

import pytest

from talaria.cli.json_output import print_json
from talaria.cli.safe import brief, decidable, escaped_json
from talaria.cli.screen.menu import Choice, Menu


def test_text_is_put_on_one_line_and_cut_wherever_it_is_too_long() -> None:
    assert brief(" two\n  lines ", 9) == "two lines"
    assert brief("two\nlines", 8) == "two line…"
    assert brief("一二三四五", 3) == "一二三…"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u200bb\u202ec\x9b", "a\\u200bb\\u202ec\\x9b"),
        ("rm\u3164\u2800\u00ad\ufe0f\U000e0100x", "rm\\u3164\\u2800\\xad\\ufe0f\\U000e0100x"),
        ("a\u00a0b", "a\\xa0b"),
        ("ls" + "\n" * 400 + "rm", "ls\n[399 blank lines]\nrm"),
        ("ls\n" + " \u200b\n \t\n" * 2 + "rm", "ls\n \\u200b\n \t\n \\u200b\n \t\nrm"),
        ("ls\n" + " \n" * 9 + "rm", "ls\n[9 blank lines]\nrm"),
        ("ls" + " " * 5000 + "rm", "ls[5000 blanks]rm"),
        ("def f():\n\n\n    return 'ä'\t1\n", "def f():\n\n\n    return 'ä'\t1\n"),
    ],
)
def test_a_question_hides_nothing(text: str, shown: str) -> None:
    assert decidable(text) == shown


def test_json_says_the_same_without_characters_that_act_on_a_terminal() -> None:
    said = {"a\u202e": "\x9b31m\x85\u2028\u200b\ufeff\U000e0041 ä 😀 \\u0041"}
    shown = escaped_json(json.dumps(said, ensure_ascii=False).encode()).decode()
    assert json.loads(shown) == said
    assert {sign for sign in shown if not sign.isprintable()} == set()
    assert "ä 😀" in shown


async def test_a_question_on_the_screen_hides_nothing() -> None:
    menu = Menu("May terminal do this?", [Choice("no", "no")], body="ls\u3164" + "\n" * 400 + "rm")
    shown = "".join(fragment[1] for fragment in menu.fragments(80, 24))
    assert "ls\\u3164\n  [399 blank lines]\n  rm\n" in shown


def test_what_is_printed_as_json_has_nothing_that_acts_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": "\x9b31m\u202e"})
    assert capsys.readouterr().out == '{"text":"\\u009b31m\\u202e"}\n'
