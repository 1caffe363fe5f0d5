"""The port for code beside the loop: it sees what happens, and may add to it or object. It never ends a turn."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol

import msgspec

from talaria.core.entries import TurnOutcome
from talaria.core.ids import SessionId, TurnId
from talaria.core.messages import Assistant, Message, ToolCall, ToolResult
from talaria.providers.base import Endpoint
from talaria.tools.base import Tool

Notify = Callable[[str], None]
"""Tells the person something while the turn runs."""

LeaveReason = Literal["new", "end", "session_expired"]
"""Why a conversation is left: for another one, because its surface is closed, or because it has expired."""


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
    """What hooks add to a conversation at its beginning."""

    tools: tuple[Tool, ...] = ()
    prompt: str = ""
    """For the system prompt."""


class Hooks(Protocol):
    """What the methods here do is what happens without hooks."""

    @property
    def is_empty(self) -> bool:
        """Nothing is ever called: a turn may then be started and ended together with the session's lease."""
        return True

    @property
    def wants_results(self) -> bool:
        """Whether any hook wants the results of tools; otherwise nobody waits for `after_call`."""
        return False

    async def equip(self, context: SessionContext) -> Equipment:  # noqa: ARG002
        """Before the first turn of a live session."""
        return Equipment()

    async def session_left(
        self, context: SessionContext, messages: Sequence[Message], successor: SessionId | None, reason: LeaveReason
    ) -> None:
        pass

    async def before_turn(
        self,
        context: SessionContext,  # noqa: ARG002
        asked: str,  # noqa: ARG002
        history: Sequence[Message],  # noqa: ARG002
        tell: Notify,  # noqa: ARG002
    ) -> Sequence[str]:
        """What the model should read besides the message. If the history is empty, the conversation is new."""
        return ()

    async def after_turn(
        self, context: SessionContext, asked: str, answer: str, history: Sequence[Message], outcome: TurnOutcome
    ) -> None:
        pass

    async def revise(self, context: SessionContext, text: str) -> str:  # noqa: ARG002
        """The final answer as the person should read it."""
        return text

    async def before_request(self, context: SessionContext, endpoint: Endpoint, messages: Iterable[Message]) -> None:
        pass

    async def after_request(
        self, context: SessionContext, endpoint: Endpoint, answer: Assistant, seconds: float
    ) -> None:
        pass

    async def request_failed(self, context: SessionContext, endpoint: Endpoint, failure: Exception) -> None:
        pass

    async def before_call(self, context: SessionContext, call: ToolCall) -> Objection | None:
        pass

    async def after_call(
        self,
        context: SessionContext,  # noqa: ARG002
        call: ToolCall,  # noqa: ARG002
        result: ToolResult,
        seconds: float,  # noqa: ARG002
    ) -> ToolResult:
        """The result as the model should read it."""
        return result

    async def before_compaction(self, context: SessionContext, messages: Sequence[Message]) -> str:  # noqa: ARG002
        """What a summary must not lose."""
        return ""


class NoHooks(Hooks):
    """No hooks are installed."""
