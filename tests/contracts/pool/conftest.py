"""An application, a pool for its live sessions and a clock that is turned by hand."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.scripted_provider import ScriptedProvider

from talaria.app.build import Application, open_application, open_store
from talaria.app.settings import Settings
from talaria.config.load import decode
from talaria.core.ids import SessionId
from talaria.core.messages import Assistant, user
from talaria.providers.base import Delta, ModelRequest
from talaria.providers.upstream import Upstream
from talaria.runtime.lease import Observer
from talaria.runtime.session import LiveSession, ignore
from talaria.runtime.session_config import SessionConfig
from talaria.runtime.session_pool import SessionPool
from talaria.runtime.turn_runner import Report
from talaria.store.memory import MemoryStore
from talaria.testing.manual_clock import ManualClock
from talaria.testing.servers.model_server import ModelServer
from talaria.tools.base import Tool


class Closed(ScriptedProvider):
    """A model that keeps silent until its door is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.door = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Assistant]:
        await self.door.wait()
        async for item in super().stream(request):
            yield item


class House:
    """What keeps conversations between messages, as the gateway does."""

    def __init__(self, app: Application, pool: SessionPool, clock: ManualClock, folder: Path) -> None:
        self.app = app
        self.pool = pool
        self.clock = clock
        self._folder = folder

    def setup(self, **given: Any) -> SessionConfig:
        usual: dict[str, Any] = {"cwd": self._folder, "origin": "platform", "platform": "telegram"}
        return self.app.session_config(**usual | given)

    async def open(self, name: str, setup: SessionConfig | None = None) -> LiveSession:
        """As for a message: the one that is there, or another."""
        session, setup = SessionId(name), setup or self.setup()
        row = await self.app.store.sessions.get(session)
        return self.pool.get(session, setup, lambda: self.app.live_session(session, row, setup, leaves_mail=False))

    async def ask(self, name: str, text: str = "go", observer: Observer = ignore) -> Report:
        """A whole turn."""
        live = await self.open(name)
        report = await live.ask(user(text), observer)
        self.pool.touch(live.id)
        return report

    def through(self, provider: ScriptedProvider) -> "House":
        """The same pool, with a model in this process."""
        upstream = Upstream(lambda _: provider, self.clock)
        return House(replace(self.app, upstream=upstream), self.pool, self.clock, self._folder)

    @asynccontextmanager
    async def busy(self, *names: str) -> AsyncGenerator[None]:
        """These are in the middle of a turn, which ends with the block."""
        model = Closed()
        house = self.through(model)
        async with asyncio.TaskGroup() as group:
            turns = [group.create_task(house.ask(name, "think long")) for name in names]
            while not all(self.is_in_turn(name) for name in names):
                await asyncio.sleep(0)
            try:
                yield
            finally:
                model.door.set()
        assert [turn.result().text for turn in turns] == ["That is all."] * len(turns)

    def is_in_turn(self, name: str) -> bool:
        live = self.pool.find(SessionId(name))
        return live is not None and live.running is not None

    @property
    def kept(self) -> list[str]:
        """The least recently used first."""
        return list(self.pool)


OpenHouse = Callable[..., AbstractAsyncContextManager[House]]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture
def house(tmp_path: Path, server: ModelServer) -> OpenHouse:
    """`house(cap=3, …)` takes the settings of config.yaml besides; `brings=None` are Talaria's own."""

    @asynccontextmanager
    async def opened(
        *, cap: int = 3, brings: Iterable[Tool] | None = (), is_durable: bool = False, **config: Any
    ) -> AsyncGenerator[House]:
        clock = ManualClock(auto=brings is not None)
        model = {"provider": "custom", "default": "big", "base_url": server.base_url, "api_key": "sk-1"}
        plain = {"model": model, **config}
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        settings = Settings(home, decode(plain, home / "config.yaml"), {})
        async with AsyncExitStack() as stack:
            app = await stack.enter_async_context(
                open_application(
                    settings,
                    clock=clock,
                    tools=brings,
                    open_store=open_store if is_durable else lambda _, clock: MemoryStore(clock),
                )
            )
            yield House(app, SessionPool(clock, cap=cap), clock, tmp_path)

    return opened
