"""A platform that a plugin for Hermes brings, in the gateway like one of ours."""

import shutil
from pathlib import Path

import pytest
from tests.contracts.plugins.courier_service import CourierService

from talaria.testing.harness import Harness

COURIER = Path(__file__).parents[2] / "plugins" / "courier"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


async def test_its_messages_are_answered_and_a_restart_goes_on(harness: Harness) -> None:
    shutil.copytree(COURIER, harness.home / "plugins" / "courier")
    harness.config["plugins"] = {"enabled": ["courier"]}
    harness.config["gateway"]["platforms"].clear()
    harness.silent_platform = "courier"
    harness.model.say("Hello, Anna.", "Still here.")
    async with CourierService().running() as service:
        harness.add_platform("courier", {"url": service.url, "token": service.token, "allowed_users": ["anna"]})
        async with harness.serve():
            await service.post("hi")
            await harness.until(lambda: bool(service.called("send")))
            await service.post("who are you?", user="mallory")
            await harness.until(lambda: len(service.called("send")) == 2)
        async with harness.serve():
            await service.post("are you there?")
            await harness.until(lambda: len(service.called("send")) >= 3)
    texts = [one["text"] for one in service.called("send")]
    assert texts[0] == "Hello, Anna."
    assert any("pairing approve courier" in text for text in texts)
    assert "Still here." in texts
    assert len(harness.model.requests) == 2
