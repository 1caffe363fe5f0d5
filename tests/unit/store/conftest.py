from pathlib import Path

import pytest

from talaria.testing.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Not there yet."""
    return tmp_path / "home"
