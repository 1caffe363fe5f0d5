"""Several processes that spend on one home, and a caller that stops asking."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from talaria.core.ids import OwnerId, SessionId
from talaria.store.base import Amount, Totals
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.manual_clock import ManualClock

SESSION = SessionId("session")
PERSON = "ann"


class Refused(Exception):
    """What a `decide` raises that sees no room."""


def within(cap: int, tokens: int) -> Callable[[Totals], Amount]:
    """Room for `tokens`, if the session has it."""

    def decide(totals: Totals) -> Amount:
        if totals.session.tokens + tokens > cap:
            raise Refused
        return Amount(tokens)

    return decide


async def is_free(store: SqliteStore, owner: OwnerId) -> bool:
    """Nothing at all is spent or held."""
    try:
        await store.spending.hold(SESSION, PERSON, owner, within(0, 0))
    except Refused:
        return False
    return True


async def test_cancelled_hold_holds_nothing(home: Path, clock: ManualClock) -> None:
    entered, go = threading.Event(), threading.Event()

    def decide(_: Totals) -> Amount:
        entered.set()
        go.wait()
        return Amount(10)

    async with SqliteStore(home, clock) as store:
        owner = await store.owners.join("test")
        task = asyncio.create_task(store.spending.hold(SESSION, PERSON, owner, decide))
        await asyncio.to_thread(entered.wait)
        task.cancel()
        await asyncio.sleep(0)
        go.set()

        with pytest.raises(asyncio.CancelledError):
            await task

        assert await is_free(store, owner)


async def test_two_stores_on_one_home_share_their_caps(home: Path, clock: ManualClock) -> None:
    async with SqliteStore(home, clock) as one, SqliteStore(home, clock) as other:
        owners = [(store, await store.owners.join("test")) for store in (one, other)]
        asked = [store.spending.hold(SESSION, PERSON, owner, within(100, 10)) for store, owner in owners * 25]

        answers = await asyncio.gather(*asked, return_exceptions=True)

        assert sum(isinstance(answer, int) for answer in answers) == 10
        assert sum(isinstance(answer, Refused) for answer in answers) == 40


async def test_closed_store_holds_nothing(home: Path, clock: ManualClock) -> None:
    async with SqliteStore(home, clock) as store:
        owner = await store.owners.join("test")
        async with SqliteStore(home, clock) as other:
            await other.spending.hold(SESSION, PERSON, await other.owners.join("test"), within(100, 10))
            assert not await is_free(store, owner)

        assert await is_free(store, owner)


HOLDING = """
import asyncio, sys
from pathlib import Path
from talaria.core.clock import SystemClock
from talaria.core.ids import SessionId
from talaria.store.base import Amount
from talaria.store.sqlite.store import SqliteStore

async def main():
    async with SqliteStore(Path(sys.argv[1]), SystemClock()) as store:
        owner = await store.owners.join("test")
        await store.spending.hold(SessionId("session"), "ann", owner, lambda _: Amount(10))
        print("held", flush=True)
        sys.stdin.read()

asyncio.run(main())
"""


@pytest.fixture
def holder(home: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which holds a part of the session's cap."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, home], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


async def test_killed_process_holds_nothing(home: Path, clock: ManualClock, holder: subprocess.Popen[str]) -> None:
    async with SqliteStore(home, clock) as store:
        owner = await store.owners.join("test")
        assert not await is_free(store, owner)

        holder.kill()
        holder.wait()

        assert await is_free(store, owner)
