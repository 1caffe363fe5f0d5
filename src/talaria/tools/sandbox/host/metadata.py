"""Changes of modes, owners, times and attributes of files, which Landlock cannot refuse.

A filter (`seccomp.offline`) holds each such call of a command and reports it to the parent of the tool host, which runs
this. It opens the file, checks where it is, and makes the change for the command through its own descriptor, or lets
the call fail. So it does not matter what the name leads to a moment later.
"""

import ctypes
import errno
import os
import select
import struct
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from talaria.tools.sandbox.host import seccomp

_HERE, _EMPTY_PATH, _NO_FOLLOW = -100, 0x1000, 0x100
_PAGE_BYTES = 4096
_MAX_PATH_BYTES = 4096
_MAX_NAME_BYTES = 256
_MAX_VALUE_BYTES = 1 << 16
_NOT_ON_A_DISK = (b"pipe:", b"socket:", b"anon_inode:")
_OF_SELF = (b"/proc/self/", b"/proc/thread-self/")
_TIMES = frozenset({"seconds", "microseconds", "nanoseconds"})


class Form(NamedTuple):
    """At which argument a call says what it wants; None: it does not."""

    change: str
    folder: int | None
    path: int | None
    """None: the file is `folder` itself."""
    rest: int
    """Where the arguments of the change itself begin."""
    flags: int | None = None
    follows: bool = True


FORMS = {
    "chmod": Form("mode", None, 0, 1),
    "fchmod": Form("mode", 0, None, 1),
    "fchmodat": Form("mode", 0, 1, 2),
    "fchmodat2": Form("mode", 0, 1, 2, 3),
    "chown": Form("owner", None, 0, 1),
    "lchown": Form("owner", None, 0, 1, follows=False),
    "fchown": Form("owner", 0, None, 1),
    "fchownat": Form("owner", 0, 1, 2, 4),
    "utime": Form("seconds", None, 0, 1),
    "utimes": Form("microseconds", None, 0, 1),
    "futimesat": Form("microseconds", 0, 1, 2),
    "utimensat": Form("nanoseconds", 0, 1, 2, 3),
    "setxattr": Form("attribute", None, 0, 1),
    "lsetxattr": Form("attribute", None, 0, 1, follows=False),
    "fsetxattr": Form("attribute", 0, None, 1),
    "removexattr": Form("no attribute", None, 0, 1),
    "lremovexattr": Form("no attribute", None, 0, 1, follows=False),
    "fremovexattr": Form("no attribute", 0, None, 1),
}


def serve(listener: int, roots: Sequence[str], host: int) -> None:
    """Run until the tool host, a child of this process, has ended. Files beneath `roots` may be changed."""
    beneath = tuple(os.fsencode(root) for root in roots)
    forms = {number: FORMS[call] for call, number in seccomp.numbers(FORMS).items()}
    poll = select.poll()
    ended = os.pidfd_open(host)
    poll.register(ended, select.POLLIN)
    poll.register(listener, select.POLLIN)
    while ended not in (ready := dict(poll.poll())):
        if not ready[listener] & select.POLLIN:  # no process is left that could call
            poll.unregister(listener)
            continue
        with suppress(OSError):  # the caller has ended meanwhile
            notice = seccomp.receive(listener)
            seccomp.answer(listener, notice, _make_change(listener, notice, forms[notice.call], beneath))


def _make_change(listener: int, notice: seccomp.ReportedCall, form: Form, beneath: Sequence[bytes]) -> int:
    """The error of the call; 0: the change was made."""
    thread, arguments = notice.thread, notice.arguments
    try:
        with _open(f"/proc/{thread}", os.O_PATH | os.O_DIRECTORY) as caller, _open("mem", 0, caller) as memory:
            seccomp.check_waiting(listener, notice)
            with _file(thread, caller, memory, form, arguments) as file:
                name = b"/proc/self/fd/%d" % file
                where = os.readlink(name)
                is_beneath = any(where == root or where.startswith(root + b"/") for root in beneath)
                if not is_beneath and not where.startswith(_NOT_ON_A_DISK):
                    return errno.EPERM
                return _change(form.change, memory, name, arguments[form.rest :])
    except OSError as fault:
        return fault.errno or errno.EPERM


