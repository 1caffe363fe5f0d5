"""The gateway that dies. Imports everything once, then forks a gateway per job (a JSON line on standard input).

Told are its process number and, once it has ended, how. It serves until it is killed, or until a SIGTERM: then it first
finishes all that it knows of. What its tool does outside of the store is written to the world file.
"""

import asyncio
import gc
import importlib
import os
import secrets
import signal
import sys
import traceback
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
from tests.port_proxies import InboxProxy, JournalProxy, OutboxProxy, StoreProxy

from talaria.app.build import Application, open_application
from talaria.app.gateway_app import GatewayApp, load_wanted
from talaria.app.settings import read_settings
from talaria.core.clock import Clock, SystemClock
from talaria.core.ids import Epoch, OutboxId, SessionId
from talaria.gateway.envelope import encode_body, read_body
from talaria.gateway.gateway_state import PlatformSpec
from talaria.gateway.service import Gateway
from talaria.platforms.base import Batch, Outbound, Platform, Sender, SentId
from talaria.providers.upstream import Upstream
from talaria.store.base import Journal, Store, Write
from talaria.store.chat_ports import Cursor, Inbound, Inbox, Outbox, OutboxRow, Outgoing
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.crash import CrashingPlatform, CrashingProvider, CrashPoints, Moment, World, wrap_store
from talaria.tools.base import EXCLUSIVE, Tool
from talaria.tools.function import tool

LOADED = (
    "talaria.net.client",
    "talaria.providers.http_provider",
    "talaria.platforms.telegram.platform",
    "talaria.platforms.discord.platform",
    "talaria.platforms.slack.platform",
    "talaria.api.api_platform",
    "uvicorn.protocols.http.h11_impl",
    "uvicorn.lifespan.off",
)
LOOK_S = 0.01
HASTE = 10.0
AHEAD_S = 0.1
CONNECTED = "connected"
TORN = "inside what should be one commit"

Open = Callable[[Callable[[Sender], bool]], AbstractAsyncContextManager[Platform]]


class Job(msgspec.Struct):
    home: str
    world: str
    trace: str
    runtime: str
    """Where bots are claimed."""
    fatal: Moment | None = None
    mutation: str = ""
    is_api_only: bool = False


class HastyClock(SystemClock):
    """All that waits for a time to pass waits less."""

    def monotonic(self) -> float:
        return super().monotonic() * HASTE

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / HASTE)


class MutantJournal(JournalProxy):
    """A journal with one deliberate mistake: what the matrix must notice."""

    def __init__(self, journal: Journal, mutation: str, points: CrashPoints) -> None:
        super().__init__(journal)
        self._mutation = mutation
        self._points = points

    async def record(self, session: SessionId, epoch: Epoch, writes: Sequence[Write]) -> bool:
        replies = [write for write in writes if isinstance(write, Outgoing)]
        if replies and self._mutation == "mail is done before its reply is written":
            await super().record(session, epoch, [write for write in writes if write not in replies])
            self._points.reach(TORN)
            writes = replies
        return await super().record(session, epoch, writes)


class MutantInbox(InboxProxy):
    def __init__(self, inbox: Inbox, mutation: str, points: CrashPoints) -> None:
        super().__init__(inbox)
        self._mutation = mutation
        self._points = points

    async def accept(self, inbounds: Sequence[Inbound], cursor: Cursor | None = None) -> Sequence[Inbound | None]:
        if self._mutation == "the cursor moves before the mail is on the disk":
            await super().accept([], cursor)
            self._points.reach(TORN)
        return await super().accept(inbounds, cursor)


class MutantOutbox(OutboxProxy):
    """It also tells the world what is given up."""

    def __init__(self, outbox: Outbox, mutation: str, world: World) -> None:
        super().__init__(outbox)
        self._mutation = mutation
        self._world = world
        self._rows: dict[OutboxId, OutboxRow] = {}
        self._late: set[OutboxId] = set()

    async def list_due(self, target: str, limit: int = 20) -> Sequence[OutboxRow]:
        rows = await super().list_due(target, limit)
        self._rows |= {row.id: row for row in rows}
        return rows

    async def start(self, row: OutboxId) -> OutboxRow | None:
        if self._mutation != "start is committed after the wire":
            return await super().start(row)
        self._late.add(row)
        return self._rows[row]

    async def start_due(
        self, target: str, limit: int, is_wanted: Callable[[OutboxRow], bool]
    ) -> tuple[OutboxRow | None, Sequence[OutboxRow]]:
        if self._mutation == "start is committed after the wire":
            return None, await self.list_due(target, limit)
        started, rows = await super().start_due(target, limit, is_wanted)
        self._rows |= {row.id: row for row in (started, *rows) if row is not None}
        return started, rows

    async def mark_sent(self, row: OutboxId, sent_id: str) -> None:
        if row in self._late:
            self._late.discard(row)
            await super().start(row)
        await super().mark_sent(row, sent_id)

    async def add(self, session: SessionId, outgoing: Sequence[Outgoing]) -> None:
        is_kept_quiet = self._mutation == "what is sent again is not marked"
        await super().add(session, [_unmarked(one) for one in outgoing] if is_kept_quiet else outgoing)

    async def fail(self, row: OutboxId, error: str) -> None:
        self._world.add(f"given up {' '.join(read_body(self._rows[row].body).text.split())}")
        await super().fail(row, error)

    async def begin(self, session: SessionId, draft: Outgoing) -> OutboxRow | None:
        if self._mutation == "a draft has another key than its answer":
            draft = msgspec.structs.replace(draft, key=f"draft:{draft.key}")
        return await super().begin(session, draft)


