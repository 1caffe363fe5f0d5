"""Crash points: the ports wrapped so that the process kills itself, by SIGKILL, at a chosen moment.

A moment has a name (`before record CallStarted`) and an occurrence. Every moment reached is also written to a
trace, from which the next plans are made. The product itself has no failpoints.
"""

import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec

from talaria.model.clock import Clock
from talaria.model.ids import Epoch, OwnerId, SessionId
from talaria.model.messages import Assistant
from talaria.model.secret import Secret
from talaria.providers.base import Delta, Endpoint, Provider, Request
from talaria.store.base import Held, Journal, NewSession, Session, Sessions, Store, Write
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.proxies import JournalProxy, StoreProxy


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
        self._points.reach("before seize")
        epoch = await self.journal.seize(session, owner)
        self._points.reach("after seize")
        return epoch

    async def record(self, session: SessionId, epoch: Epoch, writes: Sequence[Write]) -> None:
        what = "+".join(dict.fromkeys(type(write).__name__ for write in writes))
        self._points.reach(f"before record {what}")
        await self.journal.record(session, epoch, writes)
        self._points.reach(f"after record {what}")

    async def release(self, session: SessionId, epoch: Epoch) -> bool:
        self._points.reach("before release")
        is_released = await self.journal.release(session, epoch)
        self._points.reach("after release")
        return is_released


class CrashingSessions:
    def __init__(self, sessions: Sessions, points: CrashPoints) -> None:
        self._sessions = sessions
        self._points = points
        self.get = sessions.get
        self.find = sessions.find
        self.list = sessions.list
        self.latest = sessions.latest
        self.rename = sessions.rename
        self.delete = sessions.delete
        self.fork = sessions.fork

    async def create(self, new: NewSession) -> Session:
        self._points.reach("before create")
        session = await self._sessions.create(new)
        self._points.reach("after create")
        return session


def crashing_store(
    points: CrashPoints, change: Callable[[Journal], Journal] = lambda journal: journal
) -> Callable[[Path, Clock], AbstractAsyncContextManager[Store]]:
    """For `open_application(open_store=…)`. `change` stands closest to the real journal, below the crash points."""

    @asynccontextmanager
    async def open_store(home: Path, clock: Clock) -> AsyncGenerator[Store]:
        async with SqliteStore(home, clock) as store:
            yield StoreProxy(
                store, CrashingJournal(change(store.journal), points), CrashingSessions(store.sessions, points)
            )

    return open_store


class CrashingProvider:
    def __init__(self, provider: Provider, points: CrashPoints) -> None:
        self._provider = provider
        self._points = points

    @property
    def endpoint(self) -> Endpoint:
        return self._provider.endpoint

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Assistant]:
        self._points.reach("before answer")
        async for item in self._provider.stream(request):
            yield item
        self._points.reach("after answer")

    async def models(self, key: Secret) -> Sequence[str]:
        return await self._provider.models(key)

    async def reconnect(self) -> None:
        await self._provider.reconnect()
