"""A harness with a gateway for each test."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.gateways import gateway_harness

from talaria.testing import ModelServer
from talaria.testing.harness import Harness
from talaria.testing.servers.telegram_server import TelegramServer


@pytest.fixture(autouse=True)
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bots are claimed: those of other tests have the same name."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with AsyncExitStack() as stack:
        model = stack.enter_context(ModelServer())
        telegram = await stack.enter_async_context(TelegramServer())
        yield await stack.enter_async_context(gateway_harness(tmp_path, model, telegram))
