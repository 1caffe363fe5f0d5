"""One answer with httpx2, asyncio and one durable commit. Called with the endpoint's address and a database file."""

# pyright: reportUnknownMemberType=false
# (apsw does not type what it binds)

import asyncio
import json
import sys

import apsw
import httpx2


async def answer(url: str) -> str:
    pieces: list[str] = []
    body = {"model": "test", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    async with httpx2.AsyncClient() as client, client.stream("POST", url, json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                pieces += [choice["delta"].get("content", "") for choice in json.loads(line[6:])["choices"]]
    return "".join(pieces)


def keep(text: str, path: str) -> None:
    connection = apsw.Connection(path)
    connection.execute("PRAGMA journal_mode = wal; PRAGMA synchronous = full")
    connection.execute("CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, body TEXT NOT NULL) STRICT")
    connection.execute("INSERT INTO entries (body) VALUES (?)", (text,))


if __name__ == "__main__":
    said = asyncio.run(answer(sys.argv[1]))
    keep(said, sys.argv[2])
    print(said)
