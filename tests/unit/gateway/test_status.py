"""What a gateway says of itself to other processes."""

import asyncio
import os
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import pytest

from talaria.gateway.claims import claim, gateway_file
from talaria.gateway.gateway_status import (
    EVERY_S,
    LOOK_S,
    SILENT_S,
    GatewayStatus,
    Health,
    keep_status,
    read_status,
    status_file,
)
from talaria.testing.manual_clock import ManualClock
from talaria.testing.patience import PATIENCE_S

WELL = Health("telegram", "connected", "42", heard_at=1.0)


def status(**changes: object) -> GatewayStatus:
    return msgspec.structs.replace(GatewayStatus(pid=os.getpid(), version="1", since=1.0, platforms=(WELL,)), **changes)


def test_all_is_well() -> None:
    assert status().complaints(100.0) == []


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"platforms": (Health("slack", "refused", error="The token is wrong."),)},
            "slack is refused: The token is wrong.",
        ),
        ({"platforms": (Health("slack"),)}, "slack is connecting."),
        ({"platforms": (Health("slack", "connected", failures=2, error="Reset."),)}, "slack is connected: Reset."),
        ({"problems": {"matrix": "It needs nio."}}, "matrix is left out: It needs nio."),
        ({"platforms": ()}, "No platform is set up any more."),
        ({"store_trouble": "The disk is full."}, "The disk is full."),
        ({"is_stopping": True}, "The gateway is being stopped."),
        ({"written_at": 99.0 - SILENT_S}, "The gateway has not responded for 16 s."),
    ],
)
def test_what_is_not_well_is_told(changes: dict[str, object], complaint: str) -> None:
    assert status(**changes).complaints(100.0) == [complaint]


class Teller:
    """A gateway's status task, its clock turned by hand."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.clock = ManualClock()
        self.now = status()

    @property
    def file(self) -> Path:
        return status_file(self.home)

    async def written(self) -> None:
        """Until it has looked and waits again."""
        count = len(self.clock.slept)
        async with asyncio.timeout(PATIENCE_S):
            while len(self.clock.slept) == count:
                await asyncio.sleep(0)

    async def looks(self, *, after_s: float = LOOK_S) -> None:
        self.clock.advance(after_s)
        await self.written()

    def on_disk(self) -> GatewayStatus:
        return msgspec.json.decode(self.file.read_bytes(), type=GatewayStatus)


@pytest.fixture
async def teller(tmp_path: Path) -> AsyncIterator[Teller]:
    made = Teller(tmp_path)
    with ExitStack() as stack:
        stack.enter_context(claim(gateway_file(tmp_path), "taken"))
        task = asyncio.create_task(keep_status(tmp_path, lambda: made.now, made.clock))
        await made.written()
        yield made
        task.cancel()
        await asyncio.wait([task])
        assert not made.file.exists()


async def test_it_is_there_at_once_and_for_its_owner_only(teller: Teller) -> None:
    found = read_status(teller.home)
    assert found is not None
    assert msgspec.structs.replace(found, written_at=None) == teller.now
    assert stat.S_IMODE(teller.file.stat().st_mode) == 0o600


async def test_a_platform_that_goes_is_told_at_the_next_look(teller: Teller) -> None:
    teller.now = status(platforms=(Health("telegram", "waiting", error="The line broke."),))
    await teller.looks()
    assert teller.on_disk().platforms[0].state == "waiting"


async def test_numbers_follow_every_two_seconds(teller: Teller) -> None:
    teller.now = status(running=7)
    await teller.looks()
    assert teller.on_disk().running == 0
    await teller.looks(after_s=EVERY_S)
    assert teller.on_disk().running == 7


async def test_a_file_that_would_read_the_same_is_only_touched(teller: Teller) -> None:
    os.utime(teller.file, (1.0, 1.0))
    before = teller.file.stat().st_ino
    await teller.looks(after_s=EVERY_S)
    assert teller.file.stat().st_ino == before
    assert teller.file.stat().st_mtime > 1.0


async def test_what_another_process_has_left_is_not_believed(teller: Teller) -> None:
    teller.now = status(pid=os.getpid() + 1)
    await teller.looks(after_s=EVERY_S)
    assert read_status(teller.home) is None


async def test_a_folder_that_cannot_be_written_ends_nothing(teller: Teller) -> None:
    teller.file.unlink()
    teller.file.mkdir()
    teller.now = status(running=1)
    await teller.looks(after_s=EVERY_S)
    teller.file.rmdir()
    teller.now = status(running=2)
    await teller.looks(after_s=EVERY_S)
    assert teller.on_disk().running == 2


async def test_what_could_not_be_written_is_written_later(teller: Teller) -> None:
    teller.file.unlink()
    teller.file.mkdir()
    teller.now = status(running=1)
    await teller.looks(after_s=EVERY_S)
    teller.file.rmdir()
    await teller.looks(after_s=EVERY_S)
    assert teller.on_disk().running == 1


async def test_a_full_disk_is_told_in_the_file_that_is_there(teller: Teller) -> None:
    """There is no room for another one."""
    folder = teller.file.parent
    mounting = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder]
    if subprocess.run(mounting, capture_output=True, check=False).returncode != 0:
        pytest.skip("may not mount a file system here")
    try:
        with claim(gateway_file(teller.home), "taken"):
            await teller.looks(after_s=EVERY_S)  # the file that was there lies below now
            teller.now = status(running=1)
            await teller.looks(after_s=EVERY_S)
            with (folder / "filler").open("wb", buffering=0) as filler, suppress(OSError):
                while filler.write(b"x" * 4096):
                    pass
            teller.now = status(store_trouble="The disk is full.", running=100)
            await teller.looks()
            assert (teller.on_disk().store_trouble, teller.on_disk().running) == ("The disk is full.", 100)
            teller.now = status(running=1)
            await teller.looks()
            assert teller.on_disk() == teller.now
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_without_a_gateway_there_is_none(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
    status_file(tmp_path).parent.mkdir()
    status_file(tmp_path).write_bytes(msgspec.json.encode(status()))
    assert read_status(tmp_path) is None
