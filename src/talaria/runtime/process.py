"""What all live sessions of a process share, and how it and other processes tell each other what happens."""

import asyncio
from pathlib import Path
from typing import Self

import msgspec

from talaria.core.clock import Clock
from talaria.core.ids import OwnerId
from talaria.providers.upstream import Upstream
from talaria.runtime.store_changes import StoreChanges
from talaria.runtime.turn_signals import SignalReader
from talaria.runtime.watching import Watching
from talaria.store.base import Store


class ProcessLinks:
    """Nothing is started before a turn runs here or somebody watches."""

    def __init__(self, store: Store, owner: OwnerId, folder: Path | None = None) -> None:
        """`folder`: where processes find each other's sockets; None: no other process can watch this one."""
        self.folder = folder
        self.changes = StoreChanges(store.version)
        self.signals = SignalReader(store.signals, self.changes)
        self.watching = Watching(store.journal, self.changes, owner, folder, self.signals.look)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(self.signals.close(), self.watching.close())


class ProcessServices(msgspec.Struct, frozen=True):
    store: Store
    owner: OwnerId
    upstream: Upstream
    clock: Clock
    links: ProcessLinks
