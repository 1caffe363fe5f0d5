"""The SQLite store as one thing to open and close."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

import apsw

from talaria.core.aio import in_thread
from talaria.core.clock import Clock
from talaria.store.sqlite.access import Access, Approvals, Forgetting, Grants
from talaria.store.sqlite.api_rows import ApiTokens, Histories
from talaria.store.sqlite.chats import Chats, Handoffs
from talaria.store.sqlite.connection import migrate
from talaria.store.sqlite.database import Database
from talaria.store.sqlite.journal import Journal
from talaria.store.sqlite.mail import Inbox, Outbox
from talaria.store.sqlite.presence import Owners, Presence
from talaria.store.sqlite.search import Feeder, Progress, Search, copy, erase
from talaria.store.sqlite.sessions import Sessions
from talaria.store.sqlite.signals import Signals
from talaria.store.sqlite.spending import Spending


class SqliteStore:
    def __init__(self, home: Path, clock: Clock, *, vfs: str | None = None, busy_timeout_s: float = 10.0) -> None:
        presence = self._presence = Presence(home / "run")
        self._database = Database(home / "state.db", migrate, vfs=vfs, busy_timeout_s=busy_timeout_s)
        self.search = Search(self._database, home / "search.db")
        self._feeder = Feeder(self.search, clock)
        self.journal = Journal(self._database, presence, clock, on_commit=self._feeder.wake)
        self.inbox = Inbox(self._database, clock)
        self.chats = Chats(self._database)
        self.access = Access(self._database, clock)
        self.owners = Owners(self._database, presence, clock)
        self.sessions = Sessions(self._database, presence, clock)
        self.outbox = Outbox(self._database, clock)
        self.handoffs = Handoffs(self._database, clock)
        self.spending = Spending(self._database, presence, clock)
        self.approvals = Approvals(self._database, presence, clock)
        self.grants = Grants(self._database, clock)
        self.signals = Signals(self._database, clock)
        self.api_tokens = ApiTokens(self._database)
        self.histories = Histories(self._database)
        self.forgetting = Forgetting(self._database, presence)
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._open.push_async_callback(in_thread, self._presence.unlock_all)
        for part in (self._database, self.search, self._feeder):
            await self._open.enter_async_context(part)
        return self

    @property
    def trouble(self) -> str:
        return self._database.trouble

    async def version(self) -> int:
        return await self._database.version()

    async def check(self) -> str:
        """What SQLite finds wrong with the file; empty if nothing."""
        found = await self._database.read(lambda db: str(db.execute("PRAGMA quick_check(3)").get))
        return "" if found == "ok" else found

    async def copy_to(self, target: Path, progress: Progress) -> None:
        """Copies all conversations as they are now; `progress` is called in a thread. Raises `StoreUnavailable`."""
        await self._database.alone(lambda db: copy(db, target, progress))

    async def erase(self) -> bool:
        """Make sure that what was deleted is no longer in the files. False: it is, because somebody still reads it."""
        await self.search.discard()
        return await self._database.alone(erase)

    @property
    def sqlite_version(self) -> str:
        return apsw.sqlite_lib_version()

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()
