"""Claims that the kernel gives up when the process dies: one gateway per home, and one per bot on this machine."""

import contextlib
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

from talaria.core.errors import OperatorError
from talaria.platforms.base import Refused

TRIES = 10
LOOK_S = 0.01


class AlreadyClaimed(OperatorError):
    """Another process has it."""


def gateway_file(home: Path) -> Path:
    """Locked while a gateway runs; holds its process number."""
    return home / "run" / "gateway.lock"


@contextlib.contextmanager
def claim(file: Path, sentence: str) -> Generator[None]:
    """Raises `AlreadyClaimed` with the sentence, and `OperatorError` if the file cannot be written."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as fault:
        raise OperatorError(f"Cannot write {file}: {fault.strerror}.") from fault
    try:
        if not _is_locked(descriptor):
            raise AlreadyClaimed(sentence)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as fault:
            raise OperatorError(f"Cannot write {file}: {fault.strerror}.") from fault
        yield
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """Who only looks whether somebody has it holds it for a moment, too: that is waited out."""
    for _ in range(TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOOK_S)
        else:
            return True
    return False


def find_holder(file: Path) -> int | None:
    """The process that has it; None: nobody."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        return int(text) if text.isdecimal() else None
    else:
        return None
    finally:
        os.close(descriptor)


@contextlib.asynccontextmanager
async def claim_bot(platform: str, account: str) -> AsyncGenerator[None]:
    """Of this person on this machine, whatever the home. Raises `Refused`."""
    name = hashlib.sha256(f"{platform} {account}".encode()).hexdigest()[:24]
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"talaria-{os.getuid()}"
    sentence = f"Another gateway on this machine uses this {platform} account; stop that one."
    try:
        with claim(folder / f"bot-{name}.lock", sentence):
            yield
    except AlreadyClaimed as fault:
        raise Refused(str(fault)) from fault
