"""Harnesses with plugins: written into a home as folders, enabled by name, and watched."""

import json
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.engines.conftest import home, install, server
from tests.plugin_sources import write_plugin

from talaria.app.extensions import Extensions
from talaria.testing.harness import Harness
from talaria.testing.servers.model_server import ModelServer

__all__ = ["home", "install", "server", "write_plugin"]

Install = Callable[..., Path]

NOTES = """
HEARD = []

def note(what, *given, **facts):
    HEARD.append((what, given, facts))
"""
"""The beginning of a plugin whose test wants to know what it was called with: see `heard`."""


def extensions(here: Harness) -> Extensions:
    assert here.app.extensions is not None
    return here.app.extensions


def statuses(here: Harness) -> dict[str, str]:
    return {key: plugin.status for key, plugin in extensions(here).host.plugins.items()}


def problems_of(here: Harness, plugin: str) -> list[str]:
    """As `talaria plugins list` and `doctor` tell them."""
    return [problem for key, problem in extensions(here).problems() if key == plugin]


OpenHarness = Callable[..., AbstractAsyncContextManager[Harness]]


@pytest.fixture
def harness(tmp_path: Path, home: Path, server: ModelServer) -> OpenHarness:
    """`harness("one", "two")` enables these plugins; the rest are options of `Harness` and settings of config.yaml."""
    assert home == tmp_path / "home"

    @asynccontextmanager
    async def opened(
        *enabled: str,
        window: int = 32_000,
        plugins: dict[str, Any] | None = None,
        model: str = "test-model",
        **config: Any,
    ) -> AsyncGenerator[Harness]:
        config["model"] = {"default": model, "base_url": server.base_url, "context_length": window}
        config["plugins"] = {"enabled": list(enabled), **(plugins or {})}
        async with Harness(tmp_path, **config) as here:
            await here.open()
            yield here

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
