"""Where a turn puts what happens: the journal for facts, the observers for show."""

from typing import Protocol

from talaria.core.events import Event
from talaria.store.base import Write


class Sink(Protocol):
    async def record(self, *writes: Write) -> None:
        """One transaction; returns once it survives a crash. Cancelled, it still waits for the outcome."""
        ...

    def emit(self, event: Event) -> None:
        """Never fails and never decides anything."""
        ...
