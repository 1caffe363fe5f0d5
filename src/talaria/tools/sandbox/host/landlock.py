"""Landlock: a process confines itself and all that it starts. It can neither read nor write what is not named.

It does not cover sockets, or modes and times of files (`seccomp.offline` does), and cannot guard a folder inside a
writable one. Imports nothing of ours.
"""

import errno
import os
import stat
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
"""Writable for everybody. Not /dev/pts, which has the person's other terminals, nor /dev/shm, which has semaphores."""

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_FIRST = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_REMOVE_DIR = 1 << 4
_READING = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1
_ABSTRACT_SOCKETS, _SIGNALS = 1 << 0, 1 << 1

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same everywhere
_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITIES = 0x20080522


def abi() -> int:
    """0: this system has no Landlock."""
    if sys.platform != "linux":
        return 0
    with suppress(OSError):
        return _call("syscall", _CREATE_RULESET, None, 0, _VERSION)
    return 0


def make_access_masks(version: int) -> tuple[int, int, int]:
    """All that this version can refuse: for files, for the network, and for what is outside."""
    files = _FIRST
    files |= _REFER if version >= 2 else 0
    files |= _TRUNCATE if version >= 3 else 0
    files |= _IOCTL_DEV if version >= 5 else 0
    network = _BIND_TCP | _CONNECT_TCP if version >= 4 else 0
    return files, network, _ABSTRACT_SOCKETS | _SIGNALS if version >= 6 else 0


def restrict(readable: Iterable[str], writable: Iterable[str]) -> None:
    """Confine this process for good. Raises `OSError`."""
    rules = ruleset(readable, writable)
    try:
        enter(rules)
    finally:
        os.close(rules)


def ruleset(readable: Iterable[str], writable: Iterable[str], emptied: Iterable[str] = ()) -> int:
    """A descriptor for `enter`. Links in paths are followed; paths that do not exist are left out.

    What is readable can be executed, and what is writable can be read. Empty folders can be removed from what is
    `emptied`. Devices can be made nowhere. Raises `OSError`.
    """
    version = abi()
    if version == 0:
        raise OSError(errno.ENOTSUP, "this kernel has no Landlock")
    files, network, outside = make_access_masks(version)
    rules = _call("syscall", _CREATE_RULESET, struct.pack("=QQQ", files, network, outside), 24, 0)
    try:
        for path in readable:
            _allow(rules, path, files & _READING)
        for path in (*writable, *DEVICES):
            _allow(rules, path, files & ~(_MAKE_CHAR | _MAKE_BLOCK))
        for path in emptied:
            _allow(rules, path, _REMOVE_DIR)
    except OSError:
        os.close(rules)
        raise
    return rules


def enter(rules: int) -> None:
    """Confine this process for good, and give up its capabilities. Raises `OSError`."""
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("syscall", _RESTRICT_SELF, rules, 0)
    # with root's capabilities it could get around file modes, and into other processes
    _call("capset", struct.pack("=Ii", _CAPABILITIES, 0), bytes(24))


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _OF_FILES
        _call("syscall", _ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, place), 0)
    finally:
        os.close(place)


def _call(function: str, *arguments: int | bytes | None) -> int:
    import ctypes  # noqa: PLC0415  (it takes longer to load than all the rest)

    result: int = ctypes.CDLL(None, use_errno=True)[function](*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
