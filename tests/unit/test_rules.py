"""The rules of a transcript see what they are there for."""

import pytest
from tests.rules import transcript_problems

from talaria.core.ids import CallId
from talaria.core.messages import Assistant, Message, Text, ToolCall, ToolResult, user

QUESTION, ANSWER, HOST = user("Well?"), Assistant((Text("Yes."),)), user("Sum up.", author="host")
CALLS = Assistant((ToolCall(CallId("a"), "x", "{}"),), "calls")
RESULT = ToolResult(CallId("a"), "x", "done")
INTERRUPTED = Assistant((Text("[interrupted]"),), "interrupted")


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [QUESTION, ANSWER],
        [QUESTION, CALLS, RESULT, HOST, ANSWER],
        [QUESTION, HOST, ANSWER],
        [QUESTION, CALLS, RESULT, INTERRUPTED, QUESTION, ANSWER],
    ],
)
def test_what_endpoints_take_has_no_problems(messages: list[Message]) -> None:
    assert transcript_problems(messages) == []


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([QUESTION, HOST, HOST, ANSWER], "two notes of the host in a row"),
        ([QUESTION, INTERRUPTED, RESULT, ANSWER], "a result behind an interrupted answer"),
        (
            [QUESTION, Assistant(CALLS.parts, "interrupted"), RESULT, ANSWER],
            "a result behind an interrupted answer",
        ),
        ([QUESTION, QUESTION, ANSWER], "two messages of the person without an answer between them"),
        ([QUESTION, CALLS, ANSWER], "calls without result: ['a']"),
        ([QUESTION, ANSWER, ANSWER], "two answers in a row"),
        ([QUESTION], "the last word is not an answer"),
    ],
)
def test_what_they_would_refuse_is_told(messages: list[Message], problem: str) -> None:
    assert problem in transcript_problems(messages)
