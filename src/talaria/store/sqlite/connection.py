"""One connection: its types, the explanation of SQLite's errors to people, and the numbered
migrations.

Each migration is one transaction that also sets its number; a database from the future is refused.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import apsw
import msgspec

from talaria.core.errors import OperatorError, StoreDamaged, StoreTooNew, StoreUnavailable
from talaria.store.base import BrokenRuleError

Value = str | int | float | bytes | None


class Rows(Protocol):
    def __iter__(self) -> Iterator[tuple[Any, ...]]: ...
    def fetchone(self) -> tuple[Any, ...] | None: ...
    def fetchall(self) -> list[tuple[Any, ...]]: ...
    @property
    def get(self) -> Any:
        """The only value of the only row."""
        ...


class SqliteConnection(Protocol):
    @property
    def in_transaction(self) -> bool: ...
    def execute(self, statements: str, bindings: Sequence[Value] = (), /) -> Rows: ...
    def executemany(self, statements: str, bindings: Iterable[Sequence[Value]], /) -> Rows: ...
    def changes(self) -> int: ...
    def total_changes(self) -> int: ...
    def readonly(self, name: str, /) -> bool: ...
    def pragma(self, name: str, value: Value = None, /) -> Any: ...
    def close(self, force: bool = ..., /) -> None: ...


def step(db: SqliteConnection, refusal: str, sql: str, bindings: tuple[Value, ...]) -> None:
    """Changes exactly one row, or raises."""
    db.execute(sql, bindings)
    if db.changes() != 1:
        raise BrokenRuleError(refusal)


_UNAVAILABLE: tuple[tuple[type[apsw.Error], str], ...] = (
    (apsw.FullError, "the disk is full; nothing is lost, and work continues once there is space"),
    (apsw.BusyError, "another program has locked it; work continues once the lock is released"),
    (apsw.LockedError, "another program has locked it; work continues once the lock is released"),
    (apsw.ReadOnlyError, "it cannot be written (read-only file or disk); make it writable and work continues"),
    (apsw.IOError, "the disk reports an error; nothing acknowledged is lost, and work continues once the disk works"),
    (apsw.CantOpenError, "it cannot be opened; check that the folder exists and is writable"),
    (apsw.PermissionsError, "access was refused; check the permissions of the file and its folder"),
    (apsw.NoMemError, "there is not enough memory"),
)
_DAMAGED = (apsw.CorruptError, apsw.NotADBError, msgspec.DecodeError, UnicodeDecodeError)

FAULTS = (apsw.Error, msgspec.DecodeError, UnicodeDecodeError)
"""What reading and writing may raise besides our own errors; a row that cannot be decoded is damage, too."""


def explain(fault: Exception, path: Path) -> Exception:
    """The fault as one of our errors; unchanged if it already is one, or is a bug (bad SQL)."""
    error: Exception | None = None
    if isinstance(fault, apsw.ConstraintError):
        error = BrokenRuleError(str(fault))
    elif isinstance(fault, _DAMAGED):
        error = StoreDamaged(
            f"{path} is damaged ({fault}). It was not changed: restore a backup, or move it away to start fresh."
        )
    elif meaning := next((meaning for kind, meaning in _UNAVAILABLE if isinstance(fault, kind)), None):
        error = StoreUnavailable(f"Cannot use {path}: {meaning}.")
    if error is None:
        return fault
    error.__cause__ = fault
    return error


def unusable_folder(folder: Path, fault: OSError) -> OperatorError:
    return OperatorError(
        f"Cannot create files in {folder} ({fault.strerror}). Make it writable, or set TALARIA_HOME to another folder."
    )


@cache
def steps() -> tuple[tuple[int, str], ...]:
    """(number, SQL) of every migration, ascending."""
    folder = Path(__file__).with_name("migrations")
    files = sorted((item for item in folder.iterdir() if item.name.endswith(".sql")), key=lambda item: item.name)
    return tuple((int(item.name.split("_", 1)[0]), item.read_text("utf-8")) for item in files)


def migrate(connection: SqliteConnection, path: Path) -> None:
    """Bring the schema up to date; another process may be doing the same right now."""
    version = int(connection.pragma("user_version"))
    if version == LATEST:
        return
    if version > LATEST:
        raise StoreTooNew(
            f"{path} was written by a newer Talaria (schema {version}, this one knows {LATEST}). Update Talaria; "
            "the file was not touched."
        )
    for number, sql in steps():
        connection.execute("BEGIN IMMEDIATE")
        try:
            if int(connection.pragma("user_version")) < number:
                connection.execute(sql)
                connection.pragma("user_version", number)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


LATEST = 10
"""The number of the newest migration, so that the folder need not be read; a test compares the two."""
