"""The port for code beside the loop: it hears what happens, and may add to it or object. It never ends a turn."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol

import msgspec

from talaria.core.entries import TurnOutcome
from talaria.core.ids import SessionId, TurnId
from talaria.core.messages import Assistant, Message, ToolCall, ToolResult
from talaria.providers.base import Endpoint
from talaria.tools.base import Tool

Tell = Callable[[str], None]
"""Reaches the person, while the turn runs."""

Leaving = Literal["new", "end", "session_expired"]
"""Why a conversation is left: for another, because its surface is closed, because its time is over."""


class Facts(msgspec.Struct, frozen=True):
    """Where something happens."""

    session: SessionId
    conversation: str
    platform: str
    person: str
    model: str
    turn: TurnId | None = None


class Block(msgspec.Struct, frozen=True):
    """A call shall not run; `message` is what the model is told."""

    message: str


class Doubt(msgspec.Struct, frozen=True):
    """A call shall run only if a person says so."""

    message: str


class Change(msgspec.Struct, frozen=True):
    """A call shall run with other arguments: a JSON object."""

    arguments: str


Objection = Block | Doubt | Change


class Equipment(msgspec.Struct, frozen=True):
    """What a conversation begins with besides its own."""

    tools: tuple[Tool, ...] = ()
    prompt: str = ""
    """For the system prompt."""


class Hooks(Protocol):
    @property
    def hear_results(self) -> bool:
        """Whether anybody listens to what tools bring; else nobody is waited for."""
        ...

    async def equip(self, facts: Facts) -> Equipment:
        """Before the first turn of a live session."""
        ...

    async def session_left(
        self, facts: Facts, messages: Sequence[Message], successor: SessionId | None, reason: Leaving
    ) -> None: ...

    async def before_turn(self, facts: Facts, asked: str, history: Sequence[Message], tell: Tell) -> Sequence[str]:
        """What the model shall read besides the message. An empty history: a new conversation."""
        ...

    async def after_turn(
        self, facts: Facts, asked: str, answer: str, history: Sequence[Message], outcome: TurnOutcome
    ) -> None: ...

    async def revised(self, facts: Facts, text: str) -> str:
        """The final answer as the person shall read it."""
        ...

    async def before_request(self, facts: Facts, endpoint: Endpoint, messages: Iterable[Message]) -> None: ...

    async def after_request(self, facts: Facts, endpoint: Endpoint, answer: Assistant, seconds: float) -> None: ...

    async def request_failed(self, facts: Facts, endpoint: Endpoint, failure: Exception) -> None: ...

    async def before_call(self, facts: Facts, call: ToolCall) -> Objection | None: ...

    async def after_call(self, facts: Facts, call: ToolCall, result: ToolResult, seconds: float) -> ToolResult:
        """The result as the model shall read it."""
        ...

    async def before_compaction(self, facts: Facts, messages: Sequence[Message]) -> str:
        """What a summary must not lose."""
        ...


class NoHooks:
    """Nobody is there."""

    hear_results = False

    async def equip(self, facts: Facts) -> Equipment:  # noqa: ARG002
        return Equipment()

    async def session_left(
        self, facts: Facts, messages: Sequence[Message], successor: SessionId | None, reason: Leaving
    ) -> None: ...

    async def before_turn(self, facts: Facts, asked: str, history: Sequence[Message], tell: Tell) -> Sequence[str]:  # noqa: ARG002
        return ()

    async def after_turn(
        self, facts: Facts, asked: str, answer: str, history: Sequence[Message], outcome: TurnOutcome
    ) -> None: ...

    async def revised(self, facts: Facts, text: str) -> str:  # noqa: ARG002
        return text

    async def before_request(self, facts: Facts, endpoint: Endpoint, messages: Iterable[Message]) -> None: ...

    async def after_request(self, facts: Facts, endpoint: Endpoint, answer: Assistant, seconds: float) -> None: ...

    async def request_failed(self, facts: Facts, endpoint: Endpoint, failure: Exception) -> None: ...

    async def before_call(self, facts: Facts, call: ToolCall) -> Objection | None: ...

    async def after_call(self, facts: Facts, call: ToolCall, result: ToolResult, seconds: float) -> ToolResult:  # noqa: ARG002
        return result

    async def before_compaction(self, facts: Facts, messages: Sequence[Message]) -> str:  # noqa: ARG002
        return ""
