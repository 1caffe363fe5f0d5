"""What became of a file, for people: exact counts, bounded diffs, and nothing secret."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.core.redaction import Redactor
from talaria.tools.diffs import MAX_DIFF_LINES, compare_contents

SECRET = "sk-live-0123456789abcdef"
OPEN = Redactor()
LINES = st.lists(st.sampled_from(["a", "b", "c", "", "d\r"]), max_size=12).map("\n".join)


def rows(text: str) -> bytes:
    return text.encode()


@settings(max_examples=200, deadline=None)
@given(LINES, LINES)
def test_the_whole_diff_leads_from_one_content_to_the_other_and_counts_are_its_lines(before: str, after: str) -> None:
    change = compare_contents("f", rows(before), rows(after), OPEN, is_whole=True)
    signs = re.findall(r"^[-+]", change.diff, re.MULTILINE)
    assert (signs.count("+"), signs.count("-")) == (change.added, change.removed)
    if "\r" not in before + after:
        kept = [line[1:] for line in change.diff.split("\n") if line[:1] in (" ", "+")]
        assert [line for line in kept if line not in after.split("\n")] == []
        assert change.added - change.removed == _count(after) - _count(before)
    assert change.diff or before == after or change.note
    assert not change.diff or before != after


def _count(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n") and text != "")


def test_counts_are_exact_when_the_diff_is_cut() -> None:
    before = "".join(f"line {number}\n" for number in range(1_000))
    change = compare_contents("f", rows(before), rows(before.replace("line", "row") + "end\n"), OPEN)
    assert (change.added, change.removed) == (1_001, 1_000)
    shown = change.diff.split("\n")
    assert len(shown) == MAX_DIFF_LINES + 1
    assert shown[-1] == "[… 1,802 more lines of this diff]"
    whole = compare_contents("f", rows(before), rows(before.replace("line", "row")), OPEN, is_whole=True)
    assert whole.diff.count("\n") == 2_000


def test_a_huge_file_is_compared_line_by_line_in_time_that_grows_with_it() -> None:
    before = "".join(f"line {number}\n" for number in range(60_000))
    after = re.sub(r"(?m)^(line \d*[05])$", r"\1 changed", before)  # every fifth
    change = compare_contents("f", rows(before), rows(after), OPEN)
    assert (change.added, change.removed) == (12_000, 12_000)
    assert "\n-line 0\n+line 0 changed\n line 1\n" in change.diff


@pytest.mark.parametrize("is_whole", [False, True])
def test_secrets_are_hidden_also_where_they_are_wrapped_and_a_new_one_is_still_a_change(is_whole: bool) -> None:
    other = "sk-live-fedcba9876543210"
    redactor = Redactor([SECRET, other])
    before = f"a\nKEY={SECRET}\nlong={SECRET[:9]}\n{SECRET[9:]}"
    after = f"a\nKEY={other}\nlong={SECRET[:9]}\n{SECRET[9:]}\nb"
    change = compare_contents(".env", rows(before), rows(after), redactor, is_whole=is_whole)
    assert change.diff.split("\n")[:5] == ["@@ -1,4 +1,5 @@", " a", "-KEY=•••", "+KEY=•••", " long=•••"]
    assert (change.added, change.removed) == (3, 2)
    assert not [piece for piece in (SECRET[:9], SECRET[9:], other) if piece in change.diff]


@pytest.mark.parametrize(
    ("before", "after", "note", "diff"),
    [
        (b"a\r\nb\r\n", b"a\r\nc\r\n", "", "@@ -1,2 +1,2 @@\n a\n-b\n+c"),
        (b"a\r\nb\r\n", b"a\nb\n", "line ends CRLF → LF", ""),
        (b"a\r\nb\n", b"a\r\nc\n", "", "@@ -1,2 +1,2 @@\n a\r\n-b\n+c"),
        (b"a\n", b"\xef\xbb\xbfa\n", "byte order mark added", ""),
        (b"a\0b", b"a", "binary, 3 bytes before, 1 bytes now", ""),
        (None, b"\0" * 3_200, "binary, 3,200 bytes", ""),
        (None, b"", "empty", ""),
        (b"\xff\n", b"\xfe\n", "", "@@ -1,1 +1,1 @@\n-\\xff\n+\\xfe"),
        (b"a\n", b"a", "", "@@ -1,1 +1,1 @@\n-a\n+a\n\\ No newline at end of file"),
        (b"a\n", None, "", "@@ -1,1 +0,0 @@\n-a"),
    ],
)
def test_what_is_not_a_line_is_told_in_a_note(before: bytes | None, after: bytes | None, note: str, diff: str) -> None:
    change = compare_contents("f", before, after, OPEN)
    assert (change.note, change.diff) == (note, diff)


def test_a_mode_that_changed_is_noted() -> None:
    change = compare_contents("f", b"a", b"a", OPEN, modes=(0o644, 0o755))
    assert (change.kind, change.note, change.added) == ("changed", "mode 644 → 755", 0)
