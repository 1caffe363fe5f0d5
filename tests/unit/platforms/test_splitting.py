"""Long answers are cut at good places, completely, and always at the same ones."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.platforms.splitting import split

MARKER = re.compile(r"^[ \t]*(`{3,}|~{3,})", re.MULTILINE)
FENCE_LINE = re.compile(r"^[ \t]*(?:`{3,}|~{3,}).*$", re.MULTILINE)


def utf16(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def utf8(text: str) -> int:
    return len(text.encode())


lengths = st.sampled_from([len, utf16, utf8])
words = st.sampled_from(["a", "word", "end.", "Wow!", "x" * 30, "😀", "👩‍👩‍👧", "好。好", "`code`", "**bold**"])
prose = st.lists(words, min_size=1, max_size=12).map(" ".join)
code = st.lists(st.sampled_from(["x = 1", "    return y", "", "z" * 50]), max_size=8).map("\n".join)


def fenced(marker: str, language: str, body: str) -> str:
    return f"{marker}{language}\n{body}\n{marker}"


markers = st.sampled_from(["```", "~~~", "````"])
fences = st.builds(fenced, markers, st.sampled_from(["", "python", "c++ title=x"]), code)
markdown = st.lists(prose | fences, max_size=8).flatmap(
    lambda blocks: st.sampled_from(["\n\n", "\n"]).map(lambda gap: gap.join(blocks))
)
anything = markdown | st.text("`~ab. \n\té́🇩👍\u200d", max_size=200) | st.text(max_size=200)


def signs(text: str) -> str:
    """What must not be lost: all but blank space and fences."""
    return "".join(FENCE_LINE.sub("", text).split())


@given(anything, st.integers(20, 120), lengths)
def test_every_part_fits_and_says_something(text: str, max_chars: int, length: Callable[[str], int]) -> None:
    try:
        parts = split(text, max_chars, length)
    except UnicodeEncodeError:
        return  # half a pair of surrogates: such a text has no length
    assert all(length(part) <= max_chars and part.strip() for part in parts)


@given(anything, anything, st.integers(1, 120))
def test_a_text_that_grows_never_moves_a_cut(text: str, more: str, max_chars: int) -> None:
    before, after = split(text, max_chars), split(text + more, max_chars)
    assert after[: max(0, len(before) - 1)] == before[:-1]
    if len(text.lstrip()) > max_chars:
        assert after[:1] == before[:1]


@given(st.text(max_size=300).filter(lambda text: "```" not in text and "~~~" not in text), st.integers(1, 60))
def test_without_fences_the_parts_are_the_text(text: str, max_chars: int) -> None:
    assert "".join("".join(split(text, max_chars)).split()) == "".join(text.split())


@given(markdown, st.integers(60, 200))
def test_nothing_is_lost_or_reordered_where_fences_are_cut(text: str, max_chars: int) -> None:
    assert "".join(map(signs, split(text, max_chars))) == signs(text)


@given(markdown, st.integers(60, 200))
def test_each_part_has_as_many_fences_that_end_as_begin(text: str, max_chars: int) -> None:
    for part in split(text, max_chars):
        marker = ""
        for found in MARKER.finditer(part):
            marker = found[1] if not marker else "" if found[1].startswith(marker) else marker
        assert not marker, part


@given(st.text("ab é́🇩👍🏽👩\u200d", max_size=200), st.integers(40, 80), st.sampled_from([len, utf16]))
def test_it_is_the_same_whole_or_in_one_part(text: str, max_chars: int, length: Callable[[str], int]) -> None:
    whole = split(text, 10_000, length)
    assert len(whole) == bool(text.strip())
    if length(text) <= max_chars:
        assert split(text, max_chars, length) == whole


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("one two three\n\nfour five six\nseven", ("one two three", "four five six\nseven")),
        ("one two three\nfour five six seven", ("one two three", "four five six seven")),
        ("It is so here. It was so before.", ("It is so here.", "It was so before.")),
        ("He said (so it is.) Then he went.", ("He said (so it is.)", "Then he went.")),
        ("one two three four five", ("one two three four", "five")),
        ("See: https://example.org/x/y", ("See:", "https://example.org/", "x/y")),
        ("好好好好好好好好好好好好。好好好好好好好好好好", ("好好好好好好好好好好好好。", "好好好好好好好好好好")),
        ("exactly twenty signs", ("exactly twenty signs",)),
        ("exactly twenty signs more", ("exactly twenty signs", "more")),
        ("A few words.\n## Head\n\nMore.", ("A few words.", "## Head\n\nMore.")),
        ("one two three:\n\n\n    indented four", ("one two three:", "    indented four")),
    ],
)
def test_it_is_cut_at_the_best_place_that_leaves_no_part_nearly_empty(text: str, parts: tuple[str, ...]) -> None:
    assert split(text, 20) == parts


@pytest.mark.parametrize("text", ["", " ", "\n\n", " \n\t\n ", " " * 100 + "\n" * 100])
def test_blank_text_is_no_message(text: str) -> None:
    assert split(text, 20) == ()


def test_a_fence_that_is_cut_is_closed_and_opened_again_with_its_language() -> None:
    code = "\n".join(f"    line({n})" for n in range(10))
    first, middle, last = split(f"Look:\n\n```python title=x\n{code}\n```\n\nDone.", 80)
    assert first == "Look:\n\n```python title=x\n    line(0)\n    line(1)\n    line(2)\n    line(3)\n```"
    assert middle == "```python\n    line(4)\n    line(5)\n    line(6)\n    line(7)\n    line(8)\n```"
    assert last == "```python\n    line(9)\n```\n\nDone."


def test_a_fence_that_ends_at_the_cut_is_not_opened_again() -> None:
    code = "\n".join(["x = 1"] * 8)
    parts = split(f"```py\n{code}\n```\nThat was it.", 60)
    assert parts == (f"```py\n{code}\n```", "That was it.")
    parts = split(f"```py\n{code}\n```" + " " * 40 + "\nThat was it.", 60)
    assert parts == (f"```py\n{code}\n```", "That was it.")


def test_no_part_is_an_empty_fence() -> None:
    parts = split("```python\n" + "x" * 100, 40)
    assert len(parts) > 1
    assert all("x" in part for part in parts)


def test_it_is_rather_cut_before_a_fence_than_in_it() -> None:
    text = "Some words that come before it.\n\n```\na = 1\nb = 2\n```"
    assert split(text, 50) == ("Some words that come before it.", "```\na = 1\nb = 2\n```")


def test_a_longer_fence_keeps_a_shorter_one_in_it_together() -> None:
    text = "````md\n```\n" + "text of it\n" * 8 + "```\n````"
    for part in split(text, 60):
        assert part.startswith("````md\n")
        assert part.endswith("\n````")


@pytest.mark.parametrize(
    "sign", ["👩\u200d👩\u200d👧", "🇩🇪", "e\u0301\u0302", "👍🏽", "\ud83d\ude00", "\u1112\u1161\u11ab"]
)
def test_what_people_see_as_one_sign_is_not_torn(sign: str) -> None:
    for shift in range(len(sign)):
        parts = split("x" * shift + sign * 40, 50)
        assert len(parts) > 1
        assert all(part.strip("x").replace(sign, "") == "" for part in parts)


def test_a_megabyte_without_a_space_asks_for_the_length_of_little() -> None:
    counted = 0

    def length(text: str) -> int:
        nonlocal counted
        counted += len(text)
        return utf16(text)

    text = "😀x" * 500_000
    assert "".join(split(text, 2_000, length)) == text
    assert counted < 40 * len(text)
