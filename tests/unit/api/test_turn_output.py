"""What programs read of a turn when somebody who watches it is told some things again."""

from collections.abc import Sequence

from talaria.api.turn_output import Answered, Asked, Began, Output, TextAdded, ThinkingAdded, TurnReader
from talaria.core.entries import Recorded, TurnStarted
from talaria.core.events import Event, QuestionAsked, QuestionClosed, TextDelta, ThinkingDelta
from talaria.core.ids import Epoch, TurnId
from talaria.core.questions import ModelQuestion
from talaria.runtime.live_socket import Live, Settled
from talaria.runtime.watching import Restarted

TURN = TurnId("turn")
ASKED = ModelQuestion("which", "Which one?")
CLOSED = QuestionClosed("which", "The first.")


def read(*told: Event | Restarted) -> Sequence[Output]:
    reader = TurnReader(TURN)
    watched = [one if isinstance(one, Restarted) else Live(Epoch(1), at, one) for at, one in enumerate(told, 1)]
    started = Settled(Recorded(1, 0.0, TurnStarted(TURN, "platform")))
    began, *outputs = [output for one in (started, *watched) for output in reader.read(one)]
    assert began == Began(0.0)
    return outputs


def test_text_and_thinking_that_are_told_again_are_passed_on_once() -> None:
    told = (ThinkingDelta("a"), ThinkingDelta("b"), TextDelta("x"))
    again = (Restarted(), ThinkingDelta("ab"), TextDelta("x"), TextDelta("y"))
    assert read(*told, *again) == [ThinkingAdded("a"), ThinkingAdded("b"), TextAdded("x"), TextAdded("y")]


def test_more_thinking_than_was_passed_on_is_passed_on() -> None:
    assert read(ThinkingDelta("a"), Restarted(), ThinkingDelta("abc")) == [ThinkingAdded("a"), ThinkingAdded("bc")]


def test_a_question_is_asked_and_answered_once() -> None:
    told = (QuestionAsked(ASKED), Restarted(), QuestionAsked(ASKED), CLOSED, Restarted(), CLOSED)
    assert read(*told) == [Asked(ASKED), Answered(CLOSED)]
