"""One answer with nothing but the standard library. Called with the endpoint's address and a database file."""

import http.client
import json
import sqlite3
import sys
from urllib.parse import urlsplit


def answer(url: str) -> str:
    pieces: list[str] = []
    parts = urlsplit(url)
    body = {"model": "test", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    connection = http.client.HTTPConnection(parts.netloc)
    connection.request("POST", parts.path, json.dumps(body))
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            pieces += [choice["delta"].get("content", "") for choice in json.loads(line[6:])["choices"]]
    return "".join(pieces)


def keep(text: str, path: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = wal")
        connection.execute("PRAGMA synchronous = full")
        connection.execute("CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, body TEXT NOT NULL)")
        connection.execute("INSERT INTO entries (body) VALUES (?)", (text,))


if __name__ == "__main__":
    said = answer(sys.argv[1])
    keep(said, sys.argv[2])
    print(said)
