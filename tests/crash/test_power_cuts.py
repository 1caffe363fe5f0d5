"""Whatever moment the power fails at: what was acknowledged is there, in order, and nothing is there by half."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import cast

import apsw
import pytest

from talaria.core.entries import Entry, MessageAdded, Noted
from talaria.core.errors import StoreDamaged
from talaria.core.ids import OwnerId, SessionId
from talaria.core.messages import user
from talaria.store.base import Held, Journal, NewSession, Owners, Sessions
from talaria.store.mail import Cursor, Inbound, Inbox, Outgoing
from talaria.store.sqlite import database
from talaria.store.sqlite.connection import SqliteConnection
from talaria.store.sqlite.database import Database
from talaria.store.sqlite.journal import Journal as SqliteJournal
from talaria.store.sqlite.mail import Inbox as SqliteInbox
from talaria.store.sqlite.migrate import migrate
from talaria.store.sqlite.presence import Owners as SqliteOwners
from talaria.store.sqlite.presence import Presence
from talaria.store.sqlite.sessions import Sessions as SqliteSessions
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.manual_clock import ManualClock
from talaria.testing.powercut import Disk, DiskRecorder, FileWritten, Operation

SESSIONS = [SessionId(f"session-{n}") for n in range(6)]
MAILBOX = SessionId("mailbox")
CHAT = "agent:main:p:dm:c"
RECORDS = 60
BATCHES = 60
BATCH = 2
PADDING = "x" * 6_000


@pytest.fixture(autouse=True)
def frequent_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a short load has some of them."""
    monkeypatch.setattr(database, "CHECKPOINT_PAGES", 500)


@dataclass(frozen=True)
class Parts:
    journal: Journal
    inbox: Inbox
    sessions: Sessions
    owners: Owners


Opened = Callable[[Path, str], AbstractAsyncContextManager[Parts]]


@asynccontextmanager
async def full(home: Path, vfs: str) -> AsyncGenerator[Parts]:
    async with SqliteStore(home, ManualClock(), vfs=vfs) as store:
        yield Parts(store.journal, store.inbox, store.sessions, store.owners)


@asynccontextmanager
async def relaxed(home: Path, vfs: str) -> AsyncGenerator[Parts]:
    """The same with `synchronous=NORMAL`: a commit is acknowledged before it is synced."""

    def prepare(connection: SqliteConnection, path: Path) -> None:
        migrate(connection, path)
        connection.pragma("synchronous", "normal")

    clock, presence = ManualClock(), Presence(home / "run")
    async with Database(home / "state.db", prepare, vfs=vfs) as opened:
        yield Parts(
            SqliteJournal(opened, presence, clock),
            SqliteInbox(opened, clock),
            SqliteSessions(opened, presence, clock),
            SqliteOwners(opened, presence, clock),
        )
    await asyncio.to_thread(presence.leave_all)


@dataclass
class Run:
    """What was asked of the disk, and after how many operations each thing was acknowledged."""

    operations: list[Operation]
    created: dict[SessionId, int] = field(default_factory=dict[SessionId, int])
    recorded: dict[SessionId, list[int]] = field(default_factory=dict[SessionId, list[int]])
    accepted: list[int] = field(default_factory=list[int])

    def acknowledged(self, session: SessionId, cut: int) -> int:
        return sum(at <= cut for at in self.recorded.get(session, ()))


async def run_load(home: Path, opened: Opened) -> Run:
    with DiskRecorder() as recorder:
        run = Run(recorder.operations)
        async with opened(home, recorder.vfs) as parts:
            owner = await parts.owners.join("load")
            async with asyncio.TaskGroup() as tasks:
                for session in SESSIONS:
                    tasks.create_task(talk(parts, run, session, owner))
                tasks.create_task(receive(parts, run))
    return run


async def talk(parts: Parts, run: Run, session: SessionId, owner: OwnerId) -> None:
    await parts.sessions.create(NewSession(session, "load"))
    run.created[session] = len(run.operations)
    epoch = await parts.journal.seize(session, owner)
    assert not isinstance(epoch, Held)
    for number in range(RECORDS):
        await parts.journal.record(session, epoch, [*pair(number), Outgoing("t", "b", f"{session}/{number}", 9e9)])
        run.recorded.setdefault(session, []).append(len(run.operations))


async def receive(parts: Parts, run: Run) -> None:
    for number in range(BATCHES):
        session = MAILBOX if number == 0 else SessionId(f"mailbox-{number}")
        mail = [Inbound("p", "a", "c", str(number * BATCH + n), session, "body", CHAT) for n in range(BATCH)]
        await parts.inbox.accept(mail, Cursor("p", "a", str(number + 1)))
        run.accepted.append(len(run.operations))


