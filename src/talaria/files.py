"""Files of others, read without ever waiting for them; files of ours, replaced whole or not at all."""

import errno
import os
import stat
from pathlib import Path

_NO_FILE = "it is a folder, device or pipe"


def read_bytes(path: Path, limit_bytes: int) -> bytes:
    """The first `limit_bytes` at most. Raises `OSError`, also for a folder, device or pipe: those may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)  # a pipe would wait here
    try:
        _check(os.fstat(descriptor))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(limit_bytes) or b""  # None from files of the system that have nothing to say yet
    finally:
        os.close(descriptor)


def read_text(path: Path, limit_bytes: int) -> str | None:
    """The beginning of a file as valid text; None if there is no file to be read."""
    try:
        content = read_bytes(path, limit_bytes)
    except OSError:
        return None
    return content.decode("utf-8", "replace")


def replace_file(path: Path, content: bytes, *, mode: int | None) -> None:
    """Durable, and a link stays one. Raises `OSError`, and then nothing has changed.

    Without a `mode` the file keeps its own; a new one gets what the umask leaves.
    """
    target = path.resolve()
    if target.exists():
        known = target.stat()
        _check(known)
        mode = stat.S_IMODE(known.st_mode) if mode is None else mode
    temporary = target.with_name(f".{target.name[:32]}.{os.urandom(6).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)  # before the content: what is private never was anything else
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _check(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, _NO_FILE)
