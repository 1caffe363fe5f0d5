"""Puts a new home in the place of the old one. Where the kernel can exchange two names in one step, there is always a
whole home in that place, wherever a crash strikes; elsewhere there may be none, and both are whole beside it.
"""

import ctypes
import errno
import os
import sys
from pathlib import Path

PROFILES = "profiles"

_AT_FDCWD = -100
_SWAP = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def replace_home(home: Path, new: Path, aside: Path) -> None:
    """What was at `home` is at `aside` then. The homes of other profiles inside it stay where they are."""
    has_profiles = (home / PROFILES).is_dir()
    if has_profiles:  # where the old ones are as soon as the homes are exchanged
        (new / PROFILES).symlink_to(new / PROFILES)
    _exchange(home, new)
    if has_profiles:
        _exchange(home / PROFILES, new / PROFILES)
        (new / PROFILES).unlink()
    new.rename(aside)


def _exchange(one: Path, other: Path) -> None:
    try:
        _exchange_in_one_step(one, other)
    except OSError as fault:
        if fault.errno not in _CANNOT:
            raise
        between = one.with_name(f"{one.name}.{os.urandom(4).hex()}")
        one.rename(between)
        try:
            other.rename(one)
        except OSError:
            between.rename(one)
            raise
        between.rename(other)


def _exchange_in_one_step(one: Path, other: Path) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    names = (os.fsencode(one), os.fsencode(other))
    try:
        if sys.platform == "darwin":
            failed = library.renamex_np(*names, _SWAP)
        else:
            failed = library.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _SWAP)
    except AttributeError as fault:  # a C library without it
        raise OSError(errno.ENOSYS, "cannot exchange") from fault
    if failed:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(one))
