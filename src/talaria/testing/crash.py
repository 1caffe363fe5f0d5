"""Crash points: wrappers for the ports, which kill the process with SIGKILL at a chosen moment.

A moment has a name (`before record CallStarted`) and an occurrence. Each moment that is reached is also written to a
trace, from which the next crashes are planned. The product itself has no failpoints.
"""

import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from talaria.core.clock import Clock
from talaria.core.ids import Epoch, SessionId
from talaria.core.messages import Assistant
from talaria.platforms.base import Address, Batch, Outbound, Platform, SentId
from talaria.providers.base import Delta, ModelRequest, Provider
from talaria.store.base import Journal, Store, Write
from talaria.store.sqlite.store import SqliteStore

T = TypeVar("T")


class Moment(msgspec.Struct, frozen=True, order=True):
    name: str
    occurrence: int = 1


class World:
    """An append-only file of lines, which outlives the process."""

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
    """All moments of a traced run, in order."""
    seen: Counter[str] = Counter()
    found: list[Moment] = []
    for name in trace:
        seen[name] += 1
        found.append(Moment(name, seen[name]))
    return found


class _Crashing:
    """A port with a moment before and after each of its commits."""

    def __init__(self, port: object, points: CrashPoints, commits: Sequence[str]) -> None:
        self._port = port
        self._points = points
        self._commits = commits

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._port, name)

        def call_around(*given: Any, **named: Any) -> Awaitable[Any]:
            return self._points.around(name.replace("_", " "), call(*given, **named))

        return call_around if name in self._commits else call


class _CrashingJournal(_Crashing):
    """The moments around `record` name what is written."""

    def __init__(self, journal: Journal, points: CrashPoints) -> None:
        super().__init__(journal, points, ("seize", "release"))
        self._journal = journal

    async def record(self, session: SessionId, epoch: Epoch, writes: Sequence[Write]) -> bool:
        what = "+".join(dict.fromkeys(type(write).__name__ for write in writes))
        return await self._points.around(f"record {what}", self._journal.record(session, epoch, writes))


class _CrashingStore:
    """A store with some of its ports replaced."""

    def __init__(self, store: Store, **ports: object) -> None:
        self._store = store
        self._ports = ports

    def __getattr__(self, name: str) -> Any:
        return self._ports[name] if name in self._ports else getattr(self._store, name)


def wrap_store(store: Store, points: CrashPoints, journal: Journal | None = None) -> Store:
    """`journal` replaces that of the store."""

    def watch(port: object, *commits: str) -> object:
        return _Crashing(port, points, commits)

    watching = _CrashingStore(
        store,
        journal=_CrashingJournal(journal or store.journal, points),
        sessions=watch(store.sessions, "create", "fork", "adopt"),
        inbox=watch(store.inbox, "accept", "take", "finish"),
        outbox=watch(store.outbox, "add", "begin", "start", "start_due", "mark_sent", "defer", "fail", "expire"),
        chats=watch(store.chats, "bind"),
        handoffs=watch(store.handoffs, "reclaim", "claim", "bind", "complete", "fail"),
    )
    return cast("Store", watching)


def crashing_store(
    points: CrashPoints, change: Callable[[Journal], Journal] = lambda journal: journal
) -> Callable[[Path, Clock], AbstractAsyncContextManager[Store]]:
    """For `open_application(open_store=…)`. `change` wraps the real journal, inside the crash points."""

    @asynccontextmanager
    async def open_store(home: Path, clock: Clock) -> AsyncGenerator[Store]:
        async with SqliteStore(home, clock) as store:
            yield wrap_store(store, points, change(store.journal))

    return open_store


class CrashingPlatform:
    """There is a moment before and after every call that a chat service remembers."""

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
