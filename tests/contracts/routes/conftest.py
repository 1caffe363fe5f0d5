"""An application on a route: real model servers as primary and fallbacks, a store in memory, a clock that nobody waits
for."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.live_sessions import running_turn

from talaria.app.build import Application, open_application
from talaria.app.settings import Settings
from talaria.config.load import decode
from talaria.core.entries import Entry
from talaria.core.events import Event, RouteSwitched, TurnBegan
from talaria.core.ids import SessionId
from talaria.core.messages import user
from talaria.providers.base import Provider
from talaria.providers.upstream import Upstream
from talaria.runtime.lease import Observer
from talaria.runtime.turn_runner import Report
from talaria.store.memory import MemoryStore
from talaria.testing.manual_clock import ManualClock
from talaria.testing.servers.model_server import ModelServer
from talaria.tools.base import Tool

SESSION = SessionId("route")
Wrap = Callable[[Provider], Provider]


class World:
    """One application with one conversation."""

    def __init__(self, app: Application, clock: ManualClock, folder: Path) -> None:
        self.app = app
        self.clock = clock
        self.events: list[Event] = []
        self._folder = folder
        self.live = app.session(id=SESSION, cwd=folder, origin="terminal")

    async def ask(self, text: str = "go") -> Report:
        self.events.clear()
        return await self.live.ask(user(text), self.events.append)

    async def interrupted_when(self, moment: asyncio.Event, observer: Observer) -> Report:
        asking = asyncio.create_task(self.live.ask(user("go"), observer))
        await moment.wait()
        assert running_turn(self.live).interrupt()
        return await asking

    async def reopen(self) -> None:
        """As the next process does, the one before being gone."""
        await self.app.store.owners.leave(self.app.owner)
        self.app = replace(self.app, owner=await self.app.store.owners.join("test"))
        row = await self.app.store.sessions.get(SESSION)
        self.live = self.app.session(row, cwd=self._folder, origin="terminal")

    def through(self, wrap: Wrap) -> "World":
        """The same, with every provider wrapped."""
        reach = self.app.upstream.provider
        upstream = Upstream(lambda endpoint: wrap(reach(endpoint)), self.clock)
        return World(replace(self.app, upstream=upstream), self.clock, self._folder)

    @property
    def began(self) -> TurnBegan:
        return next(event for event in self.events if isinstance(event, TurnBegan))

    @property
    def switches(self) -> list[RouteSwitched]:
        return [event for event in self.events if isinstance(event, RouteSwitched)]

    async def journal(self) -> Sequence[Entry]:
        return [recorded.entry for recorded in await self.app.store.journal.entries(SESSION)]


OpenWorld = Callable[..., AbstractAsyncContextManager[World]]


@pytest.fixture
def primary() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def fallback() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def world(tmp_path: Path) -> OpenWorld:
    """`world(model={...}, …)` takes the settings of config.yaml, and `environment` and `tools`."""

    @asynccontextmanager
    async def opened(
        environment: dict[str, str] | None = None, tools: Sequence[Tool] = (), **config: Any
    ) -> AsyncGenerator[World]:
        clock = ManualClock(auto=True)
        settings = Settings(tmp_path, decode(config, tmp_path / "config.yaml"), environment or {})
        async with open_application(
            settings, clock=clock, tools=tools, open_store=lambda _, clock: MemoryStore(clock)
        ) as app:
            yield World(app, clock, tmp_path)

    return opened
