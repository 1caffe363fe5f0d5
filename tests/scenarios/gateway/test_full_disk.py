"""A gateway whose disk is full: it says so, loses nothing, and goes on once there is space."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.scenarios.gateway.test_operation import PATIENCE_S, Station

from talaria.testing import ModelServer
from talaria.testing.servers.telegram_server import TelegramServer


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Not there yet; on a disk of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", disk], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("may not mount a file system here")
    yield disk / "home"
    subprocess.run(["umount", "-l", disk], check=True)


@pytest.fixture
async def station(home: Path, environment: dict[str, str]) -> AsyncIterator[Station]:
    async with AsyncExitStack() as stack:
        model = stack.enter_context(ModelServer())
        telegram = await stack.enter_async_context(TelegramServer())
        home.mkdir(mode=0o700)
        made = Station(home, environment, model, telegram)
        stack.push_async_callback(made.aclose)
        yield made


def fill(home: Path) -> Path:
    filler = home.parent / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return filler


async def test_status_names_the_full_disk_and_all_goes_on_once_there_is_space(station: Station) -> None:
    station.model.say("Hello.", "Back again.")
    await station.gateway()
    await station.telegram.say("hi")
    await station.wait_for_messages(1)
    assert (await station.talaria("gateway", "status")).code == 0

    filler = fill(station.home)
    await station.telegram.say("are you there?")
    async with asyncio.timeout(PATIENCE_S):
        while "the disk is full" not in (seen := await station.talaria("gateway", "status", "--json")).out:
            await asyncio.sleep(0.1)
    told = json.loads(seen.out)
    assert (seen.code, told["is_healthy"]) == (2, False)
    assert "the disk is full; nothing is lost" in told["status"]["store_trouble"]
    assert any(complaint.startswith(f"The disk of {station.home} is full") for complaint in told["complaints"])

    filler.unlink()
    assert await station.wait_for_messages(2) == ["Hello.", "Back again."]
    async with asyncio.timeout(PATIENCE_S):
        while (await station.talaria("gateway", "status")).code != 0:
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("is_new", [True, pytest.param(False, marks=pytest.mark.long)])
async def test_start_says_that_the_disk_is_full(station: Station, is_new: bool) -> None:
    station.write()
    if not is_new:
        await station.talaria("gateway", "start")
        await station.talaria("gateway", "stop")
    fill(station.home)
    started = await station.talaria("gateway", "start")
    assert started.code != 0
    assert "No space left on device" in started.err or "the disk is full" in started.err, started.err
    ran = await station.talaria("gateway", "run")
    assert ran.code != 0
    assert "Internal error" not in ran.err
    assert "No space left on device" in ran.err or "the disk is full" in ran.err, ran.err
