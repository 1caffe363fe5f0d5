"""Text from elsewhere as it is shown in lists."""

from talaria.cli.safe import brief


def test_text_is_put_on_one_line_and_cut_wherever_it_is_too_long() -> None:
    assert brief(" two\n  lines ", 9) == "two lines"
    assert brief("two\nlines", 8) == "two line…"
    assert brief("一二三四五", 3) == "一二三…"
