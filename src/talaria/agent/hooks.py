"""The port for code beside the loop: it hears what happens, and may add to it or object. It never ends a turn."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol

import msgspec

from talaria.core.entries import TurnOutcome
from talaria.core.ids import SessionId, TurnId
from talaria.core.messages import Assistant, Message, ToolCall, ToolResult
from talaria.providers.base import Endpoint
from talaria.tools.base import Tool

Notify = Callable[[str], None]
"""Reaches the person, while the turn runs."""

LeaveReason = Literal["new", "end", "session_expired"]
"""Why a conversation is left: for another, because its surface is closed, because its time is over."""


class SessionContext(msgspec.Struct, frozen=True):
    """Where something happens."""

    session: SessionId
    conversation: str
    platform: str
    person: str
    model: str
    turn: TurnId | None = None


class Block(msgspec.Struct, frozen=True):
    """A call must not run; `message` is for the model."""

    message: str


class Doubt(msgspec.Struct, frozen=True):
    """A call runs only if a person says so."""

    message: str


class Change(msgspec.Struct, frozen=True):
    """A call runs with other arguments: a JSON object."""

    arguments: str


Objection = Block | Doubt | Change


class Equipment(msgspec.Struct, frozen=True):
    """What a conversation begins with besides its own."""

    tools: tuple[Tool, ...] = ()
    prompt: str = ""
    """For the system prompt."""


class Hooks(Protocol):
    @property
    def is_empty(self) -> bool:
        """Nothing is ever called: a turn may then be started and ended together with the session's lease."""
        ...

    @property
    def wants_results(self) -> bool:
        """Whether any hook hears results of tools; else nothing is waited for."""
        ...

    async def equip(self, context: SessionContext) -> Equipment:
        """Before the first turn of a live session."""
        ...

    async def session_left(
        self, context: SessionContext, messages: Sequence[Message], successor: SessionId | None, reason: LeaveReason
    ) -> None: ...

    async def before_turn(
        self, context: SessionContext, asked: str, history: Sequence[Message], tell: Notify
    ) -> Sequence[str]:
        """What the model shall read besides the message. An empty history: a new conversation."""
        ...

    async def after_turn(
        self, context: SessionContext, asked: str, answer: str, history: Sequence[Message], outcome: TurnOutcome
    ) -> None: ...

    async def revise(self, context: SessionContext, text: str) -> str:
        """The final answer as the person shall read it."""
        ...

    async def before_request(
        self, context: SessionContext, endpoint: Endpoint, messages: Iterable[Message]
    ) -> None: ...

    async def after_request(
        self, context: SessionContext, endpoint: Endpoint, answer: Assistant, seconds: float
    ) -> None: ...

    async def request_failed(self, context: SessionContext, endpoint: Endpoint, failure: Exception) -> None: ...

    async def before_call(self, context: SessionContext, call: ToolCall) -> Objection | None: ...

    async def after_call(
        self, context: SessionContext, call: ToolCall, result: ToolResult, seconds: float
    ) -> ToolResult:
        """The result as the model shall read it."""
        ...

    async def before_compaction(self, context: SessionContext, messages: Sequence[Message]) -> str:
        """What a summary must not lose."""
        ...


class NoHooks:
    """No hooks are installed."""

    is_empty = True
    wants_results = False

    async def equip(self, context: SessionContext) -> Equipment:  # noqa: ARG002
        return Equipment()

    async def session_left(
        self, context: SessionContext, messages: Sequence[Message], successor: SessionId | None, reason: LeaveReason
    ) -> None: ...

    async def before_turn(
        self,
        context: SessionContext,  # noqa: ARG002
        asked: str,  # noqa: ARG002
        history: Sequence[Message],  # noqa: ARG002
        tell: Notify,  # noqa: ARG002
    ) -> Sequence[str]:
        return ()

    async def after_turn(
        self, context: SessionContext, asked: str, answer: str, history: Sequence[Message], outcome: TurnOutcome
    ) -> None: ...

    async def revise(self, context: SessionContext, text: str) -> str:  # noqa: ARG002
        return text

    async def before_request(
        self, context: SessionContext, endpoint: Endpoint, messages: Iterable[Message]
    ) -> None: ...

    async def after_request(
        self, context: SessionContext, endpoint: Endpoint, answer: Assistant, seconds: float
    ) -> None: ...

    async def request_failed(self, context: SessionContext, endpoint: Endpoint, failure: Exception) -> None: ...

    async def before_call(self, context: SessionContext, call: ToolCall) -> Objection | None: ...

    async def after_call(
        self,
        context: SessionContext,  # noqa: ARG002
        call: ToolCall,  # noqa: ARG002
        result: ToolResult,
        seconds: float,  # noqa: ARG002
    ) -> ToolResult:
        return result

    async def before_compaction(self, context: SessionContext, messages: Sequence[Message]) -> str:  # noqa: ARG002
        return ""
