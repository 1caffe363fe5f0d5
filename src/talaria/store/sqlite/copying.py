"""The database as a whole: a copy of it as it is at one moment, and a rewrite without what was deleted."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import cast

import apsw

from talaria.core.errors import StoreUnavailable
from talaria.store.sqlite.connection import SqliteConnection

STEP_PAGES = 2_000

Progress = Callable[[int, int], None]
"""How much is done, of how much."""


def copy(source: SqliteConnection, target: Path, progress: Progress) -> None:
    """Into a file that is empty or not there yet. Others may write meanwhile, and are not in the copy."""
    source.execute("BEGIN")
    source.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # the moment; else each write would start it anew
    try:
        with closing(apsw.Connection(str(target))) as made:
            _copy(cast("apsw.Connection", source), made, progress)
    except (apsw.FullError, apsw.IOError, apsw.CantOpenError) as fault:
        raise StoreUnavailable(f"Cannot write {target} ({fault}): look whether the disk is full.") from fault
    finally:
        source.execute("ROLLBACK")


def _copy(source: apsw.Connection, made: apsw.Connection, progress: Progress) -> None:
    with made.backup("main", source, "main") as backup:
        while not backup.done:
            backup.step(STEP_PAGES)
            progress(backup.page_count - backup.remaining, backup.page_count)


def erase(connection: SqliteConnection) -> bool:
    """False: somebody else reads what was, so it is still in the WAL."""
    connection.execute("VACUUM")
    blocked, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
    return not blocked
