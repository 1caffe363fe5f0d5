"""The ports of this area: a `ContextKeeper` keeps a conversation within its model's window; a `Compactor` says what
it becomes when that fills."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from talaria.core.entries import SummaryAuthor
from talaria.core.ids import SessionId
from talaria.core.messages import Message
from talaria.core.usage import Usage
from talaria.providers.base import Endpoint
from talaria.providers.message_history import History
from talaria.tools.base import Tool

if TYPE_CHECKING:
    from talaria.context.engine import HostedEngine


class CompactionRequest(msgspec.Struct, frozen=True):
    """How much shorter, and what about."""

    tokens: int
    """What the prompt takes now."""
    threshold: int
    """Below this it shall be."""
    focus: str = ""
    """What the person wants to be kept above all."""
    keep_last: int | None = None
    """So many of the person's messages, with all that followed, stay as they are."""
    seconds: float | None = None
    """What there is time for."""
    may_ask: bool = True
    """False: a model failed at this a short while ago; go without."""
    is_asked_for: bool = False
    """By the person, now."""
    memory: str = ""
    """What a memory provider wants to be kept."""
    has_overflowed: bool = False
    """The model did not take the conversation as it is: somebody must make it shorter."""


class Shortened(msgspec.Struct, frozen=True):
    """What the model shall read from now on."""

    messages: tuple[Message, ...]
    summary_by: SummaryAuthor
    """Who wrote the summary; nobody: only old tool output was left out."""


class Compactor(Protocol):
    async def compact(self, messages: Sequence[Message], wish: CompactionRequest) -> Shortened | None:
        """None: there is nothing that could be left out."""
        ...


class Place(msgspec.Struct, frozen=True):
    """The conversation that is kept."""

    session: SessionId
    conversation: str
    """Its key, which stays when the session's id does not."""
    platform: str
    endpoint: Endpoint
    """Where its turns begin."""


class ContextKeeper(Protocol):
    """Of one live session. Nothing in it ends a turn."""

    async def open(self, place: Place) -> Sequence[Tool]:
        """Before the first turn; the tools that the model may reach the rest of the conversation with."""
        ...

    def begin_turn(self, history: History, tell: Callable[[str], None]) -> None:
        """`tell` reaches the person."""
        ...

    def end_turn(self) -> None: ...

    async def is_due(self, endpoint: Endpoint, tokens: int, *, is_blocked: bool) -> bool:
        """Whether the conversation shall be shorter before `endpoint` is asked.

        `is_blocked`: that did not help lately.
        """
        ...

    async def compact(self, messages: Sequence[Message], wish: CompactionRequest) -> Shortened | None: ...

    async def stands(self) -> None:
        """The compaction is in the journal."""
        ...

    async def answered(self, usage: Usage | None) -> None:
        """The model answered, and counted this."""
        ...

    async def succeed(
        self, old: "ContextKeeper", place: Place, previous: Sequence[Message], *, carry_over: bool = False
    ) -> None:
        """Take over from the keeper of another conversation, which is left and whose messages were `previous`.

        `carry_over`: it goes on here.
        """
        ...

    async def reset(self) -> None:
        """Forget what was counted."""
        ...

    async def close(self, messages: Sequence[Message]) -> None:
        """The conversation is left."""
        ...

    async def status(self) -> dict[str, Any]: ...
    async def engine(self, place: Place) -> "HostedEngine | None":
        """A plugin's engine that keeps this conversation, built if it is not there yet. None: it is not a plugin's.

        Not during a turn. Raises `PluginError` if it cannot be built.
        """
        ...
