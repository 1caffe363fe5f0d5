"""What fits on a line: widths, the status, folded pastes, tool calls."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.cli.screen.line_input import MAX_PASTED_LINES, Pastes
from talaria.cli.screen.rendering import StatusLine
from talaria.cli.screen.turn_view import ToolCallLines, find_diff, summarise_arguments
from talaria.cli.screen.width import cut, width, wrap, wrap_words
from talaria.core.ids import CallId
from talaria.core.messages import ToolResult


@given(st.text(alphabet="ab 漢字🌞é", max_size=40), st.integers(1, 30))
def test_nothing_is_wider_than_it_may_be(text: str, columns: int) -> None:
    assert width(cut(text, columns)) <= columns
    assert all(width(line) <= max(columns, 2) for line in wrap(text, columns))
    assert "".join(wrap(text, columns)) == text


def test_words_are_not_broken_where_they_need_not() -> None:
    assert wrap_words("one two three\nfour", 8) == "one two\nthree\nfour"
    assert wrap_words("  set in", 20) == "  set in"
    assert wrap_words("x" * 12, 8) == "x" * 12


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (120, "llama-4-maverick-17b-instruct:free · 42% context · $0.12 · 日本の庭の話 · sandbox strict · 2 queued"),
        (90, "llama-4-maverick-17b-instruct:free · 42% context · $0.12 · sandbox strict · 2 queued"),
        (80, "llama-4-maverick-17b-instruct… · 42% context · $0.12 · sandbox strict · 2 queued"),
        (60, "llama-4-m… · 42% context · $0.12 · sandbox strict · 2 queued"),
        (40, "llama-4-… · 42% context · sandbox strict"),
        (28, "llama-4-maver… · 42% context"),
        (12, "llama-4-mav…"),
    ],
)
def test_the_least_important_leaves_the_status_first(columns: int, line: str) -> None:
    status = StatusLine(
        "openrouter:meta-llama/llama-4-maverick-17b-instruct:free",
        *(42_000, 100_000, "$0.12", "日本の庭の話"),
        session="20260131_120000_0a1b2c3d",
        sandbox="strict",
        waiting=2,
    )
    assert status.render(columns) == line
    assert width(line) <= columns


def test_a_long_title_is_cut_and_an_id_is_not() -> None:
    status = StatusLine(
        "anthropic:claude", 42_000, title="家族" * 20, session="20260131_120000_0a1b2c3d", sandbox="strict"
    )
    assert status.render(80) == f"anthropic:claude · 42,000 tokens · {'家族' * 6}家… · sandbox strict"
    unnamed = status._replace(title="")
    assert unnamed.render(80) == "anthropic:claude · 42,000 tokens · 20260131_120000_0a1b2c3d · sandbox strict"
    assert unnamed.render(70) == "anthropic:claude · 42,000 tokens · sandbox strict"


def test_what_the_level_lacks_leaves_the_status_before_the_level() -> None:
    status = StatusLine("custom:test-model", 15, session="20260131_120000_0a1b2c3d", sandbox="landlock (no network)")
    assert status.render(70) == "custom:test-model · 15 tokens · sandbox landlock (no network)"
    assert status.render(40) == "test-mod… · 15 tokens · sandbox landlock"


def test_large_pastes_are_one_word_and_whole_again_when_sent() -> None:
    pastes = Pastes()
    short, long = "one\ntwo", "\n".join("x" * 3 for _ in range(MAX_PASTED_LINES + 1))
    assert pastes.fold(short) == short
    word = pastes.fold(long)
    assert word == f"[pasted #1: {MAX_PASTED_LINES + 1} lines]"
    other = pastes.fold("y" * 5_000)
    assert other == "[pasted #2: 5,000 characters]"
    assert pastes.unfold(f"look: {word} and {other}!") == f"look: {long} and {'y' * 5_000}!"
    assert pastes.unfold("[pasted #9: 7 lines]") == "[pasted #9: 7 lines]"


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        ('{"command": "ls -l\\n  /tmp", "timeout": 3}', "ls -l /tmp"),
        ('{"path": "a.py", "content": "x"}', "a.py"),
        ('{"a": 1, "b": "two"}', "a=1, b=two"),
        ("[1]", "[1]"),
        ('{"broken', '{"broken'),
        ("", ""),
    ],
)
def test_a_call_is_told_by_what_says_most(arguments: str, about: str) -> None:
    assert summarise_arguments(arguments) == about


def ended(text: str, *, is_error: bool = False) -> ToolCallLines:
    result = ToolResult(CallId("c"), "patch", text, is_error=is_error)
    return ToolCallLines("patch", json.dumps({"path": "a.py"}), result, 0.25)


def test_a_call_that_ended_has_its_time_and_what_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown = ended("Changed a.py.\n--- a.py\n+++ a.py\n@@ -1,1 +1,1 @@\n-old\n+new").render_ended(60)
    plain = shown.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")
    assert plain.split("\n") == ["  ✓ patch  a.py  0.2 s", "    @@ -1,1 +1,1 @@", "    -old", "    +new"]


def test_a_text_without_changes_has_no_diff() -> None:
    assert find_diff("--- nothing\nof the kind") == ""
