"""The part of an apsw connection that SQL work needs, typed: rows come out as plain tuples.

Steps that are guarded by the state that they leave.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

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
