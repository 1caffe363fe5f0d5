"""Applications with plugins: written into a home as folders, enabled by name, and watched."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.engines.conftest import World, home, install, server, write_plugin

from talaria.app.build import open_application, open_store
from talaria.app.extensions import Extensions
from talaria.app.settings import Settings
from talaria.config.load import decode
from talaria.core.clock import Clock
from talaria.store.memory import MemoryStore
from talaria.testing.manual_clock import ManualClock
from talaria.testing.servers.model_server import ModelServer

__all__ = ["home", "install", "server", "write_plugin"]

Install = Callable[..., Path]

NOTES = """
HEARD = []

def note(what, *given, **facts):
    HEARD.append((what, given, facts))
"""
"""The beginning of a plugin whose test wants to know what it was called with: see `heard`."""


class PluginWorld(World):
    @property
    def extensions(self) -> Extensions:
        assert self.app.extensions is not None
        return self.app.extensions

    @property
    def statuses(self) -> dict[str, str]:
        return {key: plugin.status for key, plugin in self.extensions.host.plugins.items()}

    def problems_of(self, plugin: str) -> list[str]:
        """As `talaria plugins list` and `doctor` tell them."""
        return [problem for key, problem in self.extensions.problems() if key == plugin]

    @property
    def told(self) -> list[str]:
        """What the person is told when a chat begins."""
        return list(self.app.left_out)


OpenWorld = Callable[..., AbstractAsyncContextManager[PluginWorld]]


@pytest.fixture
def world(home: Path, server: ModelServer) -> OpenWorld:
    """`world("one", "two")` enables these; `is_bare=False` adds the built-in tools, `is_durable` a disk."""

    @asynccontextmanager
    async def opened(
        *enabled: str,
        is_bare: bool = True,
        is_durable: bool = False,
        window: int = 32_000,
        environment: dict[str, str] | None = None,
        clock: Clock | None = None,
        plugins: dict[str, Any] | None = None,
        model: str | None = None,
        **config: Any,
    ) -> AsyncGenerator[PluginWorld]:
        settings = {
            "model": {"default": "test-model", "base_url": server.base_url, "context_length": window},
            "plugins": {"enabled": list(enabled), **(plugins or {})},
            **config,
        }
        async with open_application(
            Settings(home, decode(settings, home / "config.yaml"), environment or {}),
            model=model,
            clock=clock or ManualClock(auto=True),
            tools=() if is_bare else None,
            open_store=open_store if is_durable else lambda _, clock: MemoryStore(clock),
        ) as app:
            yield PluginWorld(app, home)

    return opened


def module(plugin: str) -> Any:
    """The code of a plugin that is loaded."""
    return sys.modules[f"hermes_plugins.{plugin}"]


def heard(plugin: str, what: str | None = None) -> list[Any]:
    """What it noted: of one kind the facts alone, else the kinds in their order."""
    notes: list[Any] = module(plugin).HEARD
    return [kind for kind, _, _ in notes] if what is None else [facts for kind, _, facts in notes if kind == what]


def asked(server: ModelServer, number: int = -1) -> list[dict[str, Any]]:
    """The messages of a request."""
    return json.loads(server.requests[number].body)["messages"]


def offered(server: ModelServer, number: int = -1) -> set[str]:
    """The tools of a request."""
    return {tool["function"]["name"] for tool in json.loads(server.requests[number].body).get("tools", ())}


def result(server: ModelServer, number: int = -1) -> str:
    """What a request says of the last tool call."""
    return next(one["content"] for one in reversed(asked(server, number)) if one["role"] == "tool")


async def until(holds: Callable[[], object]) -> None:
    for _ in range(30_000):
        if holds():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it did not come to that")
