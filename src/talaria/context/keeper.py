"""Keeps a conversation with the built-in compactor: from the endpoint's threshold on, unless that did not help."""

from collections.abc import Callable, Sequence
from typing import Any

from talaria.context.base import CompactionRequest, Compactor, ContextKeeper, Place, Shortened
from talaria.core.messages import Message
from talaria.core.usage import Usage
from talaria.providers.base import Endpoint
from talaria.providers.message_history import History
from talaria.tools.base import Tool


class BuiltinContextKeeper:
    def __init__(self, compactor: Compactor) -> None:
        self._compactor = compactor

    async def open(self, place: Place) -> Sequence[Tool]:  # noqa: ARG002
        return ()

    def begin_turn(self, history: History, tell: Callable[[str], None]) -> None:
        """It is told by the journal all that it must know."""

    def end_turn(self) -> None: ...

    async def is_due(self, endpoint: Endpoint, tokens: int, *, is_blocked: bool) -> bool:
        return endpoint.compact_at is not None and tokens > endpoint.compact_at and not is_blocked

    async def compact(self, messages: Sequence[Message], wish: CompactionRequest) -> Shortened | None:
        return await self._compactor.compact(messages, wish)

    async def stands(self) -> None:
        """As `begin_turn`, and the rest."""

    async def answered(self, usage: Usage | None) -> None: ...

    async def succeed(
        self, old: ContextKeeper, place: Place, previous: Sequence[Message], *, carry_over: bool = False
    ) -> None: ...

    async def reset(self) -> None: ...

    async def close(self, messages: Sequence[Message]) -> None: ...

    async def status(self) -> dict[str, Any]:
        return {}

    async def engine(self, place: Place) -> None:  # noqa: ARG002
        return None
