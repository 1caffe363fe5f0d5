"""Owners: the processes that may run sessions."""

import os

from talaria.core.clock import Clock
from talaria.core.ids import OwnerId, new_owner_id
from talaria.store.sqlite.connection import SqliteConnection
from talaria.store.sqlite.database import Database
from talaria.store.sqlite.presence import Presence
from talaria.waiting import completed, in_thread


class Owners:
    def __init__(self, database: Database, presence: Presence, clock: Clock) -> None:
        self._database = database
        self._presence = presence
        self._clock = clock

    async def join(self, kind: str) -> OwnerId:
        owner = new_owner_id()

        def work(db: SqliteConnection) -> None:
            self._presence.enter(owner)  # before the row: a row without a lock would read as a dead owner
            self._forget_dead(db)
            db.execute("INSERT INTO owners VALUES (?, ?, ?, ?)", (owner, kind, os.getpid(), self._clock.now()))

        try:
            await self._database.write(work)
        except BaseException:
            await completed(in_thread(lambda: self._presence.leave(owner)))
            raise
        return owner

    async def leave(self, owner: OwnerId) -> None:
        await completed(in_thread(lambda: self._presence.leave(owner)))
        await self._database.change("DELETE FROM owners WHERE id = ?", (owner,))

    def _forget_dead(self, db: SqliteConnection) -> None:
        known = db.execute("SELECT id FROM owners").fetchall()
        dead = [(owner,) for (owner,) in known if not self._presence.is_alive(owner)]
        db.executemany("DELETE FROM owners WHERE id = ?", dead)
