"""Steps that are guarded by the state that they leave."""

from talaria.store.base import BrokenRuleError
from talaria.store.sqlite.connection import SqliteConnection, Value


def step(db: SqliteConnection, refusal: str, sql: str, bindings: tuple[Value, ...]) -> None:
    """Changes exactly one row, or raises."""
    db.execute(sql, bindings)
    if db.changes() != 1:
        raise BrokenRuleError(refusal)
