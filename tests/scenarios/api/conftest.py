"""A gateway that serves the HTTP API alone, on a port of its own, with a store on the disk."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.scenarios.api.served_api import ServedApi, api_harness

from talaria.testing import ModelServer
from talaria.testing.harness import Harness


@pytest.fixture(autouse=True)
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where accounts are claimed."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    with ModelServer() as model:
        async with api_harness(tmp_path, model) as harness:
            yield harness


@pytest.fixture
async def api(harness: Harness) -> AsyncIterator[ServedApi]:
    async with ServedApi.serve(harness) as served:
        yield served
