"""Markdown cut into blocks as it comes."""

from hypothesis import given
from hypothesis import strategies as st

from talaria.cli.screen.painting import LONG_CODE_LINES, BlockSplitter, MarkdownBlock


def cut(*pieces: str) -> list[str]:
    blocks = BlockSplitter()
    found = [block for piece in pieces for block in blocks.add(piece)]
    return [block.text for block in (*found, *blocks.end())]


def test_paragraphs_end_at_an_empty_line() -> None:
    assert cut("One\nand on.\n\nTwo.\n") == ["One\nand on.", "Two."]


def test_a_block_is_open_until_the_next_one_begins() -> None:
    blocks = BlockSplitter()
    assert blocks.add("One.\n\n") == []
    assert blocks.rest == "One."
    assert blocks.add("Tw") == [MarkdownBlock("One.")]
    assert blocks.add("o\n") == []
    assert blocks.rest == "Two"


def test_parts_of_a_list_that_are_set_in_stay_with_it() -> None:
    assert cut("- one\n\n  more of it\n\n- two\n") == ["- one\n\n  more of it", "- two"]


def test_code_is_a_block_with_its_empty_lines() -> None:
    assert cut("Look:\n```python\na = 1\n\nb = 2\n```\nDone.\n") == ["Look:", "```python\na = 1\n\nb = 2\n```", "Done."]


def test_code_ends_only_with_a_fence_as_long_as_its_own() -> None:
    assert cut("````\n```\ninside\n```\n````\nDone.\n") == ["````\n```\ninside\n```\n````", "Done."]


def test_inline_code_is_no_fence() -> None:
    assert cut("```not``` a fence\n\nDone.\n") == ["```not``` a fence", "Done."]


def test_long_code_is_shown_in_pieces_that_belong_together() -> None:
    lines = [f"line {number}" for number in range(LONG_CODE_LINES * 2)]
    blocks = BlockSplitter()
    pieces = [*blocks.add("```c\n" + "\n".join(lines) + "\n```\n"), *blocks.end()]
    assert [piece.goes_on for piece in pieces] == [True, True, False]
    shown = [line for piece in pieces for line in piece.text.split("\n") if not line.startswith("```")]
    assert shown == lines
    assert all(piece.text.startswith("```c\n") and piece.text.endswith("\n```") for piece in pieces)


def test_what_was_ended_is_gone() -> None:
    blocks = BlockSplitter()
    blocks.add("```\nhalf a")
    assert blocks.end() == [MarkdownBlock("```\nhalf a")]
    assert blocks.rest == ""
    assert blocks.add("Anew.\n\nx\n") == [MarkdownBlock("Anew.")]


@given(
    st.lists(st.sampled_from(["a", "\n", "\n\n", "```", "~~~", "- ", "  ", "`", "|", "b c"]), max_size=60), st.data()
)
def test_wherever_a_text_is_cut_its_blocks_are_the_same(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    assert cut(*pieces) == cut(text)


@given(st.text(alphabet="ab`~\n -", max_size=200).filter(lambda text: text.count("\n") < LONG_CODE_LINES))
def test_no_line_is_lost(text: str) -> None:
    shown = [line for block in cut(text) for line in block.split("\n") if line.strip()]
    said = [line for line in text.split("\n") if line.strip()]
    assert shown == said
