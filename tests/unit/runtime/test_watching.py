"""Who watches, at moments that a random session seldom meets."""

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from tests.waiting import until

from talaria.core.entries import MessageAdded, Noted, TurnStarted
from talaria.core.errors import SessionBusy
from talaria.core.events import RouteSwitched, TurnBegan, TurnDone
from talaria.core.ids import Epoch, OwnerId, SessionId, TurnId
from talaria.core.messages import Assistant, user
from talaria.runtime.live_socket import remove_dead
from talaria.runtime.session import LiveSession
from talaria.runtime.watching import Live, Settled, Watched, Watching
from talaria.store.base import Held
from talaria.testing.harness import Harness
from talaria.testing.servers.scripted_replies import Faults, Reply

SESSION = SessionId("one")
TURN = TurnId("turn")


@asynccontextmanager
async def watched(watching: Watching) -> AsyncGenerator[list[Watched]]:
    seen: list[Watched] = []

    async def watch() -> None:
        async with aclosing(watching.watch(SESSION)) as told:
            async for one in told:
                seen.append(one)  # noqa: PERF401  (it is read meanwhile)

    task = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.wait([task])


def seqs(told: list[Watched]) -> list[int]:
    return [one.recorded.seq for one in told if isinstance(one, Settled)]


def ends(told: list[Watched]) -> int:
    return sum(isinstance(one, Live) and isinstance(one.event, TurnDone) for one in told)


async def test_entries_of_another_process_are_told_if_a_first_commit_is_refused(tmp_path: Path) -> None:
    async with Harness(tmp_path) as talaria:
        talaria.model.say("one", "two")
        await talaria.open()
        async with watched(talaria.app.links.watching) as told:
            await talaria.ask("first")
            journal, rival = talaria.store.journal, await talaria.store.owners.join("test")
            epoch = await journal.seize(SESSION, rival)
            assert not isinstance(epoch, Held)
            await journal.record(SESSION, epoch, [Noted("from elsewhere")])
            await journal.release(SESSION, epoch)
            await talaria.ask("second")
            await until(lambda: ends(told) == 2)
            assert seqs(told) == [one.seq for one in await journal.entries(SESSION)]


async def test_who_finds_a_session_busy_does_not_silence_it(tmp_path: Path) -> None:
    goes_on = threading.Event()
    async with Harness(tmp_path) as talaria:
        talaria.model.say(Reply(text="done", faults=Faults(held_by=goes_on)))
        await talaria.open()
        async with watched(talaria.app.links.watching) as told:
            asking = asyncio.create_task(talaria.ask("first"))
            await until(lambda: told)
            row = await talaria.store.sessions.get(SESSION)
            other: LiveSession = talaria.app.session(row, id=SESSION, cwd=tmp_path, origin="terminal")
            with pytest.raises(SessionBusy):
                await other.ask(user("second"))
            goes_on.set()
            await asking
            await until(lambda: ends(told))
            assert seqs(told) == [1, 2, 3, 4]


async def test_who_comes_late_is_told_of_the_model_that_answers_now(tmp_path: Path) -> None:
    async with Harness(tmp_path) as talaria:
        watching = (await talaria.open()).links.watching
        broadcast = watching.begin(SESSION, Epoch(1), 0)
        broadcast.emit(TurnBegan(SESSION, TURN, "small", 10, 5))
        broadcast.emit(RouteSwitched("small", "large", "overloaded", 100, 50))
        async with watched(watching) as told:
            await until(lambda: told)
        assert [one.event for one in told if isinstance(one, Live)] == [TurnBegan(SESSION, TURN, "large", 100, 50)]


async def test_what_was_not_told_live_does_not_claim_to_be(tmp_path: Path) -> None:
    async with Harness(tmp_path) as talaria:
        talaria.model.say("one")
        await talaria.ask("first")
        journal, rival = talaria.store.journal, await talaria.store.owners.join("test")
        epoch = await journal.seize(SESSION, rival)
        assert not isinstance(epoch, Held)
        await journal.record(SESSION, epoch, [TurnStarted(TURN, "terminal"), MessageAdded(user("lost"))])
        await talaria.store.owners.leave(rival)
        talaria.model.say("two")
        async with watched(talaria.app.links.watching) as told:
            await until(lambda: told)
            await talaria.ask("second")  # gives the open turn up first
            await until(lambda: ends(told))
        settled = [(one.recorded.entry, one.was_live) for one in told if isinstance(one, Settled)]
        answers = [
            (entry.message.text, was_live)
            for entry, was_live in settled
            if isinstance(entry, MessageAdded) and isinstance(entry.message, Assistant)
        ]
        assert answers == [("one", False), ("[This turn was interrupted.]", False), ("two", True)]


def test_only_sockets_without_a_process_are_removed(tmp_path: Path) -> None:
    living, dead, young = (tmp_path / f"{OwnerId(name)}.sock" for name in ("1-living", "2-dead", "3-young"))
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as starting:
        listener.bind(str(living))
        listener.listen(0)
        starting.bind(str(young.with_suffix(".new")))
        with socket.socket(socket.AF_UNIX) as gone:
            gone.bind(str(dead))
        with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
            for waiting in (first, second):
                waiting.setblocking(False)
                waiting.connect_ex(str(living))  # a process that was stopped accepts nobody
            remove_dead(tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["1-living.sock", "3-young.new"]
