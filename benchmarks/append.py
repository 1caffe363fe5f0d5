"""Appending to the store: eight sessions write message after message, each waiting for its own to be durable."""

import asyncio
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.application import temporary_home
from benchmarks.floors import bare
from benchmarks.measuring import Plan
from benchmarks.table import Row
from talaria.core.clock import SystemClock
from talaria.core.entries import MessageAdded
from talaria.core.ids import SessionId
from talaria.core.messages import user
from talaria.store.base import Held, NewSession
from talaria.store.sqlite.store import SqliteStore

_WRITERS = 8


def rows(plan: Plan) -> Iterator[Row]:
    runs, messages = plan.of(5, 2), plan.of(1_000, 250)
    floor: list[float] = []
    ours: list[float] = []
    for _ in range(runs):
        with temporary_home() as home:
            floor.append(_WRITERS * messages / _floor_s(home, messages))
            ours.append(_WRITERS * messages / asyncio.run(_ours_s(home, messages)))
    what = f"append, {_WRITERS} writers / group commit"
    yield Row(what, statistics.median(floor), statistics.median(ours), "msg/s", runs, limit=15_000)


def _floor_s(home: Path, messages: int) -> float:
    connection = bare.database(home / "bare.db")
    began = time.perf_counter()
    for _ in range(messages):
        bare.commit(connection, [bare.TEXT] * _WRITERS)
    return time.perf_counter() - began


async def _ours_s(home: Path, messages: int) -> float:
    async with SqliteStore(home, SystemClock()) as store:
        owner = await store.owners.join("benchmark")
        entry = MessageAdded(user(bare.TEXT))

        async def write(id: SessionId) -> None:
            epoch = await store.journal.seize(id, owner)
            if isinstance(epoch, Held):
                raise TypeError(f"{id} is held by {epoch.owner}")
            for _ in range(messages):
                await store.journal.record(id, epoch, [entry])

        ids = [SessionId(f"s{number}") for number in range(_WRITERS)]
        for id in ids:
            await store.sessions.create(NewSession(id, "library"))
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for id in ids:
                group.create_task(write(id))
        return time.perf_counter() - began
