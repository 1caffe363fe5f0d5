"""Tells an adapter what becomes of its messages: accepted, answered. Beside everything else, one after the other."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from talaria.compat.hermes.platforms.adapter import BasePlatformAdapter, has_own
from talaria.compat.hermes.platforms.adapter_messages import ProcessingOutcome
from talaria.compat.hermes.platforms.calling import called
from talaria.core.clock import Clock
from talaria.platforms.base import Address
from talaria.plugin_calls import PluginError

HOOK_S = 10.0
MAX_UNANSWERED = 1_000
MAX_WAITING = 1_000


class Processing:
    """Adapters show it as a reaction, or hold the next message back until then. With an answer in several messages it
    is the first one that counts."""

    def __init__(self, adapter: BasePlatformAdapter, clock: Clock, tell: Callable[[str, PluginError], None]) -> None:
        self._adapter = adapter
        self._clock = clock
        self._tell = tell
        self._unanswered: dict[tuple[str, str], Any] = {}
        self._calls: asyncio.Queue[tuple[str, tuple[Any, ...]]] = asyncio.Queue(MAX_WAITING)

    def accepted(self, event: object, where: Address, message_id: str) -> None:
        self._note("on_processing_start", event)
        if has_own(self._adapter, "on_processing_complete"):
            self._unanswered[where.chat, message_id] = event
        while len(self._unanswered) > MAX_UNANSWERED:
            del self._unanswered[next(iter(self._unanswered))]

    def answered(self, where: Address, message_id: str) -> None:
        event = self._unanswered.pop((where.chat, message_id), None)
        if event is not None:
            self._note("on_processing_complete", event, ProcessingOutcome.SUCCESS)

    def _note(self, hook: str, *facts: Any) -> None:
        if has_own(self._adapter, hook):
            with suppress(asyncio.QueueFull):  # an adapter that is so slow cannot be told everything
                self._calls.put_nowait((hook, facts))

    async def run(self) -> None:
        while True:
            hook, facts = await self._calls.get()
            method = getattr(self._adapter, hook)
            try:
                await called(lambda method=method, facts=facts: method(*facts), HOOK_S, self._clock)
            except PluginError as fault:
                self._tell(hook, fault)
