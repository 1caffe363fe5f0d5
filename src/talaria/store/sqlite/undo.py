"""The undo store in the file `undo.db` of a home: one connection, used under one lock."""

import hashlib
import os
import threading
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from talaria.core.errors import StoreDamaged
from talaria.store.sqlite.connection import SqliteConnection, explain
from talaria.store.sqlite.database import Database
from talaria.store.undo_port import ChangeRow, CheckpointRow, KnownFile, Packed, PathState

_VERSION = 1
_SCHEMA = """
CREATE TABLE project (id INTEGER PRIMARY KEY, path BLOB NOT NULL UNIQUE) STRICT;
CREATE TABLE file (
    project INTEGER NOT NULL, path BLOB NOT NULL, mode INTEGER NOT NULL, size INTEGER NOT NULL,
    mtime INTEGER NOT NULL, ctime INTEGER NOT NULL, inode INTEGER NOT NULL, links INTEGER NOT NULL,
    content BLOB NOT NULL, PRIMARY KEY (project, path)
) STRICT, WITHOUT ROWID;
CREATE TABLE left_out (
    project INTEGER NOT NULL, path BLOB NOT NULL, reason TEXT NOT NULL, gone_at REAL, PRIMARY KEY (project, path)
) STRICT, WITHOUT ROWID;
CREATE TABLE piece (
    digest BLOB NOT NULL, number INTEGER NOT NULL, size INTEGER NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (digest, number)
) STRICT;
CREATE TABLE checkpoint (
    session TEXT NOT NULL, number INTEGER NOT NULL, project INTEGER NOT NULL, turn TEXT NOT NULL, at REAL NOT NULL,
    why TEXT NOT NULL, owner TEXT NOT NULL, PRIMARY KEY (session, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE change (
    session TEXT NOT NULL, number INTEGER NOT NULL, path BLOB NOT NULL,
    mode INTEGER NOT NULL, size INTEGER NOT NULL, inode INTEGER NOT NULL, links INTEGER NOT NULL, content BLOB NOT NULL,
    left_mode INTEGER NOT NULL, left_content BLOB NOT NULL, is_sure INTEGER NOT NULL,
    PRIMARY KEY (session, number, path)
) STRICT, WITHOUT ROWID;
"""


