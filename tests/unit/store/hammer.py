"""A process that records into a shared home and says on stdout what was acknowledged.

python hammer.py HOME SESSION COUNT   waits for a line on stdin before it opens the store; a COUNT of 0 never ends.
"""

import asyncio
import itertools
import sys
from pathlib import Path

from talaria.core.clock import SystemClock
from talaria.core.entries import Noted
from talaria.core.ids import SessionId
from talaria.store.base import Held, NewSession
from talaria.store.sqlite.store import SqliteStore


async def main(home: Path, session: SessionId, count: int) -> None:
    async with SqliteStore(home, SystemClock()) as store:
        owner = await store.owners.join("hammer")
        await store.sessions.create(NewSession(session, "hammer"))
        epoch = await store.journal.seize(session, owner)
        assert not isinstance(epoch, Held)
        for number in range(count) if count else itertools.count():
            await store.journal.record(session, epoch, [Noted(f"{number}a"), Noted(f"{number}b")])
            print(number, flush=True)


sys.stdin.readline()
asyncio.run(main(Path(sys.argv[1]), SessionId(sys.argv[2]), int(sys.argv[3])))
