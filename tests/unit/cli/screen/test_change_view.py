"""A change of a file as it is painted."""

import re
import subprocess
import sys

import pytest

from talaria.cli.screen import palette
from talaria.cli.screen.change_view import render_change
from talaria.cli.screen.painting import render_file_change
from talaria.cli.screen.width import width
from talaria.core.messages import FileChange
from talaria.core.redaction import Redactor
from talaria.tools.diffs import compare_contents

SGR = re.compile(r"\x1b\[[\d;]*m")
OPEN = Redactor()
BEFORE = b'def total(prices):\n    """All\n    of it."""\n    return sum(prices)\n'


def plain(text: str) -> list[str]:
    return SGR.sub("", text).split("\n")


def change(before: bytes | None, after: bytes | None, path: str = "shop/cart.py") -> FileChange:
    return compare_contents(path, before, after, OPEN)


def test_lines_have_the_numbers_of_both_files_or_of_one_where_there_is_little_room() -> None:
    changed = change(
        BEFORE, BEFORE.replace(b"    return", b"    # all\n    return").replace(b"def total", b"def whole")
    )
    assert plain(render_file_change(changed, 80)) == [
        "shop/cart.py  +2 \N{MINUS SIGN}1",
        "1   -def total(prices):",
        "  1 +def whole(prices):",
        '2 2      """All',
        '3 3      of it."""',
        "  4 +    # all",
        "4 5      return sum(prices)",
    ]
    assert plain(render_file_change(changed, 40))[1:3] == ["1 -def total(prices):", "1 +def whole(prices):"]


def test_what_is_new_within_a_line_is_emphasised_and_the_language_has_its_colours() -> None:
    changed = change(BEFORE, BEFORE.replace(b"sum(prices)", b"sum(prices) * 2"))
    painted = render_change(changed, 80, palette.DARK, max_rows=None, has_colour=True)
    gone, new = painted.rows[-2:]
    assert f"\x1b[{palette.DARK.added_word}m * 2\x1b[0m" in new
    assert palette.DARK.removed_word not in gone
    assert f"\x1b[{palette.DARK.keyword}mreturn\x1b[0m" in new
    docstring = next(row for row in painted.rows if "of it." in row)
    assert f"\x1b[{palette.DARK.comment}m" in docstring  # although this line alone does not say that it is one


def test_lines_that_have_nothing_in_common_are_not_compared_word_by_word() -> None:
    painted = render_change(change(b"alpha = 1\n", b"print(beta)\n"), 80, palette.DARK, max_rows=None, has_colour=True)
    assert palette.DARK.added_word not in "".join(painted.rows)


def test_a_long_change_is_cut_and_says_how_many_lines_are_left() -> None:
    new = b"".join(b"line %d\n" % number for number in range(300))
    shown = plain(render_file_change(change(None, new), 80, max_lines=10))
    assert shown[0] == "shop/cart.py  new file  +300"
    assert (len(shown), shown[-1]) == (12, "… 290 more lines: Ctrl-O")
    everything = plain(render_file_change(change(None, new), 80, max_lines=1_000))
    assert everything[-1] == "… 101 more lines"  # of which nothing is kept, so no key shows them


@pytest.mark.parametrize("columns", [40, 60, 120])
def test_no_row_is_wider_than_the_screen_and_nothing_of_a_line_is_lost(columns: int) -> None:
    long = "x = '" + "値引き" * 30 + "\t" + "words " * 20 + "'"
    changed = change(b"a\n", f"{long}\n".encode(), "a/" + "deep/" * 12 + "cart.py")
    rows = plain(render_file_change(changed, columns, max_lines=None))
    assert max(map(width, rows)) <= columns
    text = "".join(row[len(rows[-1]) - len(rows[-1].lstrip()) :] for row in rows)
    assert text.count("値") == 30
    assert sum(row.count("words") for row in rows) >= 15


def test_control_characters_are_shown_and_never_carried_out() -> None:
    hostile = "ok\x1b[2J\x07\u202e\u200b\r".encode()
    painted = render_file_change(change(b"a\nb\n", hostile + b"\nb\n", "evil\x1b]0;x\x07.py"), 80)
    assert not [char for char in SGR.sub("", painted) if char != "\n" and not char.isprintable()]
    assert r"ok\x1b[2J\x07\u202e\u200b\r" in SGR.sub("", painted)


@pytest.mark.parametrize(
    ("changed", "header"),
    [
        (FileChange("a.bin", "changed", note="binary, 3 bytes before, 4 now"), "a.bin  binary, 3 bytes before, 4 now"),
        (FileChange("a", "deleted", 0, 1_200), "a  deleted  \N{MINUS SIGN}1,200"),
        (FileChange("a", "created", note="empty"), "a  new file  empty"),
    ],
)
def test_the_header_says_what_a_diff_does_not_show(changed: FileChange, header: str) -> None:
    assert plain(render_file_change(changed, 80)) == [header]


def test_a_missing_newline_at_the_end_is_said() -> None:
    assert plain(render_file_change(change(b"a\n", b"a", "a.txt"), 80))[-1].endswith(
        "\\no newline at the end of the file"
    )


def test_without_colours_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLORFGBG", "15;0")
    painted = render_file_change(change(BEFORE, BEFORE.replace(b"sum", b"max")), 80)
    assert {*SGR.findall(painted)} <= {"\x1b[0m", "\x1b[1m", "\x1b[2m"}
    assert "\x1b[1mmax\x1b[0m" in painted


def test_the_screen_loads_no_highlighter_before_something_is_painted() -> None:
    program = "import sys, talaria.cli.screen.startup, talaria.cli.screen.painting; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pygments", "rich", "difflib", "talaria.cli.screen.change_view"} & {*loaded}