def _unmarked(one: Outgoing) -> Outgoing:
    parcel = msgspec.structs.replace(read_body(one.body), is_marked=False)
    return msgspec.structs.replace(one, body=encode_body(parcel))


class MutantPlatform(CrashingPlatform):
    """Its moments are those of the platform that it changes."""

    def __init__(self, platform: Platform, points: CrashPoints, mutation: str) -> None:
        super().__init__(platform, points)
        self._mutation = mutation
        if mutation == "mail is acknowledged before it is on the disk":
            self.receive = partial(_rash, platform)

    async def send(self, message: Outbound) -> SentId:
        if self._mutation == "each attempt has a key of its own":
            message = msgspec.structs.replace(message, key=secrets.token_hex(8))
        return await super().send(message)


async def _rash(platform: Platform, cursor: str | None) -> AsyncGenerator[Batch]:
    """Acknowledges at once, and reads on: where the next question is the acknowledgement, that is asked."""
    batches = platform.receive(cursor)
    batch = await anext(batches)
    while True:
        await platform.acknowledge(batch)
        following = asyncio.ensure_future(anext(batches))
        await asyncio.wait([following], timeout=AHEAD_S)
        yield batch
        batch = await following


def tools(world: World, points: CrashPoints) -> list[Tool]:
    @tool(after_crash="once", effect=EXCLUSIVE)
    async def effect(mark: str) -> str:
        """Do something that must not happen twice."""
        points.reach("before effect")
        world.add(f"effect {mark}")
        points.reach("after effect")
        return f"did {mark}"

    return [effect]


async def serve(job: Job) -> None:
    world, points = World(Path(job.world)), CrashPoints(World(Path(job.trace)), job.fatal)
    opening = open_application(
        read_settings(Path(job.home)),
        kind="gateway",
        clock=HastyClock(),
        tools=tools(world, points),
        open_store=lambda home, clock: _store(home, clock, job.mutation, points, world),
    )
    async with opening as opened:
        app = _crashing(opened, points)
        if job.is_api_only:
            gateway_app = GatewayApp(app, is_api_only=True)
            await gateway_app.open()
            await _until_settled(gateway_app.gateway, app.store)
            return
        found = load_wanted(app.settings, app.clock)
        doors = [msgspec.structs.replace(door, open=_watched(door, points, job.mutation)) for door in found.specs]
        await _until_settled(Gateway(app, app.settings.config.gateway, doors), app.store)


@asynccontextmanager
async def _store(home: Path, clock: Clock, mutation: str, points: CrashPoints, world: World) -> AsyncGenerator[Store]:
    async with SqliteStore(home, clock) as store:
        mutant = StoreProxy(
            store,
            MutantJournal(store.journal, mutation, points),
            inbox=MutantInbox(store.inbox, mutation, points),
            outbox=MutantOutbox(store.outbox, mutation, world),
        )
        yield wrap_store(mutant, points)


def _crashing(app: Application, points: CrashPoints) -> Application:
    reach = app.upstream.provider
    return replace(app, upstream=Upstream(lambda endpoint: CrashingProvider(reach(endpoint), points), app.clock))


def _watched(door: PlatformSpec, points: CrashPoints, mutation: str) -> Open:
    @asynccontextmanager
    async def opened(is_allowed: Callable[[Sender], bool]) -> AsyncGenerator[Platform]:
        async with door.open(is_allowed) as platform:
            points.reach(CONNECTED)
            yield MutantPlatform(platform, points, mutation)

    return opened


async def _until_settled(gateway: Gateway, store: Store) -> None:
    is_enough = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_enough.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    async with asyncio.TaskGroup() as group:
        group.create_task(gateway.run())
        await is_enough.wait()
        while not await _is_settled(gateway, store):
            await asyncio.sleep(LOOK_S)
        gateway.stop()


async def _is_settled(gateway: Gateway, store: Store) -> bool:
    is_heard = all(health.state == "connected" for health in gateway.health)
    has_mail = gateway.running or await store.inbox.list_sessions() or await store.outbox.list_targets()
    return is_heard and not has_mail


def child(job: Job) -> None:
    os.environ["XDG_RUNTIME_DIR"] = job.runtime
    try:
        asyncio.run(serve(job))
    except BaseException:  # noqa: BLE001  (told to the driver)
        World(Path(job.world)).add("BROKE " + traceback.format_exc().replace("\n", " | "))
        os._exit(1)
    os._exit(0)


def main() -> None:
    for name in LOADED:
        importlib.import_module(name)  # before the fork, once for all children
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until a child can hear it
    decode = msgspec.json.Decoder(Job).decode
    gc.freeze()  # children that collect garbage would copy all of it
    for line in sys.stdin:
        job = decode(line)
        pid = os.fork()
        if pid == 0:
            child(job)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
