"""Numbered migrations, each in one transaction with its number; a database from the future is refused."""

from functools import cache
from importlib import resources
from pathlib import Path

from talaria.core.errors import StoreTooNew
from talaria.store.sqlite.connection import SqliteConnection


@cache
def steps() -> tuple[tuple[int, str], ...]:
    """(number, SQL) of every migration, ascending."""
    folder = resources.files("talaria.store.sqlite") / "migrations"
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
        _apply(connection, number, sql)


def _apply(connection: SqliteConnection, number: int, sql: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        if int(connection.pragma("user_version")) < number:
            connection.execute(sql)
            connection.pragma("user_version", number)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


LATEST = 7
"""Number of the newest migration, known without reading the folder; a test compares."""
