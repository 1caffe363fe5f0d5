"""Text from elsewhere as it is shown in lists."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.cli.command_output import print_json
from talaria.cli.safe import PrintableStream, brief, decidable, escape_json, printable, readable, visible
from talaria.cli.screen.menu import Menu, MenuItem


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
    shown = escape_json(json.dumps(said, ensure_ascii=False).encode()).decode()
    assert json.loads(shown) == said
    assert {sign for sign in shown if not sign.isprintable()} == set()
    assert "ä 😀" in shown


async def test_a_question_on_the_screen_hides_nothing() -> None:
    menu = Menu("May terminal do this?", [MenuItem("no", "no")], body="ls\u3164" + "\n" * 400 + "rm")
    shown = "".join(fragment[1] for fragment in menu.fragments(80, 24))
    assert "ls\\u3164\n  [399 blank lines]\n  rm\n" in shown


def test_what_is_printed_as_json_has_nothing_that_acts_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": "\x9b31m\u202e"})
    assert capsys.readouterr().out == '{"text":"\\u009b31m\\u202e"}\n'


FAMILY, KISS, RAINBOW = "👨\u200d👩\u200d👧\u200d👦", "👩🏽\u200d❤\ufe0f\u200d💋\u200d👨🏽", "🏳\ufe0f\u200d🌈"
ENGLAND = "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"
PERSIAN, HINDI, MALAYALAM, BENGALI = "می\u200cخواهم", "क्\u200dष क्\u200cष", "ന്\u200d", "র\u200d্য"  # noqa: RUF001


@pytest.mark.parametrize(
    "text",
    [
        *(FAMILY, KISS, RAINBOW, ENGLAND, "🇩🇪", "❤\ufe0f ☺\ufe0e 1\ufe0f\u20e3"),
        *(PERSIAN, HINDI, MALAYALAM, BENGALI, "PDF\u200cها", "۱۴۴۵ ه\u200d", "葛\U000e0100", "ᠠ\u180b"),  # noqa: RUF001
    ],
)
def test_prose_keeps_what_its_writing_needs_and_a_decision_sees_all_of_it(text: str) -> None:
    assert readable(f"a {text} b") == printable(f"a {text} b") == f"a {text} b"
    assert visible(text) == decidable(text)
    assert ("\\" in visible(text)) == (text != "🇩🇪"), "two letters that anybody sees"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pay\u200dpal pay\u200cpal", "pay\\u200dpal pay\\u200cpal"),
        ("👩\u200d", "👩\\u200d"),
        ("👩\u200dx", "👩\\u200dx"),
        ("👩\u200d" * 9 + "👩", "👩\u200d👩\u200d👩\u200d👩\\u200d👩\u200d👩\u200d👩\u200d👩\\u200d👩\u200d👩"),
        ("می\u200c\u200cخ", "می\\u200c\\u200cخ"),
        ("a\ufe0f 1\ufe0f", "a\\ufe0f 1\\ufe0f"),
        ("😀\ufe0f\ufe01\U000e0101", "😀\ufe0f\\ufe01\\U000e0101"),
        ("🏴\U000e0068\U000e0069\U000e007f", "🏴\\U000e0068\\U000e0069\\U000e007f"),
        ("\u202eabc\u2066\u200b\u061c\ufeff", "\\u202eabc\\u2066\\u200b\\u061c\\ufeff"),
        ("\x1b[2J\x9b\n\tend", "\\x1b[2J\\x9b\n\tend"),
    ],
)
def test_prose_shows_what_would_mislead_as_escapes(text: str, shown: str) -> None:
    assert readable(text) == shown


@given(
    st.lists(
        st.sampled_from([FAMILY, KISS, ENGLAND, PERSIAN, HINDI, "1\ufe0f\u20e3", "a\u200db", "ب\u200dx", "\x1b["])
    ),
    st.data(),
)
@settings(max_examples=50, deadline=None)
def test_text_that_comes_in_pieces_is_printed_as_if_it_came_whole(parts: list[str], data: st.DataObject) -> None:
    text = " ".join(parts)
    stream, printed, left = PrintableStream(), "", text
    while left:
        size = data.draw(st.integers(1, 4))
        printed, left = printed + stream.add(left[:size]), left[size:]
    assert printed + stream.end() == printable(text)
