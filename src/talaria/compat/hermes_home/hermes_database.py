"""Hermes' state.db, in whatever version: columns that it lacks get their defaults. It is never written, and a running
Hermes is not disturbed."""

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import apsw

from talaria.core.errors import StoreDamaged, StoreUnavailable, TalariaError
from talaria.store.sqlite.connection import SqliteConnection, Value

SUMMARY_OPENINGS = ("[CONTEXT COMPACTION", "[CONTEXT SUMMARY]")
"""How a summary begins that replaces earlier messages."""


@dataclass(frozen=True, slots=True)
class MessageRow:
    id: int
    role: str
    content: str | None = None
    call_id: str = ""
    calls: str = ""
    """JSON."""
    tool: str = ""
    at: float | None = None
    finish: str = ""
    reasoning: str = ""
    effect: str = ""
    is_live: bool = True
    """False: archived when the conversation was compacted."""
    is_observed: bool = False
    """Seen in a group, but not addressed to the assistant."""
    is_marked_summary: bool = False

    @property
    def is_summary(self) -> bool:
        looks_like_one = (self.content or "").lstrip().startswith(SUMMARY_OPENINGS)
        return self.role != "tool" and (self.is_marked_summary or looks_like_one)


@dataclass(frozen=True, slots=True)
class HermesSession:
    rowid: int
    """Finds its messages."""
    id: str
    source: str = ""
    model: str = ""
    provider: str = ""
    title: str | None = None
    parent: str | None = None
    cwd: str = ""
    at: float | None = None
    is_helper: bool = False
    """The run of a subagent or a tool, not a conversation with the person."""


def clean_text(text: str) -> str:
    """Without what JSON and endpoints do not accept: NULs and unpaired surrogates."""
    return text.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


BUSY_TIMEOUT_MS = 5_000
_LATEST_TIME = 4_102_444_800.0
"""The year 2100: anything later is not a time."""
_WAL_MARK = slice(18, 20)
"""The bytes of the header that say whether the file uses a write-ahead log."""

_SESSION_TEXTS = ("id", "source", "model", "billing_provider", "title", "parent_session_id", "cwd", "model_config")
_MESSAGE_TEXTS = (
    *("role", "content", "tool_call_id", "tool_calls", "tool_name", "finish_reason"),
    *("reasoning", "reasoning_content", "effect_disposition"),
)
_MESSAGE_MARKS = ("active", "compacted", "observed", "_compressed_summary")

Row = dict[str, Any]