def pair(number: int) -> list[Entry]:
    return [MessageAdded(user(f"{number} {PADDING}")), Noted(str(number))]


async def complaints(run: Run, cut: int, home: Path) -> list[str]:
    """What is wrong with the home that a power cut left behind."""
    try:
        return [*await inconsistencies(run, cut, home), *damage(home / "state.db")]
    except (StoreDamaged, apsw.Error) as fault:
        return [str(fault)]


async def inconsistencies(run: Run, cut: int, home: Path) -> list[str]:
    wrong: list[str] = []
    async with SqliteStore(home, ManualClock()) as store:
        for session in SESSIONS:
            if run.created.get(session, cut + 1) <= cut and await store.sessions.get(session) is None:
                wrong.append(f"{session} is lost")
            entries = [one.entry for one in await store.journal.entries(session)]
            count = len(entries) // 2
            if count < run.acknowledged(session, cut):
                wrong.append(f"{session}: {run.acknowledged(session, cut) - count} acknowledged records are lost")
            if entries != [entry for number in range(count) for entry in pair(number)]:
                wrong.append(f"{session}: records are out of order or half there")
            if [row.key for row in await store.outbox.rows(session)] != [f"{session}/{n}" for n in range(count)]:
                wrong.append(f"{session}: the outbox does not match the journal")
        cursor = int(await store.inbox.cursor("p", "a") or 0)
        if cursor < sum(at <= cut for at in run.accepted):
            wrong.append("accepted mail is lost")
        if [mail.message_id for mail in await store.inbox.pending(MAILBOX)] != [str(n) for n in range(cursor * BATCH)]:
            wrong.append("mail and cursor do not match")
        if [chat.key for chat in await store.chats.of(MAILBOX)] != [CHAT][:cursor]:
            wrong.append("mail and its chat's binding do not match")
    return wrong


def damage(path: Path) -> list[str]:
    connection = cast("SqliteConnection", apsw.Connection(str(path)))
    try:
        return [str(row[0]) for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
    finally:
        connection.close()


async def cut_often(run: Run, cuts: Sequence[int], disk: Disk, folder: Path, seed: int) -> dict[int, list[str]]:
    """The complaints of each cut that has some; `cuts` ascend."""
    found: dict[int, list[str]] = {}
    chance, done = Random(seed), 0
    for number, cut in enumerate(cuts):
        for operation in run.operations[done:cut]:
            disk.do(operation)
        done, home = cut, folder / str(number)
        await asyncio.to_thread(disk.cut, chance, home)
        if wrong := await complaints(run, cut, home):
            found[cut] = wrong
        shutil.rmtree(home)
    return found


def spread(run: Run, count: int, seed: int) -> list[int]:
    """Moments all over the run, the very first and last among them."""
    moments = range(1, len(run.operations))
    return [0, *sorted(Random(seed).choices(moments, k=count - 2)), len(run.operations)]


async def test_acknowledged_records_survive_every_power_cut(tmp_path: Path) -> None:
    run = await run_load(tmp_path / "home", full)
    assert any(
        isinstance(one, FileWritten) and one.file == "state.db" for one in run.operations[len(run.operations) // 2 :]
    )

    assert await cut_often(run, spread(run, 320, seed=1), Disk(), tmp_path / "cuts", seed=2) == {}


async def test_fresh_home_survives_a_power_cut_at_each_of_its_first_operations(tmp_path: Path) -> None:
    run = await run_load(tmp_path / "home", full)

    assert await cut_often(run, range(60), Disk(), tmp_path / "cuts", seed=3) == {}


async def test_harness_sees_what_relaxed_syncing_loses(tmp_path: Path) -> None:
    run = await run_load(tmp_path / "home", relaxed)

    found = await cut_often(run, spread(run, 40, seed=1), Disk(), tmp_path / "cuts", seed=2)

    assert len(found) > 10
    assert all("lost" in complaint for wrong in found.values() for complaint in wrong)


async def test_harness_sees_a_disk_that_ignores_syncs(tmp_path: Path) -> None:
    run = await run_load(tmp_path / "home", full)

    found = await cut_often(run, spread(run, 40, seed=1), Disk(is_honest=False), tmp_path / "cuts", seed=2)

    assert len(found) > 10


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
async def test_acknowledged_records_survive_thousands_of_power_cuts(tmp_path: Path, seed: int) -> None:
    run = await run_load(tmp_path / "home", full)

    assert await cut_often(run, spread(run, 1_000, seed), Disk(), tmp_path / "cuts", seed) == {}