class SqliteUndoStore:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._database = Database(path, _prepare)
        self._connection: SqliteConnection | None = None
        self._lock = threading.RLock()

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def _connect(self) -> Generator[SqliteConnection]:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._database.connect_for_writing()
                yield self._connection
            except apsw.Error as fault:
                raise explain(fault, self.path) from fault

    @contextmanager
    def transaction(self, *, survives_power_cut: bool = False) -> Generator[SqliteConnection]:
        with self._connect() as connection:
            if connection.in_transaction:
                yield connection
                return
            connection.pragma("synchronous", "full" if survives_power_cut else "normal")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def version(self) -> int:
        with self._connect() as db:
            return int(db.pragma("data_version"))

    def project(self, path: str) -> int:
        with self.transaction() as db:
            db.execute("INSERT INTO project (path) VALUES (?) ON CONFLICT DO NOTHING", (os.fsencode(path),))
            return int(db.execute("SELECT id FROM project WHERE path = ?", (os.fsencode(path),)).get)

    def project_path(self, project: int) -> str:
        with self._connect() as db:
            return os.fsdecode(db.execute("SELECT path FROM project WHERE id = ?", (project,)).get)

    # What a project holds

    def files(self, project: int) -> dict[str, KnownFile]:
        asked = "SELECT path, mode, size, mtime, ctime, inode, links, content FROM file WHERE project = ?"
        with self._connect() as db:
            return {
                os.fsdecode(path): KnownFile((mode, size, mtime, ctime, inode, links), content)
                for path, mode, size, mtime, ctime, inode, links, content in db.execute(asked, (project,))
            }

    def update_files(self, project: int, found: Mapping[str, KnownFile], gone: Iterable[str]) -> None:
        with self.transaction() as db:
            db.executemany(
                "INSERT OR REPLACE INTO file VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                ((project, os.fsencode(path), *one.stamp, one.content) for path, one in found.items()),
            )
            db.executemany(
                "DELETE FROM file WHERE project = ? AND path = ?", ((project, os.fsencode(path)) for path in gone)
            )

    def list_excluded(self, project: int, since: float) -> dict[str, str]:
        asked = "SELECT path, reason FROM left_out WHERE project = ? AND coalesce(gone_at, ?) >= ?"
        with self._connect() as db:
            rows = db.execute(asked, (project, since, since))
            return {os.fsdecode(path): reason for path, reason in rows}

    def set_excluded(self, project: int, left_out: Mapping[str, str], now: float) -> None:
        known = self.list_excluded(project, now)
        added = ((project, os.fsencode(path), why) for path, why in left_out.items() if known.get(path) != why)
        gone = ((now, project, os.fsencode(path)) for path in known if path not in left_out)
        with self.transaction() as db:
            db.executemany("INSERT OR REPLACE INTO left_out VALUES (?, ?, ?, NULL)", added)
            asked = "UPDATE left_out SET gone_at = ? WHERE project = ? AND path = ? AND gone_at IS NULL"
            db.executemany(asked, gone)

    # Content

    def add_content(self, packed: Packed) -> None:
        with self.transaction() as db:
            db.executemany(
                "INSERT INTO piece VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                ((packed.digest, number, size, piece) for number, (size, piece) in enumerate(packed.pieces)),
            )

    def add_piece(self, digest: bytes, number: int, size: int, piece: bytes) -> None:
        with self.transaction() as db:
            db.execute("INSERT OR REPLACE INTO piece VALUES (?, ?, ?, ?)", (digest, number, size, piece))

    def has_content(self, digest: bytes) -> bool:
        with self._connect() as db:
            return db.execute("SELECT 1 FROM piece WHERE digest = ? AND number = 0", (digest,)).fetchone() is not None

    def drop_content(self, digest: bytes) -> None:
        with self.transaction() as db:
            db.execute("DELETE FROM piece WHERE digest = ?", (digest,))

    def content(self, digest: bytes) -> Iterator[bytes]:
        found = hashlib.sha256()
        number = 0
        while True:
            with self._connect() as db:
                asked = "SELECT size, content FROM piece WHERE digest = ? AND number = ?"
                row = db.execute(asked, (digest, number)).fetchone()
            if row is None:
                break
            try:
                piece = row[1] if len(row[1]) == row[0] else zlib.decompress(row[1])
            except zlib.error:
                break
            found.update(piece)
            yield piece
            number += 1
        if found.digest() != digest or not number:
            raise StoreDamaged(f"The content of a file stored in {self.path} is damaged.")

    # Checkpoints

    def checkpoints(self, session: str) -> list[CheckpointRow]:
        return self._checkpoints("session = ? ORDER BY number", session)

    def open_checkpoints(self, project: int) -> list[CheckpointRow]:
        return self._checkpoints("project = ? AND owner != ''", project)

    def _checkpoints(self, where: str, value: str | int) -> list[CheckpointRow]:
        if self._connection is None and not self.path.exists():
            return []  # who only asks does not make the file
        asked = f"SELECT session, number, project, turn, at, why, owner FROM checkpoint WHERE {where}"
        with self._connect() as db:
            return [CheckpointRow(*row) for row in db.execute(asked, (value,))]

    def latest_checkpoint(self, session: str) -> CheckpointRow | None:
        found = self._checkpoints("session = ? ORDER BY number DESC LIMIT 1", session)
        return found[0] if found else None

    def put_checkpoint(self, row: CheckpointRow) -> None:
        with self.transaction() as db:
            db.execute("INSERT OR REPLACE INTO checkpoint VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def set_owner(self, session: str, number: int, owner: str) -> None:
        with self.transaction() as db:
            asked = "UPDATE checkpoint SET owner = ? WHERE session = ? AND number = ?"
            db.execute(asked, (owner, session, number))

    def changes(self, session: str, number: int) -> dict[str, ChangeRow]:
        asked = (
            "SELECT path, mode, size, inode, links, content, left_mode, left_content, is_sure FROM change "
            "WHERE session = ? AND number = ? ORDER BY path"
        )
        with self._connect() as db:
            rows: list[tuple[Any, ...]] = db.execute(asked, (session, number)).fetchall()
        named = ((os.fsdecode(row[0]), row) for row in rows)
        return {path: ChangeRow(path, PathState(*row[1:6]), row[6], row[7], bool(row[8])) for path, row in named}

    def put_changes(self, session: str, number: int, changes: Iterable[ChangeRow]) -> None:
        with self.transaction() as db:
            db.executemany(
                "INSERT INTO change VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "left_mode = excluded.left_mode, left_content = excluded.left_content, is_sure = excluded.is_sure",
                (
                    (session, number, os.fsencode(one.path), *one.before, one.left_mode, one.left_content, one.is_sure)
                    for one in changes
                ),
            )

    def has_created(self, session: str, path: str) -> bool:
        asked = (
            "SELECT 1 FROM change JOIN checkpoint USING (session, number) JOIN project ON project.id = project "
            "WHERE session = ? AND mode = 0 AND "
            "(change.path = ? OR CAST(project.path || X'2F' || change.path AS BLOB) = ?) LIMIT 1"
        )
        name = os.fsencode(path)
        with self._connect() as db:
            return db.execute(asked, (session, name, name)).fetchone() is not None

    # What has to go

    def forget(self, sessions: Sequence[str]) -> None:
        with self.transaction() as db:
            for table in ("change", "checkpoint"):
                db.executemany(f"DELETE FROM {table} WHERE session = ?", ((one,) for one in sessions))
        self.collect()

    def drop(self, rows: Iterable[CheckpointRow]) -> None:
        with self.transaction() as db:
            for table in ("change", "checkpoint"):
                asked = f"DELETE FROM {table} WHERE session = ? AND number = ?"
                db.executemany(asked, ((row.session, row.number) for row in rows))

    def oldest(self) -> list[CheckpointRow]:
        return self._checkpoints("at >= ? ORDER BY at", 0)

    def collect(self) -> None:
        with self.transaction() as db:
            unused = "(SELECT id FROM project WHERE id NOT IN (SELECT project FROM checkpoint))"
            for table in ("file", "left_out"):
                db.execute(f"DELETE FROM {table} WHERE project IN {unused}")
            db.execute(f"DELETE FROM project WHERE id IN {unused}")
            db.execute("DELETE FROM left_out WHERE gone_at < (SELECT min(at) FROM checkpoint)")
            db.execute(
                "DELETE FROM piece WHERE digest NOT IN (SELECT content FROM file UNION SELECT content FROM change)"
            )
        with self._connect() as db:
            db.execute("PRAGMA incremental_vacuum").fetchall()
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def size_bytes(self) -> int:
        with self._connect() as db:
            pages = int(db.pragma("page_count")) - int(db.pragma("freelist_count"))
            return pages * int(db.pragma("page_size"))


def _prepare(connection: SqliteConnection, path: Path) -> None:
    version = int(connection.pragma("user_version"))
    if version > _VERSION:
        raise StoreDamaged(f"{path} was written by a newer version of Talaria. Use that one, or move the file away.")
    connection.pragma("secure_delete", True)
    if version == 0:
        connection.pragma("page_size", 8192)
        connection.pragma("auto_vacuum", "incremental")
        connection.execute("BEGIN IMMEDIATE")
        if int(connection.pragma("user_version")) == 0:  # perhaps another process was quicker
            connection.execute(_SCHEMA)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute("COMMIT")
