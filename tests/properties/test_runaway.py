"""An answer without end is noticed, whatever it repeats and however it comes; one that only looks like it is not."""

import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from talaria.agent.model_call import (
    LEAST_CHARS,
    LONGEST_PASSAGE,
    LOOK_EVERY_CHARS,
    REPEATED_CHARS,
    RunawayWatch,
    max_chars,
    period,
)
from talaria.core.events import TextDelta, ThinkingDelta
from talaria.core.ids import SessionId
from talaria.providers.base import Delta, Endpoint, ModelRequest
from talaria.providers.message_history import History

PROSE = st.text(string.ascii_letters + " .,\n", min_size=1, max_size=400)


def by_hand(text: str, longest: int) -> int | None:
    """The definition, character by character."""
    for length in range(1, min(longest, len(text) // 2) + 1):
        if all(text[at] == text[at - length] for at in range(length, len(text))):
            return length
    return None


@given(passage=st.text("ab", min_size=1, max_size=6), count=st.integers(1, 9), rest=st.text("ab", max_size=4))
@example("aab", 4, "a")
@example("ab", 3, "b")
def test_the_period_is_that_of_its_definition(passage: str, count: int, rest: str) -> None:
    text = passage * count + rest
    for longest in (3, 5, 100):
        assert period(text, longest) == by_hand(text, longest)


def chars_until_stopped(text: str, chunk: int, kind: type[Delta] = TextDelta) -> int | None:
    watch = RunawayWatch(max_chars=10 * len(text))
    for at in range(0, len(text), chunk):
        if watch.add(kind(text[at : at + chunk])) is not None:
            return at + chunk
    return None


@pytest.mark.parametrize("kind", [TextDelta, ThinkingDelta])
@given(before=PROSE, passage=PROSE, chunk=st.integers(50, 5_000))
@settings(max_examples=25)
def test_a_passage_over_and_over_is_noticed_soon(kind: type[Delta], before: str, passage: str, chunk: int) -> None:
    again = passage * (2 * REPEATED_CHARS // len(passage) + 1)
    stopped_at = chars_until_stopped(before + again, chunk, kind)
    assert stopped_at is not None
    assert stopped_at <= len(before) + REPEATED_CHARS + LOOK_EVERY_CHARS + chunk


def test_the_longest_passage_is_noticed_too() -> None:
    passage = "".join(f"{number} " for number in range(2_000))[:LONGEST_PASSAGE]
    assert chars_until_stopped(passage * 8, 100) is not None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("| 0 | 0 | 0 | no |\n" * 900, id="a table with equal rows"),
        pytest.param("#" * 79 + "\n" + ("#" + " " * 77 + "#\n") * 200, id="a drawing"),
        pytest.param("    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,\n" * 300, id="an array of zeros"),
        pytest.param("".join(f"{n}. Check the value.\n" for n in range(9_000)), id="a numbered list"),
        pytest.param("".join(f"INSERT INTO t VALUES ({n}, 'x');\n" for n in range(9_000)), id="many statements"),
        pytest.param(("-" * 9_000 + "\nA heading\n") * 9, id="long rules with words between"),
    ],
)
def test_what_is_regular_is_not_taken_for_it(text: str) -> None:
    assert chars_until_stopped(text, 37) is None


@settings(max_examples=25)
@given(text=st.text("ab \n", max_size=300), head=st.integers(0, REPEATED_CHARS // 4))
def test_a_short_answer_is_never_stopped(text: str, head: int) -> None:
    assert chars_until_stopped(("ab" * head + text)[: REPEATED_CHARS - 1], 50) is None


@pytest.mark.parametrize(
    ("asked", "endpoint_limit", "window", "allowed"),
    [
        (None, 64_000, 200_000, 16 * 64_000),
        (32_000, 64_000, 200_000, 16 * 32_000),
        (None, None, 100_000, 16 * 100_000),
        (20, None, None, LEAST_CHARS),
        (None, None, None, 8_000_000),
    ],
)
def test_an_answer_may_be_far_longer_than_its_limit_and_not_without_end(
    asked: int | None, endpoint_limit: int | None, window: int | None, allowed: int
) -> None:
    endpoint = Endpoint("p", "m", "http://h", "openai_chat", max_output=endpoint_limit, window=window)
    assert max_chars(ModelRequest("", (), History([]), SessionId("s"), max_output=asked), endpoint) == allowed


def test_an_answer_is_stopped_at_its_greatest_length() -> None:
    watch = RunawayWatch(max_chars=10)
    assert watch.add(ThinkingDelta("12345")) is None
    assert watch.add(TextDelta("67890")) is None
    assert watch.add(TextDelta("1")) == "has written 11 characters, which is more than it should be able to"
