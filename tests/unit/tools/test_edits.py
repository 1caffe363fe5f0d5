"""Laws of edits, diffs and texts."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.core.errors import ToolFailed
from talaria.tools.builtin.edits import Edit, apply_edits
from talaria.tools.diffs import MAX_DIFF_LINES, format_unified_diff
from talaria.tools.file_content import TextFile, decode_text

LINES = st.lists(st.sampled_from(["a", "b", "  a", "\ta", "a ", "", "}", "é", "a b", "a  b", "\udce9"]), max_size=6)
TEXTS = st.builds("\n".join, LINES) | st.text("ab \n\t", max_size=12)
EDITS = st.builds(Edit, TEXTS, TEXTS, st.booleans())


def reference(text: str, edits: list[Edit]) -> str | None:
    """What literal edits make of it; None where one is not clear, or does not stand there literally."""
    for edit in edits:
        places = [at for at in range(len(text)) if edit.old and text.startswith(edit.old, at)]
        if not places or (len(places) > 1 and not edit.all):
            return None
        text = text.replace(edit.old, edit.new)
    return text


@settings(max_examples=1_000, deadline=None)
@given(TEXTS, st.lists(EDITS, min_size=1, max_size=3))
def test_exact_edits_are_what_replacing_one_after_the_other_makes(text: str, edits: list[Edit]) -> None:
    expected = reference(text, edits)
    try:
        done = apply_edits(text, edits, "x")
    except ToolFailed:
        assert expected is None
        return
    if done.is_exact:
        assert done.text == expected
    else:
        assert expected is None


@settings(max_examples=1_000, deadline=None)
@given(TEXTS, TEXTS, TEXTS)
def test_edit_without_regard_to_white_space_changes_only_lines_that_are_alike(text: str, old: str, new: str) -> None:
    try:
        done = apply_edits(text, [Edit(old, new)], "x")
    except ToolFailed:
        return
    if done.is_exact:
        return
    before, after = text.split("\n"), done.text.split("\n")
    count = len(old.removesuffix("\n").split("\n"))
    candidates = [
        at
        for at in range(len(before) - count + 1)
        if ["".join(line.split()) for line in before[at : at + count]]
        == ["".join(line.split()) for line in old.removesuffix("\n").split("\n")]
    ]
    kept = [
        at
        for at in candidates
        if after[:at] == before[:at] and (not before[at + count :] or _ends_alike(before[at + count :], after))
    ]
    assert kept, (before, after)


def _ends_alike(tail: list[str], lines: list[str]) -> bool:
    """The line behind the change may have been joined with its end."""
    return lines[len(lines) - len(tail) + 1 :] == tail[1:] and lines[-len(tail)].endswith(tail[0])


@given(
    st.binary(max_size=60)
    | st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\r\n", b"\xef\xbb\xbf", b"\xe9"])).map(b"".join)
)
def test_any_bytes_come_back_as_they_were(content: bytes) -> None:
    assert decode_text(content).encode() == content


@given(st.lists(st.sampled_from(["a", "b c", ""]), min_size=2, max_size=6), st.booleans())
def test_line_ends_and_mark_of_a_file_survive_a_new_text(lines: list[str], has_bom: bool) -> None:
    before = decode_text(("\ufeff" * has_bom + "x\r\ny\r\n").encode())
    becomes = decode_text("\n".join(lines).encode()).like(before).encode()
    assert becomes == ("\ufeff" * has_bom + "\r\n".join(lines)).encode()


WORDS = st.lists(st.sampled_from(["a", "b", "c", "", "x"]), max_size=30).map("\n".join)


@settings(max_examples=500, deadline=None)
@given(WORDS, WORDS)
def test_diff_leads_from_one_text_to_the_other(before: str, after: str) -> None:
    assert applied(before, format_unified_diff(before, after, "file")) == after


def applied(before: str, diff: str) -> str:
    """What a program for patches makes of it."""
    left, made, at = before.split("\n"), list[str](), 0
    ending = left.pop()
    if ending:
        left.append(f"{ending}\n\\ No newline at end of file")
    for line in diff.replace("\n\\ No", "\r\\ No").split("\n")[2:]:
        text = line[1:].replace("\r", "\n")
        if hunk := re.match(r"@@ -(\d+),(\d+) ", line):
            start = int(hunk[1]) - (1 if int(hunk[2]) else 0)
            made += left[at:start]
            at = start
        elif line[0] in " -":
            assert left[at] == text
            at += 1
        if line[0] in " +":
            made.append(text)
    return "".join(f"{line}\n" for line in made + left[at:]).replace("\n\\ No newline at end of file\n", "")


def test_long_diff_is_cut_and_says_how_much_is_missing() -> None:
    before = "\n".join(f"line {number}" for number in range(1_000)) + "\n"
    diff = format_unified_diff(before, before.replace("line", "row"), "a.txt").split("\n")
    assert len(diff) == MAX_DIFF_LINES + 3
    assert diff[-1] == "[… 1,801 more lines of this diff]"


def test_diff_of_a_huge_change_is_a_sentence() -> None:
    before = "\n".join(map(str, range(30_000)))
    assert (
        format_unified_diff(before, before.replace("1", "one"), "a.txt")
        == "[lines 1 to 29995 of a.txt became 29,995 others]"
    )


def test_lines_of_a_diff_have_the_numbers_of_the_file() -> None:
    before = "".join(f"{number}\n" for number in range(1, 1_001))
    diff = format_unified_diff(before, before.replace("\n500\n", "\nfive\n"), "a.txt")
    assert diff.split("\n")[2:] == [
        "@@ -497,7 +497,7 @@",
        " 497",
        " 498",
        " 499",
        "-500",
        "+five",
        " 501",
        " 502",
        " 503",
    ]


def test_text_says_its_line_ends_only_if_all_are_the_same() -> None:
    assert decode_text(b"a\r\nb\r\n") == TextFile("a\nb\n", has_crlf=True)
    assert decode_text(b"a\r\nb\n") == TextFile("a\r\nb\n")
    assert decode_text(b"a\rb") == TextFile("a\rb")