class StateFile:
    """Every method raises `StoreUnavailable` or `StoreDamaged`."""

    def __init__(self, path: Path, connection: SqliteConnection) -> None:
        self._path = path
        self._connection = connection
        self._columns = {
            table: {str(row[0]) for row in self._rows("SELECT name FROM pragma_table_info(?)", table)}
            for table in ("sessions", "messages")
        }
        if not {"id", "session_id", "role"} <= self._columns["messages"] or "id" not in self._columns["sessions"]:
            raise StoreDamaged(f"{path} has no conversations of Hermes.")

    @property
    def count(self) -> int:
        return int(next(self._rows("SELECT count(*) FROM sessions"))[0])

    def sessions(self) -> Iterator[HermesSession]:
        """In the order in which they were started: a parent comes before its children."""
        wanted = self._select_expressions("sessions", _SESSION_TEXTS, ("rowid", "started_at"))
        rowid = -1 << 62
        while found := self._read("sessions", wanted, "rowid > ? ORDER BY rowid LIMIT 1", rowid):
            row = found[0]
            rowid = int(row["rowid"])
            source = _text(row["source"])
            yield HermesSession(  # nothing is locked until the next one is wanted
                rowid=rowid,
                id=_text(row["id"]),
                source=source or "hermes",
                model=_text(row["model"]),
                provider=_text(row["billing_provider"]),
                title=_text(row["title"]) or None,
                parent=_text(row["parent_session_id"]) or None,
                cwd=_text(row["cwd"]),
                at=_time(row["started_at"]),
                is_helper=source in ("tool", "subagent") or '"_delegate_from"' in _text(row["model_config"]),
            )

    def messages(self, session: HermesSession) -> list[MessageRow]:
        """In order, without those that were undone."""
        wanted = self._select_expressions("messages", _MESSAGE_TEXTS, ("id", "timestamp", *_MESSAGE_MARKS))
        which = "session_id = (SELECT id FROM sessions WHERE rowid = ?) ORDER BY id"
        return [
            MessageRow(
                id=int(row["id"]),
                role=_text(row["role"]).lower(),
                content=_raw(row["content"]),
                call_id=_text(row["tool_call_id"]),
                calls=_raw(row["tool_calls"]) or "",
                tool=_text(row["tool_name"]),
                at=_time(row["timestamp"]),
                finish=_text(row["finish_reason"]),
                reasoning=_raw(row["reasoning"]) or _raw(row["reasoning_content"]) or "",
                effect=_text(row["effect_disposition"]),
                is_live=row["active"] != 0,
                is_observed=bool(row["observed"]),
                is_marked_summary=bool(row["_compressed_summary"]),
            )
            for row in self._read("messages", wanted, which, session.rowid)
            if row["active"] != 0 or row["compacted"]
        ]

    def _select_expressions(self, table: str, texts: Sequence[str], others: Sequence[str]) -> dict[str, str]:
        """What to select for each name. Text is read as bytes: one that is not UTF-8 must not end the reading."""
        known = self._columns[table] | {"rowid"}
        forms = {**{name: f"CAST({name} AS BLOB)" for name in texts}, **{name: name for name in others}}
        return {name: form if name in known else "NULL" for name, form in forms.items()}

    def _read(self, table: str, wanted: Mapping[str, str], which: str, value: int) -> list[Row]:
        sql = f"SELECT {', '.join(wanted.values())} FROM {table} WHERE {which}"  # noqa: S608  (from our own names)
        return [dict(zip(wanted, row, strict=True)) for row in self._rows(sql, value)]

    def _rows(self, sql: str, *values: Value) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._connection.execute(sql, values)
        except apsw.Error as fault:
            raise _explain(fault, self._path) from fault


@contextmanager
def open_state(path: Path) -> Generator[StateFile]:
    """Raises as `StateFile` does, and `StoreUnavailable` if there is no file."""
    with open_read_only(path) as connection:
        yield StateFile(path, connection)


@contextmanager
def open_read_only(path: Path) -> Generator[SqliteConnection]:
    """Writes nothing beside the file, either: no log for a database at rest, nothing in the index of a log. Raises as
    `StateFile` does, also from the body."""
    path = path.resolve()
    try:
        with path.open("rb") as file:
            keeps_log = file.read(20)[_WAL_MARK] == b"\2\2"
        is_at_rest = keeps_log and not path.with_name(f"{path.name}-wal").exists()
        way = "immutable=1" if is_at_rest else "mode=ro&readonly_shm=1"
        connection = apsw.Connection(
            f"file:{quote(os.fsencode(path))}?{way}", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        )
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    except OSError as fault:
        raise StoreUnavailable(f"Cannot read {path}: {fault.strerror}.") from fault
    except apsw.Error as fault:
        raise _explain(fault, path) from fault
    try:
        yield cast("SqliteConnection", connection)
    except apsw.Error as fault:
        raise _explain(fault, path) from fault
    finally:
        connection.close(True)


def _explain(fault: apsw.Error, path: Path) -> TalariaError:
    if isinstance(fault, apsw.BusyError | apsw.LockedError):
        return StoreUnavailable(f"{path} is locked by another program: stop Hermes and import again.")
    if isinstance(fault, apsw.CantOpenError):
        return StoreUnavailable(
            f"Cannot open {path}: if it is a copy, copy {path.name}-shm as well as {path.name}-wal."
        )
    if isinstance(fault, apsw.CorruptError | apsw.NotADBError):
        return StoreDamaged(f"{path} is damaged ({fault}): put a backup in its place and import again.")
    return StoreUnavailable(f"Cannot read {path}: {fault}.")


def _raw(value: object) -> str | None:
    return cast("bytes", value).decode("utf-8", "replace") if value is not None else None


def _text(value: object) -> str:
    return clean_text(_raw(value) or "").strip()


def _time(value: object) -> float | None:
    is_time = isinstance(value, int | float) and 0 < value < _LATEST_TIME
    return float(cast("float", value)) if is_time else None
