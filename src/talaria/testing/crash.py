"""Crash points: the ports wrapped so that the process kills itself, by SIGKILL, at a chosen moment.

A moment has a name (`before record CallStarted`) and an occurrence. Every moment reached is also written to a
trace, from which the next plans are made. The product itself has no failpoints.

Ports that pass everything on: override one method to watch it, to disturb it, or to die in it.
"""

import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

import msgspec

from talaria.core.clock import Clock
from talaria.core.ids import Epoch, OwnerId, SessionId
from talaria.core.messages import Assistant
from talaria.platforms.base import Address, Batch, Outbound, Platform, SentId
from talaria.providers.base import Delta, ModelRequest, Provider
from talaria.store.base import Held, Journal, Sessions, Store, Write
from talaria.store.chat_ports import Chats, Handoffs, Inbox, Outbox
from talaria.store.sqlite.store import SqliteStore

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _Proxy(Generic[T]):
    def __init__(self, port: T) -> None:
        self.port = port


def _pass_on(call: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    def pass_on(self: _Proxy[object], *given: P.args, **named: P.kwargs) -> R:
        return getattr(self.port, call.__name__)(*given, **named)

    return pass_on


class JournalProxy(_Proxy[Journal]):
    seize = _pass_on(Journal.seize)
    record = _pass_on(Journal.record)
    release = _pass_on(Journal.release)
    entries = _pass_on(Journal.entries)
    latest = _pass_on(Journal.latest)
    calls = _pass_on(Journal.calls)
    list_interrupted = _pass_on(Journal.list_interrupted)


class SessionsProxy(_Proxy[Sessions]):
    create = _pass_on(Sessions.create)
    get = _pass_on(Sessions.get)
    find = _pass_on(Sessions.find)
    list = _pass_on(Sessions.list)
    latest = _pass_on(Sessions.latest)
    rename = _pass_on(Sessions.rename)
    delete = _pass_on(Sessions.delete)
    fork = _pass_on(Sessions.fork)


class InboxProxy(_Proxy[Inbox]):
    accept = _pass_on(Inbox.accept)
    cursor = _pass_on(Inbox.cursor)
    list_pending = _pass_on(Inbox.list_pending)
    list_sessions = _pass_on(Inbox.list_sessions)
    find = _pass_on(Inbox.find)
    take = _pass_on(Inbox.take)
    finish = _pass_on(Inbox.finish)
    prune = _pass_on(Inbox.prune)


class OutboxProxy(_Proxy[Outbox]):
    list_targets = _pass_on(Outbox.list_targets)
    list_due = _pass_on(Outbox.list_due)
    add = _pass_on(Outbox.add)
    begin = _pass_on(Outbox.begin)
    start = _pass_on(Outbox.start)
    start_due = _pass_on(Outbox.start_due)
    mark_sent = _pass_on(Outbox.mark_sent)
    defer = _pass_on(Outbox.defer)
    fail = _pass_on(Outbox.fail)
    expire = _pass_on(Outbox.expire)
    count = _pass_on(Outbox.count)
    retry = _pass_on(Outbox.retry)
    move = _pass_on(Outbox.move)
    rows = _pass_on(Outbox.rows)
    find = _pass_on(Outbox.find)
    list = _pass_on(Outbox.list)
    prune = _pass_on(Outbox.prune)


class StoreProxy:
    """A store with its journal, and perhaps other parts, exchanged."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        sessions: Sessions | None = None,
        *,
        inbox: Inbox | None = None,
        outbox: Outbox | None = None,
        chats: Chats | None = None,
        handoffs: Handoffs | None = None,
    ) -> None:
        self._store = store
        self.version = store.version
        self.journal = journal
        self.inbox = inbox or store.inbox
        self.chats = chats or store.chats
        self.access = store.access
        self.sessions = sessions or store.sessions
        self.owners = store.owners
        self.outbox = outbox or store.outbox
        self.handoffs = handoffs or store.handoffs
        self.search = store.search
        self.spending = store.spending
        self.approvals = store.approvals
        self.grants = store.grants

    @property
    def trouble(self) -> str:
        return self._store.trouble


class Moment(msgspec.Struct, frozen=True, order=True):
    name: str
    occurrence: int = 1


class World:
    """What outlives the process: an append-only file of lines."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def add(self, line: str) -> None:
        descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)

    def lines(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []


class CrashPoints:
    def __init__(self, trace: World, fatal: Moment | None = None) -> None:
        self._trace = trace
        self._fatal = fatal
        self._reached: Counter[str] = Counter()

    def reach(self, name: str) -> None:
        self._reached[name] += 1
        self._trace.add(name)
        if self._fatal == Moment(name, self._reached[name]):
            os.kill(os.getpid(), signal.SIGKILL)

    async def around(self, name: str, commit: Awaitable[T]) -> T:
        self.reach(f"before {name}")
        outcome = await commit
        self.reach(f"after {name}")
        return outcome


def moments(trace: Sequence[str]) -> list[Moment]:
    """Every moment of a traced run, in its order."""
    seen: Counter[str] = Counter()
    found: list[Moment] = []
    for name in trace:
        seen[name] += 1
        found.append(Moment(name, seen[name]))
    return found


class CrashingJournal(JournalProxy):
    """Every commit has a moment before and a moment after it."""

    def __init__(self, journal: Journal, points: CrashPoints) -> None:
        super().__init__(journal)
        self._points = points

    async def seize(self, session: SessionId, owner: OwnerId) -> Epoch | Held:
        return await self._points.around("seize", super().seize(session, owner))

    async def record(self, session: SessionId, epoch: Epoch, writes: Sequence[Write]) -> bool:
        what = "+".join(dict.fromkeys(type(write).__name__ for write in writes))
        return await self._points.around(f"record {what}", super().record(session, epoch, writes))

    async def release(self, session: SessionId, epoch: Epoch, *, leaves_mail: bool = False) -> bool:
        return await self._points.around("release", super().release(session, epoch, leaves_mail=leaves_mail))


class _CrashingPort:
    """A port with a moment before and a moment after each of its commits."""

    def __init__(self, port: object, points: CrashPoints, commits: Sequence[str]) -> None:
        self._port = port
        self._points = points
        self._commits = commits

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._port, name)

        def call_around(*given: Any, **named: Any) -> Awaitable[Any]:
            return self._points.around(name.replace("_", " "), call(*given, **named))

        return call_around if name in self._commits else call


