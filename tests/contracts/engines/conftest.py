"""Applications with context engines: written into a home as plugin folders, enabled, chosen, and watched."""

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.plugin_sources import copy_plugin, write_plugin

from talaria.app.build import Application, open_application
from talaria.app.settings import Settings
from talaria.config.load import decode
from talaria.core.clock import Clock
from talaria.core.events import Event, Notice
from talaria.core.ids import SessionId
from talaria.core.messages import user
from talaria.runtime.chat import Chat
from talaria.runtime.commands import Say, run_command
from talaria.runtime.session import LiveSession
from talaria.runtime.turn_runner import Report
from talaria.store.memory import MemoryStore
from talaria.testing.manual_clock import ManualClock
from talaria.testing.servers.model_server import ModelServer


class World:
    """One application in one home."""

    def __init__(self, app: Application, home: Path) -> None:
        self.app = app
        self.home = home
        self.events: list[Event] = []

    def session(self, id: str = "one", **setup: Any) -> LiveSession:
        return self.app.session(id=SessionId(id), cwd=self.project, origin="terminal", **setup)

    @property
    def project(self) -> Path:
        folder = self.home.parent / "project"
        folder.mkdir(exist_ok=True)
        return folder

    async def ask(self, live: LiveSession, text: str = "go") -> Report:
        self.events.clear()
        return await live.ask(user(text), self.events.append)

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice)]


class WorldChat(Chat):
    """Where commands are given in one conversation of it."""

    surface = "terminal"

    def __init__(self, world: World, live: LiveSession) -> None:
        super().__init__(world.app)
        self._world = world
        self._live = live

    @property
    def live(self) -> LiveSession:
        return self._live

    def observer(self) -> Any:
        return self._world.events.append

    async def switch_to(self, row: Any, reason: Any) -> None:
        raise NotImplementedError

    async def attach(self, path: str) -> str:
        raise NotImplementedError

    async def hand_off(self, platform: str) -> None:
        raise NotImplementedError

    async def say(self, line: str) -> str:
        outcome = await run_command(self._world.app.commands.parse(line, "terminal"), self)
        assert isinstance(outcome, Say)
        return outcome.text


OpenWorld = Callable[..., AbstractAsyncContextManager[World]]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.fixture
def install(home: Path) -> Callable[..., Path]:
    """A plugin of ours by its name, or one written here: `install("x", SOURCE)`."""

    def install(name: str, source: str | None = None, **manifest: str) -> Path:
        if source is None:
            return copy_plugin(name, home)
        return write_plugin(home / "plugins" / name, source, **manifest)

    return install


@pytest.fixture
def world(home: Path, server: ModelServer) -> OpenWorld:
    """`world(enabled=[…], engine=…, window=…)`; the rest are settings of config.yaml."""

    @asynccontextmanager
    async def opened(
        *,
        enabled: tuple[str, ...] = (),
        engine: str = "compressor",
        window: int = 32_000,
        environment: dict[str, str] | None = None,
        clock: Clock | None = None,
        **config: Any,
    ) -> AsyncGenerator[World]:
        settings = {
            "model": {"default": "test-model", "base_url": server.base_url, "context_length": window},
            "plugins": {"enabled": list(enabled)},
            "context": {"engine": engine},
            **config,
        }
        async with open_application(
            Settings(home, decode(settings, home / "config.yaml"), environment or {}),
            clock=clock or ManualClock(auto=True),
            tools=(),
            open_store=lambda _, clock: MemoryStore(clock),
        ) as app:
            yield World(app, home)

    return opened
