"""Several processes that ask and answer on one home, and a home from before there were approvals."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import apsw
import pytest

from talaria.core.ids import ApprovalId, CallId, GrantId, OwnerId, SessionId, TurnId
from talaria.store.base import NewSession
from talaria.store.permission_ports import Grant, NewApproval
from talaria.store.sqlite.connection import SqliteConnection, steps
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.manual_clock import ManualClock

SESSION = SessionId("session")
PERSON = "ann"
ID, UNUSED = ApprovalId("a" * 32), ApprovalId("b" * 32)


def question(owner: OwnerId, id: ApprovalId = ID) -> NewApproval:
    return NewApproval(id, SESSION, TurnId("t"), CallId("c"), owner, PERSON, "terminal", "make", "digest", 9e9)


async def test_two_processes_answer_and_use_a_question_once(home: Path, clock: ManualClock) -> None:
    async with SqliteStore(home, clock) as one, SqliteStore(home, clock) as other:
        await one.sessions.create(NewSession(SESSION, "test"))
        await one.approvals.request(question(await one.owners.join("test")))
        assert [waiting.id for waiting in await other.approvals.list_pending()] == [ID]

        answers = [store.approvals.decide(ID, is_allowed=True, by=PERSON) for store in (one, other) * 10]
        assert sum(await asyncio.gather(*answers)) == 1
        uses = [store.approvals.use(ID, "digest") for store in (one, other) * 10]
        assert sum(await asyncio.gather(*uses)) == 1


async def test_questions_and_grants_are_there_when_the_store_is_opened_again(home: Path, clock: ManualClock) -> None:
    grant = Grant(GrantId("g"), PERSON, "terminal", "make", "/", None, 0.0, None)
    async with SqliteStore(home, clock) as store:
        await store.sessions.create(NewSession(SESSION, "test"))
        await store.approvals.request(question(await store.owners.join("test")))
        await store.grants.add(grant)

    async with SqliteStore(home, clock) as store:
        assert await store.grants.list() == [grant]
        assert await store.approvals.find(ID) is not None
        assert await store.approvals.list_pending() == []
        assert await store.approvals.decide(ID, is_allowed=True, by=PERSON) is False


ASKING = """
import asyncio, sys
from pathlib import Path
from talaria.core.clock import SystemClock
from talaria.core.ids import ApprovalId, CallId, SessionId, TurnId
from talaria.store.base import NewSession
from talaria.store.permission_ports import NewApproval
from talaria.store.sqlite.store import SqliteStore

async def main():
    async with SqliteStore(Path(sys.argv[1]), SystemClock()) as store:
        owner = await store.owners.join("test")
        session = (await store.sessions.create(NewSession(SessionId("session"), "test"))).id
        for id in ("a" * 32, "b" * 32):
            await store.approvals.request(
                NewApproval(
                    ApprovalId(id), session, TurnId("t"), CallId("c"), owner, "ann", "terminal", "make", "digest", 9e9
                )
            )
        print("asked", flush=True)
        sys.stdin.read()

asyncio.run(main())
"""


@pytest.fixture
def asker(home: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which waits for two answers."""
    with subprocess.Popen(
        [sys.executable, "-c", ASKING, home], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        yield process
        process.kill()


async def test_killed_process_takes_its_questions_and_unused_answers_along(
    home: Path, clock: ManualClock, asker: subprocess.Popen[str]
) -> None:
    async with SqliteStore(home, clock) as store:
        assert [waiting.id for waiting in await store.approvals.list_pending()] == [ID, UNUSED]
        assert await store.approvals.decide(UNUSED, is_allowed=True, by=PERSON)

        asker.kill()
        asker.wait()

        assert await store.approvals.list_pending() == []
        assert await store.approvals.decide(ID, is_allowed=True, by=PERSON) is False
        assert await store.approvals.use(UNUSED, "digest") is False


def write_schema_2(path: Path) -> None:
    path.parent.mkdir()
    connection = cast("SqliteConnection", apsw.Connection(str(path)))
    for _, sql in steps()[:2]:
        connection.execute(sql)
    connection.pragma("user_version", 2)
    connection.execute("INSERT INTO owners VALUES ('1-a', 'test', 1, 0)")
    connection.execute(
        "INSERT INTO sessions (id, source, model, cwd, system_prompt, tools, title, created_at, updated_at)"
        " VALUES ('session', 'test', 'm', '/', 'p', '[]', 'Garden', 1, 2)"
    )
    connection.execute('INSERT INTO entries VALUES (7, \'session\', 1, 1, \'{"type":"noted","text":"x"}\')')
    connection.execute("INSERT INTO calls VALUES ('session', 'c', 't', 'x', '{}', 'intent', 1, NULL, NULL, NULL)")
    connection.execute("INSERT INTO inbox VALUES (3, 'telegram', 'bot', '42', '1', 'session', 'hi', 'new', NULL, 1)")
    connection.execute("INSERT INTO cursors VALUES ('telegram', 'bot', '5')")
    connection.execute("INSERT INTO outbox VALUES (4, 'session', '42', 'b', 'k', 1, 9e9, 'pending', 0, NULL, '')")
    connection.execute("INSERT INTO unindexed VALUES (6)")
    connection.execute(
        "INSERT INTO spending VALUES (8, 'session', 1, '2026-02-01', 'ann', 'm', 'turn', 1, 2, 3, 4, 5, 0.5)"
    )
    connection.execute("INSERT INTO holds VALUES (9, 'session', 'ann', '1-a', 10, 0.25)")
    connection.close()


def contents(path: Path) -> dict[str, list[dict[str, object]]]:
    """Every row of every table, by column; what a conversation began with as part of it, wherever it is kept."""
    connection = cast("SqliteConnection", apsw.Connection(str(path)))
    try:
        names = [str(row[0]) for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        tables = {name: rows(connection, name) for name in names}
    finally:
        connection.close()
    tables["sqlite_sequence"] = [row for row in tables["sqlite_sequence"] if row["seq"]]  # a table made anew has 0
    for prompt in tables.pop("prompts", []):
        (session,) = (row for row in tables["sessions"] if row["id"] == prompt["session"])
        session |= prompt
    return tables


def rows(connection: SqliteConnection, table: str) -> list[dict[str, object]]:
    columns = [str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")]
    found = connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
    return [dict(zip(columns, row, strict=True)) for row in found]


async def test_home_from_before_keeps_everything_and_can_ask(home: Path, clock: ManualClock) -> None:
    path = home / "state.db"
    write_schema_2(path)
    before = contents(path)
    assert all(before.values())

    async with SqliteStore(home, clock) as store:
        assert await store.approvals.list_pending() == []
        assert await store.grants.list() == []
    after = contents(path)
    for name, old in before.items():
        assert [row | was for row, was in zip(after[name], old, strict=True)] == after[name]
    assert not any(after[name] for name in after.keys() - before.keys())

    async with SqliteStore(home, clock) as store:
        await store.approvals.request(question(await store.owners.join("test")))
        assert await store.approvals.decide(ID, is_allowed=True, by=PERSON)
        assert await store.approvals.use(ID, "digest")
