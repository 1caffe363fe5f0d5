"""What a pipe gets of an answer, and when."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.cli.answer_view import NOT_YET, VOID, PipedAnswer
from talaria.core.entries import TurnOutcome
from talaria.core.events import AnswerRestarted, Event, RoundEnded, TextDelta
from talaria.core.ids import CallId, SessionId, TurnId
from talaria.core.messages import Assistant, Text, ToolCall
from talaria.core.usage import NO_USAGE
from talaria.runtime.turn_runner import Report

AGAIN = AnswerRestarted("It broke off.")
CALLS = RoundEnded(Assistant((ToolCall(CallId("c"), "list_files", "{}"),), "calls"))


def report(text: str, outcome: TurnOutcome = "completed") -> Report:
    return Report(SessionId("s"), TurnId("t"), outcome, text, NO_USAGE, "p:m")


def whole(text: str) -> RoundEnded:
    return RoundEnded(Assistant((Text(text),)))


def printed(events: list[Event | str], text: str, outcome: TurnOutcome = "completed") -> str:
    """Strings are text that comes."""
    out = io.StringIO()
    answer = PipedAnswer(out)
    for event in events:
        answer.show(TextDelta(event) if isinstance(event, str) else event)
    answer.finish(report(text, outcome))
    return out.getvalue()


@given(pieces=st.lists(st.text("ab\n", max_size=5)))
def test_at_the_end_it_is_the_answer_and_a_line_break(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert printed([*pieces, whole(text)], text) == f"{text}\n"


@given(first=st.text("ab\n", max_size=8), second=st.text("ab\n", max_size=8))
def test_an_answer_that_is_given_again_ends_with_the_whole_of_it(first: str, second: str) -> None:
    got = printed([first, AGAIN, second, whole(second)], second)
    lines = first[: first.rfind("\n") + 1]
    assert got == (f"{second}\n" if second.startswith(lines) else f"{lines}{second}\n")


def test_a_line_is_there_once_it_is_complete_and_a_long_one_before() -> None:
    out = io.StringIO()
    answer = PipedAnswer(out)
    answer.show(TextDelta("one\ntw"))
    assert out.getvalue() == "one\n"
    answer.show(TextDelta("o\n"))
    assert out.getvalue() == "one\ntwo\n"
    answer.show(TextDelta("word " * 300))
    assert out.getvalue() == "one\ntwo\n" + "word " * 300


@pytest.mark.parametrize(
    ("events", "text", "out", "err"),
    [
        (["I look.", CALLS, "Done."], "Done.", "Done.\n", ""),
        (["I look.\nThen", CALLS, "Done."], "Done.", "I look.\nDone.\n", f"{NOT_YET}\n"),
        (["x" * 1_500, CALLS, "Done."], "Done.", "x" * 1_500 + "\nDone.\n", f"{NOT_YET}\n"),
        ([CALLS, whole("Done.")], "Done.", "Done.\n", ""),
        (["one\ntw", AGAIN, "one\ntwo"], "one\ntwo", "one\ntwo\n", ""),
        (["one\ntw", AGAIN, "on", AGAIN, "one\ntwo"], "one\ntwo", "one\ntwo\n", ""),
        (["one\ntw", AGAIN, "uno\ndue"], "uno\ndue", "one\nuno\ndue\n", f"{VOID}\n"),
        (["one\ntwo", whole("one\ntwo"), AGAIN, "three"], "three", "one\nthree\n", f"{VOID}\n"),
        (["one\n", AGAIN, whole("uno")], "uno", "one\nuno\n", f"{VOID}\n"),
        (["Wait.\n", whole("Wait.\n"), "And more."], "And more.", "Wait.\nAnd more.\n", f"{NOT_YET}\n"),
    ],
)
def test_what_turned_out_not_to_be_the_answer_is_told_on_stderr(
    events: list[Event | str], text: str, out: str, err: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(events, text) == out
    assert capsys.readouterr().err == err


@pytest.mark.parametrize(
    ("events", "out"), [(["one\ntw"], "one\ntw\n"), (["tw"], ""), (["one\n"], "one\n"), (["one\n", AGAIN], "one\n")]
)
@pytest.mark.parametrize("outcome", ["failed", "interrupted"])
def test_a_turn_without_an_end_leaves_what_was_printed(
    events: list[Event | str], out: str, outcome: TurnOutcome
) -> None:
    assert printed(events, "", outcome) == out
