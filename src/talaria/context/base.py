"""The port of this area: a `ContextKeeper` keeps a conversation within its model's window. Also judges whether a
compaction is worth its entry in the journal, and whether another one would still help."""

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
    tokens: int
    """The size of the prompt now."""
    threshold: int
    """The size below which it should come."""
    focus: str = ""
    """What the person wants to keep above all."""
    keep_last: int | None = None
    """Keep the person's last messages, this many, and all that followed them, unchanged."""
    seconds: float | None = None
    """How long it may take."""
    may_ask: bool = True
    """False: a model recently failed at this, so do without one."""
    is_asked_for: bool = False
    """The person asked for it just now."""
    memory: str = ""
    """What a memory provider wants to keep."""
    has_overflowed: bool = False
    """The model refused the conversation as too long."""


class CompactedMessages(msgspec.Struct, frozen=True):
    """What the model reads from now on."""

    messages: tuple[Message, ...]
    summary_by: SummaryAuthor
    """`nobody`: there is no summary, only old tool output was left out."""


class ConversationInfo(msgspec.Struct, frozen=True):
    """The conversation that a keeper is responsible for."""

    session: SessionId
    key: str
    """Stays the same when the session's id changes."""
    platform: str
    endpoint: Endpoint
    """The endpoint at which its turns begin."""


class ContextKeeper(Protocol):
    """Serves one live session, and never ends a turn. The methods with a body suit a keeper without state."""

    async def open(self, conversation: ConversationInfo) -> Sequence[Tool]:  # noqa: ARG002
        """Before the first turn. Returns tools with which the model can reach what was left out."""
        return ()

    def begin_turn(self, history: History, tell: Callable[[str], None]) -> None:
        """`tell` shows the person a sentence."""

    def end_turn(self) -> None:
        pass

    async def is_due(self, endpoint: Endpoint, tokens: int, *, is_blocked: bool) -> bool:
        """Whether the conversation should become shorter before `endpoint` is asked.

        `is_blocked`: the last compactions did not help.
        """
        ...

    async def compact(self, messages: Sequence[Message], request: CompactionRequest) -> CompactedMessages | None:
        """None: there is nothing that could be left out."""
        ...

    async def confirm_compaction(self) -> None:
        """The compaction is in the journal."""

    async def record_usage(self, usage: Usage | None) -> None:
        """The model answered, and reported this usage."""

    async def take_over(
        self,
        old: "ContextKeeper",
        conversation: ConversationInfo,
        previous: Sequence[Message],
        *,
        carry_over: bool = False,
    ) -> None:
        """Take over from the keeper of the conversation that is left; `previous` are its messages.

        With `carry_over`, that conversation continues in this one.
        """

    async def reset(self) -> None:
        """Forget what was counted."""

    async def close(self, messages: Sequence[Message]) -> None:
        """The conversation is left."""

    async def status(self) -> dict[str, Any]:
        return {}

    async def engine(self, conversation: ConversationInfo) -> "HostedEngine | None":  # noqa: ARG002
        """The plugin's engine that keeps this conversation, built if necessary. None: no plugin keeps it.

        Not during a turn. Raises `PluginError` if it cannot be built.
        """
        return None


MIN_PROGRESS = 0.05


def is_shorter(after: Sequence[Message], before: Sequence[Message]) -> bool:
    """Shorter by a share that matters, or by at least one message and not longer in tokens."""
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
        """The length of an answered prompt, as its model counted it or, failing that, as estimated."""
        if 0 < prompt_tokens < self._threshold:
            self._fruitless = self._local_in_a_row = 0

    @property
    def are_blocked(self) -> bool:
        """The last compactions did not help, so another would not, either."""
        return max(self._fruitless, self._local_in_a_row) >= MAX_FRUITLESS

    def is_cooling(self, now: float) -> bool:
        """A model has recently failed to summarise."""
        return self._failed_at is not None and now - self._failed_at < COOL_DOWN_S
