"""The HTTP API's tokens, and the histories by which programs name their conversations."""

from collections.abc import Sequence
from typing import Any

import msgspec

from talaria.core.ids import SessionId
from talaria.store.api_ports import ApiToken, HistoryMatch, HistoryPoint, Scope
from talaria.store.sqlite.connection import SqliteConnection
from talaria.store.sqlite.database import Database

# In the order of the fields of `ApiToken`.
_COLUMNS = "name, digest, scopes, created_at, expires_at, tokens_per_day, usd_per_day, requests_per_minute"
_encode = msgspec.json.Encoder().encode
_decode_scopes = msgspec.json.Decoder(tuple[Scope, ...]).decode


class ApiTokens:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, token: ApiToken) -> bool:
        name, digest, scopes, *others = msgspec.structs.astuple(token)
        sql = f"INSERT INTO api_tokens ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
        return await self._database.change(sql, (name, digest, _encode(scopes).decode(), *others)) == 1

    async def find(self, digest: str) -> ApiToken | None:
        rows = await self._database.rows(f"SELECT {_COLUMNS} FROM api_tokens WHERE digest = ?", (digest,))
        return _token(rows[0]) if rows else None

    async def list(self) -> Sequence[ApiToken]:
        rows = await self._database.rows(f"SELECT {_COLUMNS} FROM api_tokens ORDER BY created_at, name", ())
        return [_token(row) for row in rows]

    async def revoke(self, name: str) -> bool:
        return await self._database.change("DELETE FROM api_tokens WHERE name = ?", (name,)) == 1


def _token(row: tuple[Any, ...]) -> ApiToken:
    name, digest, scopes, created_at, expires_at, *caps = row
    tokens_per_day, usd_per_day, requests_per_minute = caps
    return ApiToken(
        name=name,
        digest=digest,
        scopes=_decode_scopes(scopes),
        created_at=created_at,
        expires_at=expires_at,
        tokens_per_day=tokens_per_day,
        usd_per_day=usd_per_day,
        requests_per_minute=requests_per_minute,
    )


class Histories:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, point: HistoryPoint, limit: int = 10) -> Sequence[HistoryMatch]:
        sql = (
            "SELECT session, seq, seq = last_seq FROM histories JOIN sessions ON sessions.id = session"
            " WHERE histories.person = ? AND digest = ?"
            " ORDER BY seq = last_seq DESC, updated_at DESC, session DESC, seq DESC LIMIT ?"
        )
        rows = await self._database.rows(sql, (point.person, point.digest, limit))
        return [HistoryMatch(session, seq, bool(is_end)) for session, seq, is_end in rows]


def add_point(db: SqliteConnection, session: SessionId, point: HistoryPoint) -> None:
    """At the session's last entry."""
    db.execute(
        "INSERT INTO histories SELECT id, last_seq, ?, ? FROM sessions WHERE id = ? ON CONFLICT DO NOTHING",
        (point.person, point.digest, session),
    )


def copy_points(db: SqliteConnection, session: SessionId, copy: SessionId) -> None:
    """Those of the entries that were copied."""
    db.execute(
        "INSERT INTO histories SELECT ?1, seq, person, digest FROM histories"
        " WHERE session = ?2 AND seq <= (SELECT last_seq FROM sessions WHERE id = ?1)",
        (copy, session),
    )