def wrap_store(store: Store, points: CrashPoints, journal: Journal | None = None) -> Store:
    """`journal` stands in for that of the store."""

    def watch(port: T, *commits: str) -> T:
        return cast("T", _CrashingPort(port, points, commits))

    return StoreProxy(
        store,
        CrashingJournal(journal or store.journal, points),
        watch(store.sessions, "create"),
        inbox=watch(store.inbox, "accept", "take", "finish"),
        outbox=watch(store.outbox, "add", "begin", "start", "start_due", "mark_sent", "defer", "fail", "expire"),
        chats=watch(store.chats, "bind"),
        handoffs=watch(store.handoffs, "reclaim", "claim", "bind", "complete", "fail"),
    )


def crashing_store(
    points: CrashPoints, change: Callable[[Journal], Journal] = lambda journal: journal
) -> Callable[[Path, Clock], AbstractAsyncContextManager[Store]]:
    """For `open_application(open_store=…)`. `change` stands closest to the real journal, below the crash points."""

    @asynccontextmanager
    async def open_store(home: Path, clock: Clock) -> AsyncGenerator[Store]:
        async with SqliteStore(home, clock) as store:
            yield wrap_store(store, points, change(store.journal))

    return open_store


class CrashingPlatform:
    """Every call that a chat service remembers has a moment before and a moment after it."""

    def __init__(self, platform: Platform, points: CrashPoints) -> None:
        self._platform = platform
        self._points = points
        self.name = platform.name
        self.account = platform.account
        self.capabilities = platform.capabilities
        self.receive = platform.receive
        self.show_typing = platform.show_typing
        self.react = platform.react
        self.answer = platform.answer
        self.fetch = platform.fetch
        self.chat_info = platform.chat_info
        self.offer_commands = platform.offer_commands

    async def acknowledge(self, batch: Batch) -> None:
        await self._points.around("acknowledge", self._platform.acknowledge(batch))

    async def create_thread(self, where: Address, name: str) -> Address | None:
        return await self._points.around("create thread", self._platform.create_thread(where, name))

    async def send(self, message: Outbound) -> SentId:
        return await self._points.around("send", self._platform.send(message))

    async def edit(self, sent: SentId, message: Outbound) -> None:
        await self._points.around("edit", self._platform.edit(sent, message))

    async def delete(self, sent: SentId, where: Address) -> None:
        await self._points.around("delete", self._platform.delete(sent, where))


class CrashingProvider:
    def __init__(self, provider: Provider, points: CrashPoints) -> None:
        self._provider = provider
        self._points = points
        self.endpoint = provider.endpoint
        self.models = provider.models
        self.reconnect = provider.reconnect

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Assistant]:
        self._points.reach("before answer")
        async for item in self._provider.stream(request):
            yield item
        self._points.reach("after answer")
