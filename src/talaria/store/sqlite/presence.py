"""Which owners are alive: each holds a lock on its own file, which the kernel releases when the process dies."""

import fcntl
import os
import weakref
from pathlib import Path

from talaria.core.aio import complete, in_thread
from talaria.core.clock import Clock
from talaria.core.ids import OwnerId, new_owner_id
from talaria.store.sqlite.connection import SqliteConnection, unusable_folder
from talaria.store.sqlite.database import Database


class Presence:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[OwnerId, int] = {}
        known = weakref.ref(self)

        def forget() -> None:
            if (presence := known()) is not None:
                presence.forget()

        os.register_at_fork(after_in_child=forget)

    def lock(self, owner: OwnerId) -> None:
        if owner in self._held:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._file(owner), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as fault:
            raise unusable_folder(self._folder, fault) from fault
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._held[owner] = descriptor

    def forget(self) -> None:
        """For a forked child, which would otherwise keep the locks of a parent that dies. The parent's locks stay."""
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()

    def unlock(self, owner: OwnerId) -> None:
        descriptor = self._held.pop(owner, None)
        if descriptor is not None:
            self._file(owner).unlink(missing_ok=True)
            os.close(descriptor)

    def unlock_all(self) -> None:
        for owner in tuple(self._held):
            self.unlock(owner)

    def is_alive(self, owner: OwnerId | None) -> bool:
        """False for None."""
        if owner is None or owner in self._held:
            return owner in self._held
        try:
            descriptor = os.open(self._file(owner), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # cannot tell (no descriptors left, no permission): never take from one that may live
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two who ask do not see each other
        except BlockingIOError:
            return True
        else:
            self._file(owner).unlink(missing_ok=True)
            return False
        finally:
            os.close(descriptor)

    def list_living(self) -> list[OwnerId]:
        """The owners whose processes run."""
        return [owner for file in self._folder.glob("[0-9]*-*.lock") if self.is_alive(owner := OwnerId(file.stem))]

    def _file(self, owner: OwnerId) -> Path:
        return self._folder / f"{owner}.lock"


class Owners:
    def __init__(self, database: Database, presence: Presence, clock: Clock) -> None:
        self._database = database
        self._presence = presence
        self._clock = clock

    async def join(self, kind: str) -> OwnerId:
        owner = new_owner_id()

        def work(db: SqliteConnection) -> None:
            self._presence.lock(owner)  # before the row: a row without a lock would read as a dead owner
            known = db.execute("SELECT id FROM owners").fetchall()
            dead = [(owner,) for (owner,) in known if not self._presence.is_alive(owner)]
            db.executemany("DELETE FROM owners WHERE id = ?", dead)
            db.execute("INSERT INTO owners VALUES (?, ?, ?, ?)", (owner, kind, os.getpid(), self._clock.now()))

        try:
            await self._database.write(work)
        except BaseException:
            await complete(in_thread(lambda: self._presence.unlock(owner)))
            raise
        return owner

    async def leave(self, owner: OwnerId) -> None:
        await complete(in_thread(lambda: self._presence.unlock(owner)))
        await self._database.change("DELETE FROM owners WHERE id = ?", (owner,))
