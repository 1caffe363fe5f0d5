"""System calls that no command needs and that lead out of a sandbox: refused by a filter in the kernel.

`always` is used inside bubblewrap, too; `offline` is for Landlock, which does not cover sockets, other processes of the
user and modes of files. A filter cannot see what a pointer points to: calls that keep their flags there are reported as
missing, so that libraries use the older ones. Imports nothing of ours.
"""

import errno
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import TypeAlias  # Python 3.8, which some containers have, has no such name

ALLOW = 0
NOTIFY = -1
"""The process that listens to the filter decides (`metadata.py`), or notes the call (`connection_notes.py`)."""
Condition: "TypeAlias" = "tuple[int, int, int]"
"""An argument (from 0), a mask, and the value that it must have under the mask. Only its lower half is compared."""
Rule: "TypeAlias" = "tuple[str, int, Sequence[Condition]]"
"""A call; its error, `ALLOW` or `NOTIFY`; the conditions, which must all hold. The first rule that fits decides."""

_REFUSED = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "umount2": (166, 39),
    "userfaultfd": (323, 282),
}
"""With any arguments. Numbers on x86_64 and on aarch64."""
_WEIGHED = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "fallocate": (285, 47),
    "ioctl": (16, 29),
    "open": (2, None),
    "openat": (257, 56),
    "openat2": (437, 437),
    "personality": (135, 92),
    "socket": (41, 198),
    "truncate": (76, 45),
    "unshare": (272, 97),
}
_CONNECTING = {"connect": (42, 203)}
_SHARED = {
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmget": (29, 194),
}
"""Memory, queues and semaphores that all processes of a user share, inside and outside the sandbox."""
_OF_PROCESSES = {
    "ioprio_set": (251, 30),
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "setpriority": (141, 140),
}
_METADATA = {
    "chmod": (90, None),
    "chown": (92, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fremovexattr": (199, 16),
    "fsetxattr": (190, 7),
    "futimesat": (261, None),
    "lchown": (94, None),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "setxattr": (188, 5),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
}
_NEW_METADATA = {"file_setattr": (469, 469), "removexattrat": (466, 466), "setxattrat": (463, 463)}
NUMBERS: dict[str, tuple[int | None, int | None]] = {
    **_REFUSED,
    **_WEIGHED,
    **_CONNECTING,
    **_SHARED,
    **_OF_PROCESSES,
    **_METADATA,
    **_NEW_METADATA,
}
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The column above, and the kernel's number of the architecture."""
_X32 = 0x40000000

_ALL = 0xFFFFFFFF
_NAMESPACES = 0x7E020000
_TIME_NAMESPACE = 0x80  # of `unshare`; for `clone` it is part of a signal's number
_PERSONALITIES = (0, 8, 0x20000, 0x20008, 0x40000, _ALL)  # 32 bits, an old version, no random addresses; only asking
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # to type into a terminal
_FREEING = (3, 8)  # of `fallocate`: a hole, or a part taken out
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_TRUNCATING = (0o1003, 0o1000)  # O_TRUNC without being opened for writing

_SET_FLAGS = (
    *(0x40086602, 0x40046602, 0x401C5820, 0x40087602, 0x40047602, 0x40086604, 0x40046604, 0x40806685, 0x800C6613),
)
"""For `ioctl`, on a file that is open for reading: they set its flags or version, or make it immutable for good."""


def _of_itself(call: str, who: int, kinds: Sequence[int] = ()) -> Iterator[Rule]:
    """A process may do it to itself, or to its own group: argument `who` is 0. `kinds`, the argument before that, must
    name a process or a group: a user has many processes elsewhere."""
    for kind in kinds:
        yield call, ALLOW, [(who - 1, _ALL, kind), (who, _ALL, 0)]
    if not kinds:
        yield call, ALLOW, [(who, _ALL, 0)]
    yield call, errno.EPERM, ()


_ALWAYS: tuple[Rule, ...] = (
    *((call, errno.EPERM, ()) for call in _REFUSED),
    ("clone", ALLOW, [(0, _NAMESPACES, 0)]),
    ("clone", errno.EPERM, ()),
    ("clone3", errno.ENOSYS, ()),
    ("unshare", ALLOW, [(0, _NAMESPACES | _TIME_NAMESPACE, 0)]),
    ("unshare", errno.EPERM, ()),
    *(("personality", ALLOW, [(0, _ALL, value)]) for value in _PERSONALITIES),
    ("personality", errno.EPERM, ()),
    *(("ioctl", errno.EPERM, [(1, _ALL, request)]) for request in (_TIOCSTI, _TIOCLINUX)),
    *(("fallocate", ALLOW, [(1, _ALL, mode)]) for mode in _FREEING),
    ("fallocate", errno.EOPNOTSUPP, ()),  # it fills a disk at once; programs write instead
)
_ADDRESSES: Rule = ("socket", ALLOW, [(0, _ALL, _NETLINK), (2, _ALL, 0)])
"""Libraries ask it for the addresses of this machine."""
_COMMON_SOCKETS: tuple[Rule, ...] = (
    *(("socket", ALLOW, [(0, _ALL, family)]) for family in (_UNIX, _INET, _INET6)),
    _ADDRESSES,
    ("socket", errno.EAFNOSUPPORT, ()),
)
_NO_SOCKETS: tuple[Rule, ...] = (_ADDRESSES, ("socket", errno.EPERM, ()))
_NO_TRUNCATING: tuple[Rule, ...] = (
    ("truncate", errno.EACCES, ()),
    ("open", errno.EACCES, [(1, *_TRUNCATING)]),
    ("openat", errno.EACCES, [(2, *_TRUNCATING)]),
    ("openat2", errno.ENOSYS, ()),
)

_ONLY_ITSELF: tuple[Rule, ...] = (
    *(rule for call in _OF_PROCESSES if call.startswith(("prlimit", "sched_")) for rule in _of_itself(call, 0)),
    *_of_itself("setpriority", 1, kinds=(0, 1)),
    *_of_itself("ioprio_set", 1, kinds=(1, 2)),
)

_STEP = struct.Struct("<HBBI")
_LOAD, _AND, _IS, _IS_AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_KILLED, _FAILS, _ALLOWED = 0x80000000, 0x00050000, 0x7FFF0000
_NOTIFIED = 0x7FC00000
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP = (317, 277)
_SET_MODE_FILTER, _NEW_LISTENER, _UNINTERRUPTED = 1, 1 << 3, 1 << 5
_RECEIVE, _SEND, _IS_WAITING = 0xC0502100, 0xC0182101, 0x40082102
_NOTICE = struct.Struct("=QIIiIQ6Q")
"""An id, a thread, flags; the number of the call, the architecture, the address of the call, its arguments."""
ADDRESS_BITS = (1 << 56) - 1
"""Of an argument that is an address: some machines keep tags in the higher bits."""
_ANSWER = struct.Struct("=QqiI")
_CONTINUE = 1


def always() -> bytes:
    """Raises `OSError` where no filter can be made; so do the functions below."""
    return program((*_ALWAYS, *_COMMON_SOCKETS))


def offline(landlock_abi: int, metadata: int = errno.EPERM) -> bytes:
    """Refuses what this version of Landlock cannot: sockets except pairs, and whatever belongs to processes elsewhere.
    `metadata`: the answer to changes of modes, owners, times and attributes, for any file."""
    changes = (*((call, metadata, ()) for call in _METADATA), *((call, errno.ENOSYS, ()) for call in _NEW_METADATA))
    flags = (("ioctl", errno.EPERM, [(1, _ALL, request)]) for request in _SET_FLAGS)
    others = (*((call, errno.EPERM, ()) for call in _SHARED), *_ONLY_ITSELF)
    return program((*_ALWAYS, *_NO_SOCKETS, *(_NO_TRUNCATING if landlock_abi < 3 else ()), *others, *changes, *flags))


def numbers(calls: Iterable[str]) -> dict[str, int]:
    """The numbers of those calls that this machine has."""
    column, _ = _MACHINES[_this_machine()]
    return {call: number for call in calls if (number := NUMBERS[call][column]) is not None}


def program(rules: Iterable[Rule], machine: str | None = None) -> bytes:
    """In the form that `bwrap --seccomp` reads. Calls that no rule fits are allowed; programs for another architecture
    are killed."""
    name = _this_machine() if machine is None else machine
    if name not in _MACHINES:
        raise OSError(errno.ENOTSUP, f"the system calls of {name} are not supported")
    column, architecture = _MACHINES[name]
    steps = [(_LOAD, 0, 0, _ARCHITECTURE_AT), (_IS, 1, 0, architecture), (_RETURN, 0, 0, _KILLED)]
    if name == "x86_64":
        steps += [(_LOAD, 0, 0, _NUMBER_AT), (_IS_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _FAILS | errno.ENOSYS)]
    for call, answer, conditions in rules:
        number = NUMBERS[call][column]
        if number is None:
            continue
        left = 3 * len(conditions) + 1  # how many steps to skip if it does not fit
        steps += [(_LOAD, 0, 0, _NUMBER_AT), (_IS, 0, left, number)]
        for argument, mask, value in conditions:
            left -= 3
            steps += [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument), (_AND, 0, 0, mask), (_IS, 0, left, value)]
        steps.append((_RETURN, 0, 0, {ALLOW: _ALLOWED, NOTIFY: _NOTIFIED}.get(answer, _FAILS | answer)))
    steps.append((_RETURN, 0, 0, _ALLOWED))
    return b"".join(_STEP.pack(*step) for step in steps)


