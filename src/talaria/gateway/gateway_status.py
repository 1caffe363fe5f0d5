"""What a running gateway reports to other processes, in `run/gateway.json`. Whether it is alive shows in its lock, not
here: a process that was killed leaves the file behind."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from talaria.core.aio import in_thread
from talaria.core.clock import Clock
from talaria.core.fs import read_bytes, replace_file
from talaria.gateway.claims import find_holder, gateway_file
from talaria.store.chat_ports import Outbox

EVERY_S = 2.0
LOOK_S = 0.2
SILENT_S = 15.0
"""A gateway that has not written its status for this long is stuck."""
MAX_BYTES = 1 << 20

log = logging.getLogger(__name__)


ConnectionState = Literal["connecting", "connected", "waiting", "refused"]


class Health(msgspec.Struct):
    """Of one platform's connection, for people."""

    name: str
    state: ConnectionState = "connecting"
    account: str = ""
    heard_at: float | None = None
    """When the connection was last proven alive."""
    message_at: float | None = None
    """When the last message arrived."""
    opened: int = 0
    failures: int = 0
    """Since anything was last received."""
    error: str = ""


class GatewayStatus(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    version: str
    since: float
    platforms: tuple[Health, ...] = ()
    problems: Mapping[str, str] = {}
    """Why configured platforms cannot be used."""
    store_trouble: str = ""
    """Why nothing can be stored at this moment."""
    running: int = 0
    """Turns."""
    live: int = 0
    """Sessions that are kept between messages."""
    metrics_port: int | None = None
    is_stopping: bool = False
    written_at: float | None = None
    """The file's modification time; None: the status is of this very moment."""

    def complaints(self, now: float) -> Sequence[str]:
        """What is wrong, a sentence each."""
        found = [self.store_trouble] if self.store_trouble else []
        found += [f"{name} is left out: {problem}" for name, problem in self.problems.items()]
        for one in self.platforms:
            if not is_up(one):
                error = f": {one.error}" if one.error else "."
                found.append(f"{one.name} is {one.state}{error}")
        if not self.platforms and not self.problems:
            found.append("No platform is set up any more.")
        if self.is_stopping:
            found.append("The gateway is being stopped.")
        silent_s = now - (self.written_at or now)
        if silent_s > SILENT_S:
            found.append(f"The gateway has not responded for {silent_s:.0f} s.")
        return found


def is_up(health: Health) -> bool:
    """Connected, and nothing has failed since something was last received."""
    return health.state == "connected" and health.failures == 0


def status_file(home: Path) -> Path:
    return home / "run" / "gateway.json"


def read_status(home: Path) -> GatewayStatus | None:
    """Of the gateway that runs on this home; None: none does, or it has not written one yet."""
    file, pid = status_file(home), find_holder(gateway_file(home))
    try:
        written_at = file.stat().st_mtime
        status = msgspec.json.decode(read_bytes(file, MAX_BYTES), type=GatewayStatus)
    except (OSError, msgspec.DecodeError):
        return None
    return msgspec.structs.replace(status, written_at=written_at) if pid == status.pid else None


async def keep_status(home: Path, look: Callable[[], GatewayStatus], clock: Clock) -> None:
    """Until cancelled: write the file at once when a platform comes or goes, otherwise every two seconds."""
    file, known, written, written_at = status_file(home), b"", b"", 0.0
    try:
        while True:
            status, now = look(), clock.monotonic()
            platforms = [(one.name, one.state, one.error, one.heard_at is None) for one in status.platforms]
            problems = (status.problems, status.store_trouble)
            essence = msgspec.json.encode((platforms, problems, status.metrics_port, status.is_stopping))
            if essence != known or now - written_at >= EVERY_S:
                content = msgspec.json.encode(status)
                has_succeeded = await in_thread(partial(_write, file, content, is_same=content == written))
                known, written_at = essence, now
                written = content if has_succeeded else b""
            await clock.sleep(LOOK_S)
    finally:
        file.unlink(missing_ok=True)


def _write(file: Path, content: bytes, *, is_same: bool) -> bool:
    """A disk that cannot take this file does not stop the gateway. False: the file is unchanged."""
    try:
        if is_same:  # spares the disk
            os.utime(file)
        else:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(file, content, mode=0o600)
    except OSError as fault:
        log.debug("no status: %s", fault)
    else:
        return True
    if is_same:
        return False
    # A full disk has no room for a second file, but the first can be overwritten; blanks at its end do no harm.
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            known = os.fstat(descriptor)
            if len(content) > known.st_blocks * 512:
                return False
            return os.pwrite(descriptor, content.ljust(known.st_size), 0) >= len(content)
        finally:
            os.close(descriptor)
    except OSError:
        return False


async def count_due_and_failed(outbox: Outbox) -> tuple[int, int]:
    """How many replies wait, and how many will not be delivered."""
    rows = await outbox.count()
    return rows.get("pending", 0) + rows.get("started", 0), rows.get("failed", 0) + rows.get("expired", 0)
