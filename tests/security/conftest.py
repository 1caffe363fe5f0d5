"""A gateway with people of every kind before its door, for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.security.chats import house_at, obedient

from talaria.testing.harness import Harness


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bots are claimed: those of other tests have the same name."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
async def harness(tmp_path: Path, run_folder: None) -> AsyncIterator[Harness]:
    """Its model does what anybody tells it."""
    async with house_at(tmp_path, obedient) as made:
        yield made
