"""The store in memory as one thing to open and close."""

from typing import Self

from talaria.core.clock import Clock
from talaria.store.memory.access import Access
from talaria.store.memory.approvals import Approvals
from talaria.store.memory.chats import Chats
from talaria.store.memory.forgetting import Forgetting
from talaria.store.memory.grants import Grants
from talaria.store.memory.handoffs import Handoffs
from talaria.store.memory.inbox import Inbox
from talaria.store.memory.journal import Journal
from talaria.store.memory.outbox import Outbox
from talaria.store.memory.owners import Owners
from talaria.store.memory.search import Search
from talaria.store.memory.sessions import Sessions
from talaria.store.memory.spending import Spending
from talaria.store.memory.tables import MemoryDatabase


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
