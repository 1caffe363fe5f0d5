"""Replies on their way out: a line for each chat to which something is due, and all of them side by side."""

import asyncio
import logging

from talaria.core.clock import Clock
from talaria.core.errors import StoreUnavailable
from talaria.gateway.chat_sender import LONGEST_WAIT_S, ChatSender, Draft, OnChatMoved, Undelivered
from talaria.gateway.counts import Counts
from talaria.gateway.links import PlatformLinks
from talaria.platforms.base import Address
from talaria.store.mail import Outbox

STORE_WAIT_S = 5.0

log = logging.getLogger(__name__)


class Delivery:
    def __init__(
        self,
        outbox: Outbox,
        links: PlatformLinks,
        clock: Clock,
        undelivered: Undelivered,
        moved: OnChatMoved,
        counts: Counts,
    ) -> None:
        self._outbox = outbox
        self._links = links
        self._clock = clock
        self._undelivered = undelivered
        self._moved = moved
        self._counts = counts
        self._lines: dict[str, ChatSender] = {}
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Serve every chat to which something is due, and all that are woken later; until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await self.look()
                for target in tuple(self._lines):
                    self.wake(target)
                await asyncio.Event().wait()
            finally:
                self._group = None

    async def look(self) -> None:
        """What another process, or a person, has added."""
        for target in await self._outbox.targets():
            self.wake(target)

    @property
    def is_idle(self) -> bool:
        return not self._serving

    def wake(self, target: str) -> None:
        line = self._line(target)
        line.wake()
        self._serve(target, line)

    def show(self, where: Address, draft: Draft | None) -> None:
        line = self._line(str(where))
        line.show(draft)
        self._serve(str(where), line)

    def _line(self, target: str) -> ChatSender:
        line = self._lines.get(target)
        if line is None:
            where = Address.parse(target)
            line = ChatSender(
                where, self._outbox, self._links, self._clock, self._undelivered, self._moved, self._counts
            )
            self._lines[target] = line
        return line

    def _serve(self, target: str, line: ChatSender) -> None:
        if self._group is None or target in self._serving:
            return
        task = self._group.create_task(self._served(target, line), name=f"line {target}")
        self._serving[target] = task

    async def _served(self, target: str, line: ChatSender) -> None:
        try:
            while not await self._has_ended(line, target):
                line.wake()
        finally:
            del self._serving[target]
            if not line.is_needed:
                self._lines.pop(target, None)

    async def _has_ended(self, line: ChatSender, target: str) -> bool:
        try:
            await line.serve()
        except StoreUnavailable as fault:
            log.warning("line %s waits for the store: %s", target, fault)
            await self._clock.sleep(STORE_WAIT_S)
            return False
        except Exception:  # one chat must not silence the others
            log.exception("line %s broke", target)
            await self._clock.sleep(LONGEST_WAIT_S)
            return False
        return True
