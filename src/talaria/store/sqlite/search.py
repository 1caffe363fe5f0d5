"""Full-text search in `search.db`: derived from the journal, fed after its commits, rebuildable at
any time.

The index keeps no text of its own: a row is a journal entry's id and its words. It follows the
journal by remembering the last entry that it has seen, so a lost or stale file only costs the time
to catch up.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Self, TypeVar, cast

import apsw
import msgspec

from talaria.core.aio import in_thread
from talaria.core.clock import Clock
from talaria.core.entries import Entry
from talaria.core.errors import StoreDamaged, StoreUnavailable, TalariaError
from talaria.core.ids import SessionId
from talaria.store import session_rules
from talaria.store.base import SearchHit
from talaria.store.sqlite.connection import SqliteConnection
from talaria.store.sqlite.database import Database

STEP_PAGES = 2_000

Progress = Callable[[int, int], None]
"""How much is done, of how much."""


def copy(source: SqliteConnection, target: Path, progress: Progress) -> None:
    """Into a file that is empty or does not exist. What others write meanwhile is not in the copy."""
    source.execute("BEGIN")
    source.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # the moment; else each write would start it anew
    try:
        with (
            closing(apsw.Connection(str(target))) as made,
            made.backup("main", cast("apsw.Connection", source), "main") as backup,
        ):
            while not backup.done:
                backup.step(STEP_PAGES)
                progress(backup.page_count - backup.remaining, backup.page_count)
    except (apsw.FullError, apsw.IOError, apsw.CantOpenError) as fault:
        raise StoreUnavailable(f"Cannot write {target} ({fault}): check whether the disk is full.") from fault
    finally:
        source.execute("ROLLBACK")


def erase(connection: SqliteConnection) -> bool:
    """False: somebody still reads the old state, so it is still in the WAL."""
    connection.execute("VACUUM")
    blocked, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
    return not blocked


T = TypeVar("T")

SCHEMA_VERSION = 1
FEED_BATCH = 2_000
MAX_ENTRY = (1 << 63) - 1
MAX_PAGE = 2_000

_SCHEMA = """
CREATE VIRTUAL TABLE words USING fts5(
    text, content='', contentless_delete=1, tokenize='unicode61 remove_diacritics 2'
);
CREATE TABLE progress (last_entry INTEGER NOT NULL) STRICT;
INSERT INTO progress VALUES (0);
"""
_decode = msgspec.json.Decoder(Entry).decode


def prepare(connection: SqliteConnection, _: Path) -> None:
    """A search index of another version is simply rebuilt."""
    if int(connection.pragma("user_version")) == SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    if int(connection.pragma("user_version")) != SCHEMA_VERSION:  # another process may have been quicker
        connection.execute(f"DROP TABLE IF EXISTS words; DROP TABLE IF EXISTS progress; {_SCHEMA}")
        connection.pragma("user_version", SCHEMA_VERSION)
    connection.execute("COMMIT")


class Search:
    """Opens its file at the first use: a one-shot answer never pays for it."""

    def __init__(self, state: Database, path: Path) -> None:
        self._state = state
        self._path = path
        self._opened: Database | None = None
        self._inode: int | None = None
        self._using = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._opened is not None:
            await self._opened.__aexit__()
            self._opened = None

    async def search(self, query: str, limit: int = 20, person: str | None = None) -> Sequence[SearchHit]:
        return await self._retry_rebuilt(lambda index: self._find(index, query, limit, person))

    async def rebuild(self, progress: Progress | None = None) -> int:
        return await self._retry_rebuilt(lambda index: self._rebuild(index, progress))

    async def discard(self) -> None:
        """Delete the index; the next search rebuilds it."""
        async with self._using:
            await self._discard()

    async def catch_up(self) -> None:
        """Index what the journal has gained and lost since the last time."""
        await self._retry_rebuilt(self._follow)

    async def _retry_rebuilt(self, work: Callable[[Database], Awaitable[T]]) -> T:
        """A damaged index is deleted and rebuilt, because the journal has everything in it."""
        async with self._using:
            try:
                return await work(await self._index())
            except StoreDamaged:
                await self._discard()
                return await work(await self._index())

    async def _index(self) -> Database:
        if self._inode != await in_thread(lambda: _inode(self._path)):  # deleted or replaced under us
            await self.__aexit__()
        if self._opened is None:
            self._opened = await Database(self._path, prepare).__aenter__()
            self._inode = await in_thread(lambda: _inode(self._path))
        return self._opened

    async def _discard(self) -> None:
        await self.__aexit__()

        def remove() -> None:
            for suffix in ("", "-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)

        await in_thread(remove)

    async def _find(self, index: Database, query: str, limit: int, person: str | None) -> list[SearchHit]:
        await self._follow(index)
        match = " ".join(
            f'"{session_rules.separate_words(word).strip()}"' for word in session_rules.search_words(query)
        )
        found: list[SearchHit] = []
        last, count = MAX_ENTRY, limit
        while match and len(found) < limit:
            words = "SELECT rowid FROM words(?) WHERE rowid < ? ORDER BY rowid DESC LIMIT ?"
            page = [int(row[0]) for row in await index.rows(words, (match, last, count))]
            found += await self._state.read(partial(_hits, entries=page, query=query, person=person))
            if len(page) < count:
                break
            last, count = page[-1], min(count * 4, MAX_PAGE)
        return found[:limit]

    async def _rebuild(self, index: Database, progress: Progress | None) -> int:
        def clear(db: SqliteConnection) -> None:
            db.execute("INSERT INTO words (words) VALUES ('delete-all')")
            db.execute("UPDATE progress SET last_entry = 0")

        await index.write(clear)
        if progress:
            [(last,)] = await self._state.rows("SELECT coalesce(max(id), 0) FROM entries")
            is_more_due = True
            while is_more_due:
                is_more_due = await self._feed_batch(index)
                progress(await index.read(_progress), last)
        await self._follow(index)
        return await index.read(lambda db: cast("int", db.execute("SELECT count(*) FROM words").get))

    async def _follow(self, index: Database) -> None:
        while await self._feed_batch(index):
            pass
        gone = await self._state.rows("SELECT entry FROM unindexed LIMIT 100000")
        if gone:
            await index.write(lambda db: db.executemany("DELETE FROM words WHERE rowid = ?", gone) and None)
            await self._state.write(lambda db: db.executemany("DELETE FROM unindexed WHERE entry = ?", gone) and None)

    async def _feed_batch(self, index: Database) -> bool:
        """False: the index knows all entries."""
        seen = await index.read(_progress)
        entries = "SELECT id, body FROM entries WHERE id > ? ORDER BY id LIMIT ?"

        def read(db: SqliteConnection) -> list[tuple[int, str]]:
            found = db.execute(entries, (seen, FEED_BATCH))
            return [(id, session_rules.separate_words(session_rules.text(_decode(body)))) for id, body in found]

        rows = await self._state.read(read)
        if not rows:
            return False

        def feed(db: SqliteConnection) -> bool:
            if _progress(db) != seen:
                return False  # another process has fed these, or some of them
            db.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", (row for row in rows if row[1]))
            db.execute("UPDATE progress SET last_entry = ?", (rows[-1][0],))
            return True

        return not await index.write(feed) or len(rows) == FEED_BATCH


def _progress(db: SqliteConnection) -> int:
    return cast("int", db.execute("SELECT last_entry FROM progress").get)


def _hits(db: SqliteConnection, entries: Sequence[int], query: str, person: str | None) -> list[SearchHit]:
    found: list[SearchHit] = []
    for id in entries:
        row = db.execute(
            "SELECT e.session, s.title, e.at, e.body FROM entries e JOIN sessions s ON s.id = e.session"
            " WHERE e.id = ?1 AND (?2 IS NULL OR s.person = ?2)",
            (id, person),
        ).fetchone()
        if row is not None:
            session, title, at, body = cast("tuple[str, str | None, float, str]", row)
            entry = _decode(body)
            piece = session_rules.snippet(session_rules.text(entry), query)
            found.append(SearchHit(SessionId(session), title, at, session_rules.role(entry), piece))
    return found


def _inode(path: Path) -> int | None:
    """Asks the folder; does not open the file itself."""
    try:
        return path.stat().st_ino
    except OSError:
        return None


QUIET_S = 1.0

log = logging.getLogger(__name__)


class Feeder:
    def __init__(self, search: Search, clock: Clock) -> None:
        self._search = search
        self._clock = clock
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="search feeder")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        self._woken.set()

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            await self._clock.sleep(QUIET_S)
            self._woken.clear()
            try:
                await self._search.catch_up()
            except TalariaError as fault:
                log.warning("search index not fed: %s", fault)
