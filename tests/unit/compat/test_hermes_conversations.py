"""Conversations on their way: one at a time, each whole or not at all, and again without harm."""

import sqlite3
from pathlib import Path

import pytest

from talaria.cli import notices
from talaria.cli.main import main
from talaria.compat.hermes_home.conversation_import import StoreReceiver, import_conversations
from talaria.compat.hermes_home.hermes_database import HermesSession
from talaria.compat.hermes_home.report import Item
from talaria.core.entries import Recorded
from talaria.core.errors import StoreUnavailable
from talaria.store.memory import MemoryStore
from talaria.testing.manual_clock import ManualClock
from talaria.tools.registry import Toolbox

SCHEMA = """
CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT NOT NULL, started_at REAL NOT NULL);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, role TEXT NOT NULL, content TEXT, timestamp REAL
);
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three conversations, in the very first form that Hermes had and less."""
    path = tmp_path / "hermes" / "state.db"
    path.parent.mkdir()
    db = sqlite3.connect(path)
    db.executescript(SCHEMA)
    for name in ("one", "two", "three"):
        db.execute("INSERT INTO sessions VALUES (?, 'cli', 100)", (name,))
        for role in ("user", "assistant"):
            db.execute("INSERT INTO messages (session_id, role, content) VALUES (?, ?, ?)", (name, role, "words"))
    db.commit()
    db.close()
    return path


class FullDisk(StoreReceiver):
    """Takes one, and then has no room."""

    async def take(self, row: HermesSession, entries: list[Recorded]) -> bool:
        if row.id == "two":
            raise StoreUnavailable("The disk is full.")
        return await super().take(row, entries)


def receiver(store: MemoryStore, home: Path, kind: type[StoreReceiver] = StoreReceiver) -> StoreReceiver:
    return kind(store.sessions, Toolbox(()), home)


async def test_each_conversation_is_counted_as_it_is_done(file: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    store = MemoryStore(ManualClock())

    items = await import_conversations(file, receiver(store, tmp_path), lambda done, total: seen.append((done, total)))

    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert items == [Item("conversations", "3 conversations with 6 messages", "taken")]
    assert {session.created_at for session in await store.sessions.list()} == {100.0}


async def test_import_that_ended_half_way_is_finished_by_the_next(file: Path, tmp_path: Path) -> None:
    store = MemoryStore(ManualClock())

    first, failure = await import_conversations(file, receiver(store, tmp_path, FullDisk), lambda done, total: None)

    assert (first.name, first.verdict) == ("1 conversation with 2 messages", "taken")
    assert (failure.verdict, failure.reason) == ("left", "The disk is full.")
    assert isinstance(failure.failure, StoreUnavailable)
    again = await import_conversations(file, receiver(store, tmp_path), lambda done, total: None)
    assert {(item.name, item.verdict) for item in again} == {
        ("1 conversation", "there"),
        ("2 conversations with 4 messages", "taken"),
    }
    assert sorted(session.id for session in await store.sessions.list()) == ["one", "three", "two"]


def test_long_work_is_shown_beside_the_report(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TALARIA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(notices, "LINE_EVERY_S", 0.0)

    assert main(["import", "hermes", str(file.parent)]) == 0

    shown = capsys.readouterr()
    assert [line.split(" · ")[1] for line in shown.err.splitlines()] == ["33 %", "66 %", "100 %"]
    assert shown.out == "Imported:\n  conversations: 3 conversations with 6 messages\n"
