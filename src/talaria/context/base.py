"""The port of this area: a `ContextKeeper` keeps a conversation within its model's window. And
whether a compaction is worth its entry, and whether another one would still help, judged by those
in the journal."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from talaria.core.entries import Compacted, SummaryAuthor
from talaria.core.ids import SessionId
from talaria.core.messages import Message, Usage
from talaria.providers.base import Endpoint
from talaria.providers.message_history import History, size_tokens
from talaria.tools.base import Tool

if TYPE_CHECKING:
    from talaria.context.engine import HostedEngine


class CompactionRequest(msgspec.Struct, frozen=True):
    """How much shorter, and what about."""

    tokens: int
    """What the prompt takes now."""
    threshold: int
    """It should be below this."""
    focus: str = ""
    """What the person wants to keep above all."""
    keep_last: int | None = None
    """Keep this many of the person's messages, with all that followed, as they are."""
    seconds: float | None = None
    """How long it may take."""
    may_ask: bool = True
    """False: a model failed at this a short while ago; do without one."""
    is_asked_for: bool = False
    """By the person, now."""
    memory: str = ""
    """What a memory provider wants to keep."""
    has_overflowed: bool = False
    """The model refused the conversation as it is: it must become shorter."""


class CompactedMessages(msgspec.Struct, frozen=True):
    """What the model reads from now on."""

    messages: tuple[Message, ...]
    summary_by: SummaryAuthor
    """Who wrote the summary; nobody: only old tool output was left out."""


class ConversationInfo(msgspec.Struct, frozen=True):
    """The conversation that a keeper is responsible for."""

    session: SessionId
    key: str
    """Stays the same when the session's id changes."""
    platform: str
    endpoint: Endpoint
    """Where its turns begin."""


class ContextKeeper(Protocol):
    """Of one live session. Nothing in it ends a turn."""

    async def open(self, conversation: ConversationInfo) -> Sequence[Tool]:
        """Before the first turn; the tools that the model may reach the rest of the conversation
        with."""
        ...

    def begin_turn(self, history: History, tell: Callable[[str], None]) -> None:
        """`tell` reaches the person."""
        ...

    def end_turn(self) -> None: ...

    async def is_due(self, endpoint: Endpoint, tokens: int, *, is_blocked: bool) -> bool:
        """Whether the conversation should become shorter before `endpoint` is asked.

        `is_blocked`: that did not help lately.
        """
        ...

    async def compact(self, messages: Sequence[Message], request: CompactionRequest) -> CompactedMessages | None:
        """None: there is nothing that could be left out."""
        ...

    async def confirm_compaction(self) -> None:
        """The compaction is in the journal."""
        ...

    async def record_usage(self, usage: Usage | None) -> None:
        """The model answered, and counted this."""
        ...

    async def take_over(
        self,
        old: "ContextKeeper",
        conversation: ConversationInfo,
        previous: Sequence[Message],
        *,
        carry_over: bool = False,
    ) -> None:
        """Take over from the keeper of another conversation, which is left and whose messages were
        `previous`.

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
    async def engine(self, conversation: ConversationInfo) -> "HostedEngine | None":
        """A plugin's engine that keeps this conversation, built if it is not there yet. None: it is
        not a plugin's.

        Not during a turn. Raises `PluginError` if it cannot be built.
        """
        ...


MIN_PROGRESS = 0.05


def is_shorter(after: Sequence[Message], before: Sequence[Message]) -> bool:
    """By a share that matters; or by whole messages, if it is not longer for that."""
    now, then = sum(map(size_tokens, after)), sum(map(size_tokens, before))
    return now < (1 - MIN_PROGRESS) * then or (len(after) < len(before) and now < then)


MAX_FRUITLESS = 2
COOL_DOWN_S = 600.0


class CompactionHistory:
    def __init__(self) -> None:
        self._fruitless = 0
        """Compactions since the last answer whose prompt was below the threshold."""
        self._local_in_a_row = 0
        self._threshold = 0
        self._failed_at: float | None = None

    def add(self, entry: Compacted, at: float) -> None:
        self._fruitless += 1
        self._threshold = entry.threshold
        if entry.summary_by == "host":
            self._local_in_a_row += 1
            self._failed_at = at
        elif entry.summary_by == "model":
            self._local_in_a_row = 0
            self._failed_at = None

    def record_prompt(self, prompt_tokens: int) -> None:
        """An answer came, and its prompt was so long: as its model counted it, or else as we
        believe."""
        if 0 < prompt_tokens < self._threshold:
            self._fruitless = self._local_in_a_row = 0

    @property
    def are_blocked(self) -> bool:
        """The last ones did not help: another would not, either."""
        return max(self._fruitless, self._local_in_a_row) >= MAX_FRUITLESS

    def is_cooling(self, now: float) -> bool:
        """A model failed to summarise a short while ago."""
        return self._failed_at is not None and now - self._failed_at < COOL_DOWN_S