@contextmanager
def _open(path: str | bytes, flags: int, folder: int | None = None) -> Generator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _file(thread: int, caller: int, memory: int, form: Form, arguments: Sequence[int]) -> Generator[int]:
    """The file as the caller would find it; not opened for reading or writing."""
    flags = arguments[form.flags] & 0xFFFFFFFF if form.flags is not None else 0
    path = b"" if form.path is None else _text(memory, arguments[form.path], _MAX_PATH_BYTES)
    for start in _OF_SELF:
        if path.startswith(start):  # the caller, not this process
            path = b"/proc/%d/%b" % (thread, path[len(start) :])
    follow = 0 if form.follows and not flags & _NO_FOLLOW else os.O_NOFOLLOW
    if path.startswith(b"/"):
        with _open(path, os.O_PATH | follow) as file:
            yield file
        return
    number = ctypes.c_int32(arguments[form.folder] & 0xFFFFFFFF).value if form.folder is not None else _HERE
    is_without_path = form.path is not None and arguments[form.path] == 0
    if is_without_path and (number == _HERE or form.change not in _TIMES):
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    with _open("cwd" if number == _HERE else f"fd/{number}", os.O_PATH, caller) as folder:
        if form.path is None or is_without_path or (not path and flags & _EMPTY_PATH):
            yield folder
        elif not path:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        else:
            with _open(path, os.O_PATH | follow, folder) as file:
                yield file


def _change(change: str, memory: int, name: bytes, rest: Sequence[int]) -> int:
    """The error, or 0. `name` leads to our own descriptor, so it is this file that is changed."""
    first, second, *_ = (*rest, 0, 0)
    if change == "mode":
        return _call("fchmodat", _HERE, name, first & 0o7777)
    if change == "owner":
        return _call("fchownat", _HERE, name, first & 0xFFFFFFFF, second & 0xFFFFFFFF, 0)
    if change in _TIMES:
        times = None  # now
        if first and change == "seconds":
            accessed, modified = struct.unpack("=qq", _bytes(memory, first, 16))
            times = struct.pack("=qqqq", accessed, 0, modified, 0)
        elif first:
            seconds, part, others, other_part = struct.unpack("=qqqq", _bytes(memory, first, 32))
            if change == "microseconds":
                if not (0 <= part < 1_000_000 and 0 <= other_part < 1_000_000):
                    return errno.EINVAL
                part, other_part = part * 1000, other_part * 1000
            times = struct.pack("=qqqq", seconds, part, others, other_part)
        return _call("utimensat", _HERE, name, times, 0)
    attribute = _text(memory, first, _MAX_NAME_BYTES)
    if change == "no attribute":
        return _call("removexattr", name, attribute)
    size_bytes, flags = rest[2:4]
    if size_bytes > _MAX_VALUE_BYTES:
        return errno.E2BIG
    value = _bytes(memory, second, size_bytes)
    return _call("setxattr", name, attribute, value, ctypes.c_size_t(size_bytes), flags & 0xFFFFFFFF)


def _text(memory: int, address: int, limit_bytes: int) -> bytes:
    """Up to the zero at its end. The page after it may not be mapped, so pages are read one by one."""
    text = b""
    while address and len(text) < limit_bytes:
        size_bytes = _PAGE_BYTES - (address + len(text)) % _PAGE_BYTES
        piece, zero, _ = _bytes(memory, address + len(text), size_bytes).partition(b"\0")
        text += piece
        if zero:
            return text[:limit_bytes]
    if address:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    return text


def _bytes(memory: int, address: int, size_bytes: int) -> bytes:
    found = os.pread(memory, size_bytes, address & seccomp.ADDRESS_BITS) if size_bytes else b""
    if len(found) != size_bytes:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    return found


def _call(call: str, *arguments: int | bytes | ctypes.c_size_t | None) -> int:
    result = ctypes.CDLL(None, use_errno=True).syscall(seccomp.numbers((call,))[call], *arguments)
    return ctypes.get_errno() if result < 0 else 0
