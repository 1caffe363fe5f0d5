"""Events: what people are shown while a turn runs. Losing one loses nothing, because the journal has the facts."""

import msgspec

from talaria.core.entries import TurnOutcome
from talaria.core.ids import CallId, SessionId, TurnId
from talaria.core.messages import Assistant, ToolResult, Usage
from talaria.core.questions import ModelQuestion, Question


class TurnBegan(msgspec.Struct, frozen=True, tag="turn_began"):
    session: SessionId
    turn: TurnId
    model: str
    window: int | None = None
    """The model's context, in tokens; it counts as full from `compact_at` on."""
    compact_at: int | None = None


class RouteSwitched(msgspec.Struct, frozen=True, tag="route_switched"):
    """The turn continues with another model, whose window counts now."""

    before: str
    model: str
    reason: str
    window: int | None = None
    compact_at: int | None = None


class TextDelta(msgspec.Struct, frozen=True, tag="text"):
    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag="thinking"):
    text: str


class AnswerRestarted(msgspec.Struct, frozen=True, tag="restarted"):
    """What was streamed of this answer is void: the model is asked again."""

    reason: str


class ToolBegan(msgspec.Struct, frozen=True, tag="tool_began"):
    call: CallId
    name: str
    arguments: str


class ToolOutput(msgspec.Struct, frozen=True, tag="tool_output"):
    """The last lines that a running command printed; emitted at most a few times per second."""

    call: CallId
    tail: str


class ToolEnded(msgspec.Struct, frozen=True, tag="tool_ended"):
    result: ToolResult
    seconds: float


class Notice(msgspec.Struct, frozen=True, tag="notice"):
    text: str


class RoundEnded(msgspec.Struct, frozen=True, tag="round"):
    """One model call has ended."""

    message: Assistant


class QuestionAsked(msgspec.Struct, frozen=True, tag="question"):
    """The turn waits for an answer of a person."""

    question: Question | ModelQuestion


class QuestionClosed(msgspec.Struct, frozen=True, tag="question_closed"):
    id: str
    outcome: str
    """What was answered, in a few words."""
    by: str = ""
    """Who answered; empty: nobody."""
    surface: str = ""
    """Where: `terminal`, `telegram`."""

    @property
    def sentence(self) -> str:
        return f"{self.outcome} (answered by {self.by}, {self.surface})" if self.by else self.outcome


class TurnDone(msgspec.Struct, frozen=True, tag="turn_done"):
    turn: TurnId
    outcome: TurnOutcome
    text: str
    usage: Usage
    error: str = ""
    model: str = ""
    """The model that answered, or was asked last."""


Event = (
    TurnBegan
    | RouteSwitched
    | TextDelta
    | ThinkingDelta
    | AnswerRestarted
    | ToolBegan
    | ToolOutput
    | ToolEnded
    | Notice
    | RoundEnded
    | QuestionAsked
    | QuestionClosed
    | TurnDone
)