def report_connecting() -> bytes:
    """Reports each attempt to connect, and refuses none."""
    return program([("connect", NOTIFY, ())])


class ReportedCall(NamedTuple):
    """A call that waits for an answer."""

    id: int
    thread: int
    call: int
    """Its number."""
    arguments: tuple[int, ...]


def receive(listener: int) -> ReportedCall:
    """Raises `OSError` if the caller has ended meanwhile."""
    notice = bytearray(_NOTICE.size)
    fcntl.ioctl(listener, _RECEIVE, notice)
    id, thread, _, call, _, _, *arguments = _NOTICE.unpack(notice)
    return ReportedCall(id, thread, call, tuple(arguments))


def check_waiting(listener: int, notice: ReportedCall) -> None:
    """Raises `OSError` if it no longer waits: then another process may have its number by now."""
    fcntl.ioctl(listener, _IS_WAITING, struct.pack("=Q", notice.id))


def answer(listener: int, notice: ReportedCall, fault: int) -> None:
    """`fault`: the error of the call; 0: it has been made for the caller."""
    fcntl.ioctl(listener, _SEND, _ANSWER.pack(notice.id, 0, -fault, 0))


def let_continue(listener: int, notice: ReportedCall) -> None:
    """Let the kernel make the call as usual."""
    fcntl.ioctl(listener, _SEND, _ANSWER.pack(notice.id, 0, 0, _CONTINUE))


