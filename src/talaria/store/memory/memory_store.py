"""The store in memory as one object to open and close. Owners are alive while they are listed."""

from typing import Self

from talaria.core.clock import Clock
from talaria.core.ids import OwnerId, new_owner_id
from talaria.store.memory.memory_access import Access, Approvals, Forgetting, Grants
from talaria.store.memory.memory_api import ApiTokens, Histories
from talaria.store.memory.memory_journal import Journal, Search, Sessions
from talaria.store.memory.memory_mail import Chats, Handoffs, Inbox, Outbox
from talaria.store.memory.memory_signals import Signals
from talaria.store.memory.memory_tables import MemoryDatabase, Spending


class Owners:
    def __init__(self, memory: MemoryDatabase) -> None:
        self._memory = memory

    async def join(self, kind: str) -> OwnerId:  # noqa: ARG002  (nobody else could ask who is here)
        owner = new_owner_id()
        with self._memory.transaction() as tables:
            tables.owners |= {owner}
        return owner

    async def leave(self, owner: OwnerId) -> None:
        with self._memory.transaction() as tables:
            tables.owners -= {owner}


class MemoryStore:
    def __init__(self, clock: Clock) -> None:
        memory = MemoryDatabase()
        self.journal = Journal(memory, clock)
        self.inbox = Inbox(memory, clock)
        self.chats = Chats(memory)
        self.access = Access(memory, clock)
        self.owners = Owners(memory)
        self.sessions = Sessions(memory, clock)
        self.outbox = Outbox(memory, clock)
        self.handoffs = Handoffs(memory, clock)
        self.search = Search(memory)
        self.spending = Spending(memory, clock)
        self.approvals = Approvals(memory, clock)
        self.grants = Grants(memory, clock)
        self.signals = Signals(memory, clock)
        self.api_tokens = ApiTokens(memory)
        self.histories = Histories(memory)
        self.forgetting = Forgetting(memory)

    @property
    def trouble(self) -> str:
        return ""

    async def version(self) -> int:
        """No other process sees it."""
        return 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...
