"""Searching many messages: ours catches up with the journal and brings snippets; the floor only asks FTS5."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import apsw

from benchmarks.application import temporary_home
from benchmarks.measuring import Lap, Plan
from benchmarks.table import Row
from talaria.core.clock import SystemClock
from talaria.core.entries import MessageAdded
from talaria.core.ids import SessionId
from talaria.core.messages import user
from talaria.store.base import Held, NewSession
from talaria.store.sqlite.connection import SqliteConnection
from talaria.store.sqlite.store import SqliteStore

_SESSIONS = 20
_BATCH = 500
_LIMIT = 20
_WARM_UP = 5
_QUERY = "SELECT rowid FROM words(?) ORDER BY rowid DESC LIMIT ?"


def rows(plan: Plan) -> Iterator[Row]:
    messages, runs = plan.of(100_000, 20_000), plan.of(200, 50)
    floor, ours = asyncio.run(_measure(messages, runs))
    what = f"search {messages:,} messages / FTS5"
    yield Row(what, floor.median_ms, ours.median_ms, "ms", runs, limit=1)


async def _measure(messages: int, runs: int) -> tuple[Lap, Lap]:
    floor, ours = Lap(_WARM_UP), Lap(_WARM_UP)
    writing = _Writing(random.Random(1))
    with temporary_home() as home:
        async with SqliteStore(home, SystemClock()) as store:
            await _fill(store, writing, messages)
            await store.search.catch_up()
            index = _index(home)
            for _ in range(runs + _WARM_UP):
                words = writing.query()
                with floor:
                    found = index.execute(_QUERY, (" ".join(f'"{word}"' for word in words), _LIMIT)).fetchall()
                with ours:
                    hits = await store.search.search(" ".join(words), _LIMIT)
                if len(hits) != len(found):
                    raise RuntimeError(f"{words}: ours found {len(hits)}, the floor {len(found)}")
            index.close()
    return floor, ours


def _index(home: Path) -> SqliteConnection:
    return apsw.Connection(str(home / "search.db"), flags=apsw.SQLITE_OPEN_READONLY)


class _Writing:
    """Sentences of a language whose words are as unevenly used as those of a real one."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._words = [f"w{chance.getrandbits(40):x}" for _ in range(20_000)]
        self._weights = [1 / (rank + 3) for rank in range(len(self._words))]

    def sentences(self, number: int) -> Sequence[str]:
        words = self._chance.choices(self._words, self._weights, k=30 * number)
        return [" ".join(words[start : start + 30]) for start in range(0, len(words), 30)]

    def query(self) -> Sequence[str]:
        """Two words of one sentence."""
        return self._chance.sample(self.sentences(1)[0].split(), 2)


async def _fill(store: SqliteStore, writing: _Writing, messages: int) -> None:
    owner = await store.owners.join("benchmark")
    for number in range(_SESSIONS):
        id = SessionId(f"s{number}")
        await store.sessions.create(NewSession(id, "library"))
        epoch = await store.journal.seize(id, owner)
        if isinstance(epoch, Held):
            raise TypeError(f"{id} is held by {epoch.owner}")
        for _ in range(messages // _SESSIONS // _BATCH):
            entries = [MessageAdded(user(text)) for text in writing.sentences(_BATCH)]
            await store.journal.record(id, epoch, entries)