def install(filtering: bytes) -> None:
    """For this thread and all that it starts, for good. No program that is started gains rights any more."""
    _install(filtering, 0)


def send_listener(channel: socket.socket, filtering: bytes) -> None:
    """Like `install`, and sends the descriptor that brings `NOTIFY`. Raises `OSError`: EBUSY if another process already
    listens.

    Once a call has been received, only a signal that kills the caller interrupts it. Kernels before 5.19 cannot do
    that."""
    try:
        listener = _install(filtering, _NEW_LISTENER | _UNINTERRUPTED)
    except OSError as fault:
        if fault.errno != errno.EINVAL:
            raise
        listener = _install(filtering, _NEW_LISTENER)
    socket.send_fds(channel, [b"+"], [listener])
    os.close(listener)


def receive_listener(channel: socket.socket) -> int | None:
    """None: the other process has ended, or could not install its filter."""
    with channel:
        _, listeners, _, _ = socket.recv_fds(channel, 1, 1)
    return listeners[0] if listeners else None


def _install(filtering: bytes, flags: int) -> int:
    import ctypes  # noqa: PLC0415  (not needed to make a program)

    column, _ = _MACHINES[_this_machine()]
    steps = ctypes.create_string_buffer(filtering, len(filtering))
    whole = struct.pack("@HP", len(filtering) // _STEP.size, ctypes.addressof(steps))
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if result == 0:
        result = libc.syscall(_SECCOMP[column], _SET_MODE_FILTER, flags, whole)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _this_machine() -> str:
    if sys.platform != "linux":
        raise OSError(errno.ENOTSUP, "only Linux can filter system calls")
    return os.uname().machine
