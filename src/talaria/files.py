"""Files of others, read without ever waiting for them; files of ours, replaced whole or not at all."""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
"""How a folder is opened to work inside it, also one that must not be listed."""

_READING = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # without NONBLOCK a pipe would wait
_NO_FILE = "it is a folder, device or pipe"


def harmless(id: str) -> str:
    """As the name of a file or folder: an id may be anybody's choice, the model's too."""
    return "".join(sign if sign.isalnum() or sign in "-_" else "_" for sign in id)[:120]


def read_bytes(path: Path, limit_bytes: int) -> bytes:
    """The first `limit_bytes` at most. Raises `OSError`, also for a folder, device or pipe: those may never end."""
    descriptor = os.open(path, _READING)
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
    folder = os.open(target.parent, FOLDER)
    try:
        replace_in(folder, target.name, content, mode=mode)
    finally:
        os.close(folder)


def replace_in(folder: int, name: str, content: bytes, *, mode: int | None) -> None:
    """As `replace_file`, inside an open folder: wherever its path leads by now. A link there is not followed."""
    known = _found(folder, name)
    if known is not None:
        _check(known)
        mode = stat.S_IMODE(known.st_mode) if mode is None else mode
    temporary = f".{name[:32]}.{os.urandom(6).hex()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)  # before the content: what is private never was anything else
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise


def open_in(folder: int, name: str) -> int:
    """The descriptor of a file inside an open folder, to be read. Raises `OSError`, also for a link."""
    _check(os.stat(name, dir_fd=folder, follow_symlinks=False))  # some devices act as soon as they are opened
    descriptor = os.open(name, _READING | os.O_NOFOLLOW, dir_fd=folder)
    try:
        _check(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _found(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _check(found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, "it has become a link")
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, _NO_FILE)
