"""The lines that wait in the store for the end of a turn of the conversation: those of this terminal and of others.

Each is asked once, by whoever starts its turn first; what this terminal knows of them is only for showing and choosing.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from talaria.cli.conversation import Conversation
from talaria.core.errors import TalariaError
from talaria.runtime.turn_signals import SignalSender
from talaria.store.signal_port import Signal, SignalId


class QueuedLines:
    def __init__(self, conversation: Conversation, on_change: Callable[[], None]) -> None:
        self.session = conversation.session
        self._app = conversation.app
        self._on_change = on_change
        app = conversation.app
        self._sender = SignalSender(app.store, app.links.changes, app.links.folder, by="local", surface="terminal")
        self._own: set[SignalId] = set()
        self._ignored: set[SignalId] = set()
        """Not asked here."""
        self._lock = asyncio.Lock()
        """Lines are sent in the order in which they were typed, and what is read is not older than what was sent."""
        self.rows: Sequence[Signal] = ()
        """Oldest first."""

    @property
    def own(self) -> Sequence[Signal]:
        return [one for one in self.rows if one.id in self._own]

    @property
    def labels(self) -> Sequence[str]:
        return [
            f"queued: {one.text}" if one.id in self._own else f"queued by {one.by}, {one.surface}: {one.text}"
            for one in self.rows
        ]

    async def follow(self) -> None:
        """Until cancelled."""
        changed = asyncio.Event()
        with self._app.links.changes.subscribe(changed):
            while True:
                changed.clear()
                with suppress(TalariaError):
                    await self.read()
                await changed.wait()

    async def read(self) -> Sequence[Signal]:
        async with self._lock:
            found = await self._app.store.signals.list_new([self.session])
            self._set([one for one in found if one.kind == "queue"])
        return self.rows

    async def send(self, text: str) -> None:
        """It is kept when this returns. Raises `TalariaError`."""
        async with self._lock:
            line = await self._sender.queue(self.session, self._app.settings.redactor.text(text))
            self._own.add(line.id)
            self._set([*self.rows, line])

    def ignore(self, lines: Sequence[Signal]) -> None:
        """From now on they are neither shown nor asked here."""
        self._ignored.update(one.id for one in lines)
        self._set(self.rows)

    async def restore(self, line: Signal) -> bool:
        """After `ignore`. False: somebody has asked it or taken it back."""
        self._ignored.discard(line.id)
        with suppress(TalariaError):
            await self.read()
        return line in self.rows

    async def take_back(self, lines: Sequence[Signal]) -> Sequence[Signal]:
        """Those that nobody has asked, and that nobody will."""
        self.ignore(lines)
        settle = self._app.store.signals.settle
        return [one for one in lines if await settle(one.id, "late", "It was taken back.")]

    def _set(self, rows: Sequence[Signal]) -> None:
        before, self.rows = self.rows, [one for one in rows if one.id not in self._ignored]
        if before != self.rows:
            self._on_change()
