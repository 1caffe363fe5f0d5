"""Harnesses on a route: real model servers as primary and fallbacks, and a clock that nobody waits for."""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from talaria.testing.harness import Harness
from talaria.testing.servers.model_server import ModelServer
from talaria.tools.base import Tool

OpenHarness = Callable[..., AbstractAsyncContextManager[Harness]]


@pytest.fixture
def primary() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def fallback() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def harness(tmp_path: Path) -> OpenHarness:
    """`harness(model={...}, …)` takes the settings of config.yaml, and `environment` and `tools`."""

    @asynccontextmanager
    async def opened(
        environment: dict[str, str] | None = None, tools: Sequence[Tool] = (), **config: Any
    ) -> AsyncGenerator[Harness]:
        async with Harness(tmp_path, environment=environment, tools=tools, **config) as here:
            await here.open()
            yield here

    return opened
