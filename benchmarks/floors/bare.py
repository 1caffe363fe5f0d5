"""A turn without an agent: a POST whose answer is read to its end, and durable commits in the caller's thread."""

# pyright: reportUnknownMemberType=false
# (apsw does not type what it binds)

from collections.abc import Iterable
from pathlib import Path
from typing import Self

import aiohttp
import apsw

TEXT = "x" * 300


def database(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = wal; PRAGMA synchronous = full")
    connection.execute("CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, body TEXT NOT NULL) STRICT")
    return connection


def commit(connection: apsw.Connection, bodies: Iterable[str] = (TEXT,)) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("INSERT INTO entries (body) VALUES (?)", [(body,) for body in bodies])
    connection.execute("COMMIT")


class Bare:
    def __init__(self, home: Path, model_url: str) -> None:
        self._url = f"{model_url}/chat/completions"
        self._connection = database(home / "bare.db")

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        self._connection.close()

    async def post(self, body: bytes) -> bytes:
        async with self._session.post(self._url, data=body) as response:
            return await response.read()

    def commit(self, times: int = 1) -> None:
        for _ in range(times):
            commit(self._connection)
