"""One turn as programs read it: what its session's watchers are told becomes a sequence of outputs without repeats,
whoever runs the turn, and however often the watcher has to begin again."""

from collections.abc import Iterator
from typing import Literal

import msgspec

from talaria.core.entries import MessageAdded, TurnEnded, TurnStarted
from talaria.core.errors import LimitName
from talaria.core.events import (
    AnswerRestarted,
    Event,
    QuestionAsked,
    QuestionClosed,
    TextDelta,
    ThinkingDelta,
    ToolBegan,
    ToolEnded,
    ToolOutput,
)
from talaria.core.ids import CallId, TurnId
from talaria.core.messages import NO_USAGE, Assistant, StopReason, ToolResult, Usage
from talaria.core.questions import ModelQuestion, Question
from talaria.runtime.live_socket import Live, Settled
from talaria.runtime.turn_runner import text_shown_of
from talaria.runtime.watching import Restarted, Watched

Outcome = Literal["completed", "interrupted", "failed", "dropped"]


class Began(msgspec.Struct, frozen=True):
    at: float


class TextAdded(msgspec.Struct, frozen=True):
    text: str


class TextVoid(msgspec.Struct, frozen=True):
    """The text since the last `TextDone` is no longer part of the answer, which begins again."""


class TextDone(msgspec.Struct, frozen=True):
    """A whole text of the model: the answer, or what it said before it called tools."""

    text: str


class ThinkingAdded(msgspec.Struct, frozen=True):
    text: str


class CallBegan(msgspec.Struct, frozen=True):
    call: CallId
    name: str
    arguments: str


class CallPrinted(msgspec.Struct, frozen=True):
    call: CallId
    tail: str


class CallDone(msgspec.Struct, frozen=True):
    result: ToolResult


class Asked(msgspec.Struct, frozen=True):
    question: Question | ModelQuestion


class Answered(msgspec.Struct, frozen=True):
    closed: QuestionClosed


class OutputEnded(msgspec.Struct, frozen=True):
    outcome: Outcome
    """`dropped`: before it began."""
    usage: Usage = NO_USAGE
    error: str = ""
    limit: LimitName = ""
    stop: StopReason = "end"
    at: float = 0.0


Output = (
    Began
    | TextAdded
    | TextVoid
    | TextDone
    | ThinkingAdded
    | CallBegan
    | CallPrinted
    | CallDone
    | Asked
    | Answered
    | OutputEnded
)


class _GrowingText:
    """What is being written, of which we may be told again what we have passed on."""

    def __init__(self) -> None:
        self.said: str = ""
        """What we have passed on."""
        self._told: str = ""
        """What we were told since we began to watch, or began again."""

    def add(self, text: str) -> tuple[bool, str]:
        """Whether what was passed on is void, and what to pass on now."""
        if len(self._told) == len(self.said):
            self.said = self._told = self._told + text
            return False, text
        self._told += text  # we were told some of it before
        if self.said.startswith(self._told):
            return False, ""
        is_void = not self._told.startswith(self.said)
        rest = self._told if is_void else self._told[len(self.said) :]
        self.said = self._told
        return is_void, rest

    def tell_again(self) -> None:
        """From its beginning."""
        self._told: str = ""

    def clear(self) -> None:
        self.said = self._told = ""


class TurnReader:
    """Reads what watchers are told of one turn."""

    def __init__(self, turn: TurnId) -> None:
        self._turn = turn
        self.has_begun = False
        self._text = _GrowingText()
        self._thinking = _GrowingText()
        self._calls: dict[CallId, bool] = {}
        """Those that have begun, and whether they are done."""
        self._questions: dict[str, bool] = {}
        """Those that were asked, and whether they are closed."""
        self._stop: StopReason = "end"

    def read(self, one: Watched) -> Iterator[Output]:
        match one:
            case Settled(recorded):
                entry = recorded.entry
                if isinstance(entry, TurnStarted):
                    self.has_begun = entry.turn == self._turn
                    if self.has_begun:
                        yield Began(recorded.at)
                elif not self.has_begun:
                    return
                elif isinstance(entry, MessageAdded):
                    yield from self._read_message(entry)
                elif isinstance(entry, TurnEnded) and entry.turn == self._turn:
                    yield OutputEnded(entry.outcome, entry.usage, entry.error, entry.limit, self._stop, recorded.at)
            case Live(_, _, event) if self.has_begun:
                yield from self._read_event(event)
            case Restarted():
                self._text.tell_again()
                self._thinking.tell_again()
            case _:
                pass

    def _read_event(self, event: Event) -> Iterator[Output]:
        match event:
            case TextDelta(text):
                yield from self._tell(text)
            case ThinkingDelta(text):
                _, new = self._thinking.add(text)
                if new:
                    yield ThinkingAdded(new)
            case AnswerRestarted():
                yield from self._void()
            case ToolBegan(call, name, arguments):
                yield from self._begin(call, name, arguments)
            case ToolOutput(call, tail):
                yield CallPrinted(call, tail)
            case ToolEnded(result):
                yield from self._finish(result)
            case QuestionAsked(question) if question.id not in self._questions:
                self._questions[question.id] = False
                yield Asked(question)
            case QuestionClosed(question) if not self._questions.get(question, False):
                self._questions[question] = True
                yield Answered(event)
            case _:
                pass

    def _read_message(self, entry: MessageAdded) -> Iterator[Output]:
        match entry.message:
            case Assistant() as message:
                self._stop = message.stop
                text = text_shown_of(message)
                if not text.startswith(self._text.said):
                    yield from self._void()
                if rest := text[len(self._text.said) :]:
                    yield TextAdded(rest)
                self._text.clear()
                self._thinking.clear()
                if text:
                    yield TextDone(text)
                for call in message.calls:
                    yield from self._begin(call.id, call.name, call.arguments)
            case ToolResult() as result:
                yield from self._finish(result)
            case _:
                pass

    def _tell(self, text: str) -> Iterator[Output]:
        is_void, new = self._text.add(text)
        if is_void:
            yield TextVoid()
        if new:
            yield TextAdded(new)

    def _void(self) -> Iterator[Output]:
        if self._text.said:
            yield TextVoid()
        self._text.clear()
        self._thinking.clear()

    def _begin(self, call: CallId, name: str, arguments: str) -> Iterator[Output]:
        if call not in self._calls:
            self._calls[call] = False
            yield CallBegan(call, name, arguments)

    def _finish(self, result: ToolResult) -> Iterator[Output]:
        if not self._calls.get(result.call_id, False):
            self._calls[result.call_id] = True
            yield CallDone(result)
