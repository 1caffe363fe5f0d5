"""Locks that the kernel releases when the process dies: one gateway per home, and one per bot on this machine."""

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
    """Another process has the lock."""


def gateway_file(home: Path) -> Path:
    """Locked while a gateway runs; contains its process id."""
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
        for _ in range(TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:  # perhaps `find_holder`, which holds it for a moment
                time.sleep(LOOK_S)
        else:
            raise AlreadyClaimed(sentence)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as fault:
            raise OperatorError(f"Cannot write {file}: {fault.strerror}.") from fault
        yield
    finally:
        os.close(descriptor)


def find_holder(file: Path) -> int | None:
    """The id of the process that has the lock; None: no process has it."""
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
    """For this user on this machine, whatever the home. Raises `Refused`."""
    name = hashlib.sha256(f"{platform} {account}".encode()).hexdigest()[:24]
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"talaria-{os.getuid()}"
    sentence = f"Another gateway on this machine uses this {platform} account; stop that one."
    try:
        with claim(folder / f"bot-{name}.lock", sentence):
            yield
    except AlreadyClaimed as fault:
        raise Refused(str(fault)) from fault
