"""The process that dies. Imports everything once, then forks a child per job (a JSON line on standard input).

A child takes a conversation as far as it can: finishes the turn that an earlier child left open, then asks what was
not asked yet. It writes what happens outside of the store (effects, accepted messages) to the world file.
"""

import asyncio
import gc
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from talaria.app.build import open_application
from talaria.app.settings import read_settings
from talaria.core.entries import MessageAdded, TurnEnded
from talaria.core.events import Event, TurnBegan
from talaria.core.ids import Epoch, SessionId
from talaria.core.messages import Assistant, User, user
from talaria.providers.upstream import Upstream
from talaria.store.base import CallEnded, CallIntended, CallStarted, Journal, Write
from talaria.testing.crash import CrashingProvider, CrashPoints, Moment, World, crashing_store
from talaria.testing.port_proxies import JournalProxy
from talaria.tools.base import EXCLUSIVE, INDEPENDENT, READS, AfterCrash, Tool
from talaria.tools.function import tool

SESSION = SessionId("crash-session")


class Job(msgspec.Struct):
    home: str
    world: str
    trace: str
    messages: list[str]
    fatal: Moment | None = None
    mutation: str = ""
    kill_after_s: float | None = None


class MutantJournal(JournalProxy):
    """A journal with one deliberate mistake: what the matrix must notice."""

    def __init__(self, journal: Journal, mutation: str, points: CrashPoints) -> None:
        super().__init__(journal)
        self._mutation = mutation
        self._points = points
        self._held_back: list[Write] = []

    async def record(self, session: SessionId, epoch: Epoch, writes: Sequence[Write]) -> bool:
        is_released = False
        for part in self._parts(writes):
            is_released = await super().record(session, epoch, part)
            self._points.reach("inside a torn record")
        return is_released

    def _parts(self, writes: Sequence[Write]) -> list[Sequence[Write]]:
        match self._mutation:
            case "start is committed after the effect":
                return self._late(writes, lambda write: isinstance(write, CallStarted), CallEnded)
            case "intents are a transaction of their own":
                return _torn(writes, lambda write: isinstance(write, CallIntended))
            case "the turn's end is a transaction of its own":
                return _torn(writes, lambda write: isinstance(write, TurnEnded))
            case "the person's message is committed after the answer":
                return self._late(writes, _is_question, MessageAdded)
            case "tools run before their intents are committed":
                return self._late(writes, _is_intent, CallEnded)
            case _:
                return [writes]

    def _late(
        self, writes: Sequence[Write], is_late: Callable[[Write], bool], trigger: type[Write]
    ) -> list[Sequence[Write]]:
        now = [write for write in writes if not is_late(write)]
        if any(isinstance(write, trigger) for write in now):
            now = [*self._held_back, *now]
            self._held_back = []
        self._held_back.extend(write for write in writes if is_late(write))
        return [now] if now else []


def _is_question(write: Write) -> bool:
    return isinstance(write, MessageAdded) and isinstance(write.message, User)


def _is_intent(write: Write) -> bool:
    is_answer = isinstance(write, MessageAdded) and isinstance(write.message, Assistant) and bool(write.message.calls)
    return is_answer or isinstance(write, CallIntended | CallStarted)


def _torn(writes: Sequence[Write], is_apart: Callable[[Write], bool]) -> list[Sequence[Write]]:
    together = [write for write in writes if not is_apart(write)]
    apart = [write for write in writes if is_apart(write)]
    return [part for part in (together, apart) if part]


def tools(world: World, points: CrashPoints, mutation: str) -> list[Tool]:
    declared: AfterCrash = "repeat" if mutation == "a tool with side effects says that it may be repeated" else "once"

    def act(mark: str) -> str:
        points.reach("before effect")
        world.add(f"effect {mark}")
        points.reach("after effect")
        return f"did {mark}"

    @tool(after_crash=declared, effect=EXCLUSIVE)
    async def effect(mark: str) -> str:
        """Do something that must not happen twice."""
        return act(mark)

    @tool(after_crash=declared, effect=INDEPENDENT)
    async def side_effect(mark: str) -> str:
        """The same, beside others."""
        await asyncio.sleep(0)
        return act(mark)

    @tool(after_crash="repeat", effect=READS)
    async def look(mark: str) -> str:
        """Look without touching."""
        points.reach("looking")
        return f"saw {mark}"

    @tool(after_crash="keyed", effect=EXCLUSIVE)
    async def keyed(mark: str) -> str:
        """Something that the other side does once per key."""
        world.add(f"keyed {mark}")
        points.reach("after keyed")
        return f"keyed {mark}"

    return [effect, side_effect, look, keyed]


async def live(job: Job) -> None:
    home = Path(job.home)
    world, points = World(Path(job.world)), CrashPoints(World(Path(job.trace)), job.fatal)

    def change(journal: Journal) -> Journal:
        return MutantJournal(journal, job.mutation, points) if job.mutation else journal

    def watch(event: Event) -> None:
        if isinstance(event, TurnBegan):
            world.add("accepted")

    async with open_application(
        read_settings(home),
        tools=tools(world, points, job.mutation),
        open_store=crashing_store(points, change),
    ) as opened:
        reach = opened.upstream.provider
        crashing = Upstream(lambda endpoint: CrashingProvider(reach(endpoint), points), opened.clock)
        app = replace(opened, upstream=crashing)
        row = await app.store.sessions.get(SESSION)
        session = app.session(row, id=SESSION, cwd=home, origin="terminal")
        known = [] if row is None else await asked(app.store.journal)
        if world.lines().count("accepted") > len(known):
            world.add("BROKE an accepted message is lost")
        await session.resume()
        for message in job.messages[len(known) :]:
            points.reach("before ask")
            await session.ask(user(message), watch)
            world.add(f"answered {message}")


async def asked(journal: Journal) -> list[str]:
    entries = [recorded.entry for recorded in await journal.entries(SESSION)]
    messages = [entry.message for entry in entries if isinstance(entry, MessageAdded)]
    return [message.text for message in messages if isinstance(message, User) and message.author == "person"]


def child(job: Job) -> None:
    try:
        asyncio.run(live(job))
    except BaseException:  # noqa: BLE001  (told to the driver)
        World(Path(job.world)).add("BROKE " + traceback.format_exc().replace("\n", " | "))
        os._exit(1)
    os._exit(0)


def main() -> None:
    for name in ("talaria.net.client", "talaria.providers.http_provider", "talaria.providers.wires", "yaml"):
        importlib.import_module(name)  # before the fork, once for all children
    decode = msgspec.json.Decoder(Job).decode
    gc.freeze()  # children that collect garbage would copy all of it
    for line in sys.stdin:
        pid = os.fork()
        job = decode(line)
        if pid == 0:
            child(job)
        if job.kill_after_s is not None:
            time.sleep(job.kill_after_s)
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
