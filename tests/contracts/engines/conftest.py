"""Harnesses with context engines: written into a home as plugin folders, enabled, chosen, and watched."""

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.plugin_sources import copy_plugin, write_plugin

from talaria.runtime.chat import Chat
from talaria.runtime.commands import Say, run_command
from talaria.runtime.session import LiveSession
from talaria.testing.harness import Harness
from talaria.testing.servers.model_server import ModelServer


class HarnessChat(Chat):
    """Where commands are given in one conversation."""

    surface = "terminal"

    def __init__(self, harness: Harness, live: LiveSession) -> None:
        super().__init__(harness.app)
        self._harness = harness
        self._live = live

    @property
    def live(self) -> LiveSession:
        return self._live

    def observer(self) -> Any:
        return self._harness.events.append

    async def switch_to(self, row: Any, reason: Any) -> None:
        raise NotImplementedError

    async def attach(self, path: str) -> str:
        raise NotImplementedError

    async def hand_off(self, platform: str) -> None:
        raise NotImplementedError

    async def say(self, line: str) -> str:
        outcome = await run_command(self._harness.app.commands.parse(line, "terminal"), self)
        assert isinstance(outcome, Say)
        return outcome.text


OpenHarness = Callable[..., AbstractAsyncContextManager[Harness]]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """That of the harness, to put plugins into before it is opened."""
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
def harness(tmp_path: Path, home: Path, server: ModelServer) -> OpenHarness:
    """`harness(enabled=[…], engine=…, window=…)`; the rest are options of `Harness` and settings of config.yaml."""
    assert home == tmp_path / "home"

    @asynccontextmanager
    async def opened(
        *, enabled: tuple[str, ...] = (), engine: str = "compressor", window: int = 32_000, **config: Any
    ) -> AsyncGenerator[Harness]:
        model = {"default": "test-model", "base_url": server.base_url, "context_length": window}
        config["model"] = {**model, **config.get("model", {})}
        config["plugins"] = {"enabled": list(enabled)}
        config["context"] = {"engine": engine}
        async with Harness(tmp_path, **config) as here:
            await here.open()
            yield here

    return opened
