"""Changes the mounts of a running sandbox: makes places read-only, shows a place of this machine in it, or withdraws it
again. A program of its own, because only a process with a single thread can enter a user namespace.

It mounts first and searches afterwards, so that there is no gap: a process that already held one of the places is found
through /proc and killed. Meanwhile all processes of the sandbox are stopped, so that none can pass anything on. All
that it needs is loaded before it enters: nothing inside is trusted. Imports nothing of ours. The order and the answer
are JSON, on standard input and output.
"""

import ctypes
import errno
import fcntl
import json
import os
import re
import select
import signal
import stat
import struct
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

MAX_ROUNDS = 20
"""Of searching for processes: those that were killed may have left others behind."""
MAX_BELOW = 10_000
"""Files and folders that are recognized below guarded folders."""
ENDING_MS = 2_000
STOPPING_MS = 5
MAX_STOPPING = 100
"""How often to check whether all have stopped. Some stop only later, in the kernel, where they do no harm."""
CLOSING_MS = 10
MAX_CLOSING = 100
"""How often to try to close a folder: most files are open for a moment only."""
SHOWN_CHARS = 80

ENDED = "the sandbox has ended"
NO_CALLS = "this kernel cannot change the mounts of a running sandbox"
STILL_OPEN = "a process that could not be found has it open for writing"
LINK = "it is a link, or leads through one"
REPLACED = "it was replaced in the meantime"
NOT_OURS = "the folder around it belongs to this machine"
NOT_GUARDED = "it is not guarded"

_NS_GET_USERNS = 0xB701
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x20000, 0x10000000, 0x20000000
_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x100, 0x1000, 0x8000
_OPEN_TREE_CLONE = 1
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV = 1, 2, 4
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_BOTH_ARE_DESCRIPTORS = 0x4 | 0x40  # of move_mount
_NO_LINKS = 0x02 | 0x04  # of openat2
_REFERENCE = os.O_PATH | os.O_CLOEXEC
_LISTING = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

Identity = tuple[int, int]
"""Device and inode."""

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int) -> int:
    """Raises `OSError` if a call of the C library has failed."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def call_kernel(number: int, *arguments: Any) -> int:
    return check(libc.syscall(ctypes.c_long(number), *arguments))


def enter(pid: int) -> None:
    """Join the mount namespace of a process, with the rights that its owner has there."""
    mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    owner = fcntl.ioctl(mounts, _NS_GET_USERNS)
    if os.fstat(owner).st_ino != os.stat("/proc/self/ns/user").st_ino:  # noqa: PTH116
        check(libc.setns(owner, _CLONE_NEWUSER))
    check(libc.setns(mounts, _CLONE_NEWNS))


def refer(path: str) -> int:
    """A descriptor of what is there, under the newest mounts and through no link."""
    how = struct.pack("QQQ", _REFERENCE | os.O_NOFOLLOW, 0, _NO_LINKS)
    place = call_kernel(_OPENAT2, _AT_FDCWD, os.fsencode(path), how, ctypes.c_size_t(len(how)))
    if stat.S_ISLNK(os.fstat(place).st_mode):
        os.close(place)
        raise OSError(errno.ELOOP, LINK)
    return place


def mount(place: int, *, as_read_only: bool) -> None:
    """Mount what a descriptor refers to onto itself."""
    deep = _AT_RECURSIVE if stat.S_ISDIR(os.fstat(place).st_mode) else 0
    flags = ctypes.c_uint(_AT_EMPTY_PATH | deep | _OPEN_TREE_CLONE | os.O_CLOEXEC)
    tree = call_kernel(_OPEN_TREE, place, b"", flags)
    try:
        if as_read_only:
            set_flags(tree, _MOUNT_ATTR_RDONLY, 0, deep)
        call_kernel(_MOVE_MOUNT, tree, b"", place, b"", ctypes.c_uint(_BOTH_ARE_DESCRIPTORS))
    finally:
        os.close(tree)


def mount_link(link: str, path: str) -> None:
    """Mount a link onto a file that is guarded, so that opening the file follows the link. Git renames its new settings
    onto the target of a link, which it could not do onto a mount."""
    flags = ctypes.c_uint(_AT_SYMLINK_NOFOLLOW | _OPEN_TREE_CLONE | os.O_CLOEXEC)
    tree = call_kernel(_OPEN_TREE, _AT_FDCWD, os.fsencode(link), flags)
    try:
        set_flags(tree, _MOUNT_ATTR_RDONLY, 0, 0)
        place = refer(path)
        try:
            if not is_read_only(place):  # then the link would be all that guards it
                raise OSError(errno.EROFS, NOT_GUARDED)
            call_kernel(_MOVE_MOUNT, tree, b"", place, b"", ctypes.c_uint(_BOTH_ARE_DESCRIPTORS))
        finally:
            os.close(place)
    finally:
        os.close(tree)


def is_read_only(place: int) -> bool:
    """According to the mount through which it was reached."""
    return bool(os.fstatvfs(place).f_flag & os.ST_RDONLY)


def identity(place: int) -> Identity:
    found = os.fstat(place)
    return found.st_dev, found.st_ino


class Guarding:
    def __init__(self, pid: int) -> None:
        self._proc = os.open("/proc", _LISTING)
        """Ours: it shows the processes of the sandbox with the numbers that they have outside."""
        self._processes = os.readlink(f"{pid}/ns/pid", dir_fd=self._proc)
        self._namespace = os.open(f"{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        self._first = self._read(f"{pid}/stat").rpartition(b") ")[2].split()[1].decode()
        """Bubblewrap's own process inside, the parent of the tool host: it cannot be stopped, and holds nothing."""
        self._targets: dict[str, Identity] = {}
        self._known: set[Identity] = set()
        """The guarded places, and what is below them."""
        self._inodes: set[int] = set()
        self.linked: list[str] = []
        self.stopped: list[str] = []

    def read_mount_points(self) -> set[str]:
        lines = self._read(f"{os.getpid()}/mountinfo").decode("utf-8", "surrogateescape").splitlines()
        octal = re.compile(r"\\([0-7]{3})")
        return {octal.sub(lambda code: chr(int(code[1], 8)), line.split(" ")[4]) for line in lines}

    def guard(self, path: str, around: list[str], mounted: set[str]) -> None:
        """The folders around it are mounted, too, so that they cannot be moved away."""
        for folder in around:
            if folder not in mounted:
                place = refer(folder)
                mount(place, as_read_only=False)
                os.close(place)
                mounted.add(folder)
        place = refer(path)
        if not is_read_only(place):
            mount(place, as_read_only=True)
        self._targets[path] = identity(place)
        self._remember(path, os.fstat(place))
        if stat.S_ISDIR(os.fstat(place).st_mode):
            self._remember_below(path, os.open(".", _LISTING, dir_fd=place))
        os.close(place)

    def _remember(self, path: str, found: os.stat_result) -> None:
        self._known.add((found.st_dev, found.st_ino))
        self._inodes.add(found.st_ino)
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
            self.linked.append(path)

    def _remember_below(self, path: str, folder: int) -> None:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if len(self._known) >= MAX_BELOW:
                        return
                    found = entry.stat(follow_symlinks=False)
                    self._remember(f"{path}/{entry.name}", found)
                    if stat.S_ISDIR(found.st_mode):
                        inner = os.open(entry.name, _LISTING | os.O_NOFOLLOW, dir_fd=folder)
                        self._remember_below(f"{path}/{entry.name}", inner)
        finally:
            os.close(folder)

    def kill_holders(self) -> None:
        """Kill all processes that can reach one of the places past its guard. The others continue afterwards."""
        with self.all_stopped():
            for _ in range(MAX_ROUNDS):
                ending, left = select.poll(), set[int]()
                for name in self._inside():
                    try:
                        process = os.pidfd_open(int(name))  # first of all: another process may get its number
                    except ProcessLookupError:
                        continue
                    if not (self._is_inside(name) and self._is_holder(name)):
                        os.close(process)
                        continue
                    words = self._read(f"{name}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()
                    self.stopped.append(words if len(words) <= SHOWN_CHARS else f"{words[: SHOWN_CHARS - 1]}…")
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                    ending.register(process, select.POLLIN)
                    left.add(process)
                if not left:
                    return
                while left and (ended := ending.poll(ENDING_MS)):
                    for process, _ in ended:
                        ending.unregister(process)
                        os.close(process)
                        left.discard(process)

    @contextmanager
    def all_stopped(self) -> Generator[None]:
        """All processes of the sandbox. Needs the rights of its owner."""
        resting = {name for name in self._inside() if self._has_stopped(name)}
        check(libc.setns(self._namespace, _CLONE_NEWPID))
        child = os.fork()
        if child == 0:  # one of them can stop all at once; one by one, some could still start others
            with suppress(OSError):
                os.kill(-1, signal.SIGSTOP)
            os._exit(0)
        os.waitpid(child, 0)
        for _ in range(MAX_STOPPING):
            if all(self._has_stopped(name) for name in self._inside()):
                break
            select.poll().poll(STOPPING_MS)
        try:
            yield
        finally:
            for name in sorted(self._inside(), key=int, reverse=True):  # a shell would notice a stopped child
                if name not in resting:
                    with suppress(ProcessLookupError):
                        os.kill(int(name), signal.SIGCONT)

    def _inside(self) -> list[str]:
        return [name for name in os.listdir(self._proc) if name.isdigit() and self._is_inside(name)]  # noqa: PTH208

    def _is_inside(self, pid: str) -> bool:
        with suppress(OSError):  # it has ended, or we may not inspect it, so it is not in this sandbox
            return pid != self._first and os.readlink(f"{pid}/ns/pid", dir_fd=self._proc) == self._processes
        return False

    def _has_stopped(self, pid: str) -> bool:
        states = (self._read(f"{pid}/task/{thread}/stat") for thread in self._names(f"{pid}/task"))
        return all(state.rpartition(b") ")[2][:1] in (b"T", b"Z", b"X", b"") for state in states)

    def _is_holder(self, pid: str) -> bool:
        """Whether it has mapped one of the places, or still has a descriptor of one from before: through /proc that
        can be opened again for writing. Descriptors in transit through a socket cannot be inspected: any of them
        count."""
        for reference in self._references(pid):
            with suppress(OSError):
                place = os.open(reference, _REFERENCE, dir_fd=self._proc)
                try:
                    found = os.fstat(place)
                    if (found.st_dev, found.st_ino) in self._known and not is_read_only(place):
                        return True
                    if stat.S_ISSOCK(found.st_mode):
                        lines = self._read(reference.replace("/fd/", "/fdinfo/")).splitlines()
                        if any(line.startswith(b"scm_fds:") and int(line[8:]) > 0 for line in lines):
                            return True
                    if stat.S_ISDIR(found.st_mode):
                        self._guard_as_seen_from(place, os.readlink(reference, dir_fd=self._proc))
                finally:
                    os.close(place)
        for line in self._read(f"{pid}/maps").splitlines():
            _, rights, _, _, inode, *_ = line.split(maxsplit=5)
            # shared memory can be made writable. By inode alone: some file systems report another device here
            if rights.endswith(b"s") and int(inode) in self._inodes:
                return True
        return False

    def _references(self, pid: str) -> Iterator[str]:
        """What it refers to, for each thread: threads need not share descriptors and folders."""
        yield f"{pid}/exe"
        for thread in self._names(f"{pid}/task"):
            task = f"{pid}/task/{thread}"
            yield from (f"{task}/cwd", f"{task}/root")
            yield from (f"{task}/fd/{name}" for name in self._names(f"{task}/fd"))

    def _guard_as_seen_from(self, folder: int, path: str) -> None:
        """A process may be in a folder that has been mounted over since, and does not see the newer mounts."""
        for target, known in self._targets.items():
            with suppress(OSError):
                way = os.path.relpath(target, path.removesuffix(" (deleted)"))
                place = os.open(way, _REFERENCE | os.O_NOFOLLOW, dir_fd=folder)
                try:
                    if identity(place) == known and not is_read_only(place):
                        mount(place, as_read_only=True)
                finally:
                    os.close(place)

    def is_still_open(self, path: str) -> bool:
        """For writing by any process, even one that we cannot see: then the kernel grants no lease. It takes a moment
        to close what was in transit to a process that has been killed."""
        for after_ms in (0, *[10] * 50) if self.stopped else (0,):
            select.poll().poll(after_ms)
            is_open = False
            with suppress(OSError):
                place = refer(path)
                if stat.S_ISREG(os.fstat(place).st_mode):
                    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
                    file = os.open(f"{os.getpid()}/fd/{place}", flags, dir_fd=self._proc)
                    try:
                        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
                        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
                    except BlockingIOError:
                        is_open = True
                    finally:
                        os.close(file)
                os.close(place)
            if not is_open:
                return False
        return True

    def _names(self, folder: str) -> list[str]:
        """What is in a folder of /proc; nothing if the process or thread has ended."""
        with suppress(OSError):
            listed = os.open(folder, _LISTING, dir_fd=self._proc)
            try:
                return os.listdir(listed)  # noqa: PTH208
            finally:
                os.close(listed)
        return []

    def _read(self, name: str) -> bytes:
        with suppress(OSError), os.fdopen(os.open(name, os.O_RDONLY, dir_fd=self._proc), "rb") as file:
            return file.read()
        return b""


def show(pid: int, path: str, places: dict[str, list[str]], source_path: str) -> None:
    """Show a folder or file of this machine, writable, under a path in the sandbox (mostly the same), over what was
    mounted there before. `places`: what is guarded in it, as in `answer`; until that is done, all processes of the
    sandbox are stopped.

    It can be mounted only from a namespace that belongs to the owner of the sandbox: a copy of ours, for a moment.
    """
    guarding = Guarding(pid)
    outside = refer(source_path)
    mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    devices = {folder: os.stat(folder).st_dev for folder in ("/", *folders_around(path))}  # noqa: PTH116
    check(libc.setns(fcntl.ioctl(mounts, _NS_GET_USERNS), _CLONE_NEWUSER))
    check(libc.unshare(_CLONE_NEWNS))
    source = refer(source_path)
    if identity(source) != identity(outside):
        raise OSError(errno.ESTALE, REPLACED)
    is_folder = stat.S_ISDIR(os.fstat(source).st_mode)
    deep = _AT_RECURSIVE if is_folder else 0
    tree = call_kernel(_OPEN_TREE, source, b"", ctypes.c_uint(_AT_EMPTY_PATH | deep | _OPEN_TREE_CLONE | os.O_CLOEXEC))
    set_flags(tree, _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV, 0, deep)
    check(libc.setns(mounts, _CLONE_NEWNS))
    for folder in folders_around(path):
        make_mount_point(folder, devices, is_folder=True)
    make_mount_point(path, devices, is_folder=is_folder)
    with guarding.all_stopped() if places else nullcontext():
        place = refer(path)
        call_kernel(_MOVE_MOUNT, tree, b"", place, b"", ctypes.c_uint(_BOTH_ARE_DESCRIPTORS))
        try:
            mounted = guarding.read_mount_points() if places else set[str]()
            for inner, around in places.items():
                guarding.guard(inner, around, mounted)
        except OSError:
            unmount(path)
            raise


def folders_around(path: str) -> list[str]:
    """Outermost first, without the root."""
    parts = path.strip("/").split("/")[:-1]
    return ["/" + "/".join(parts[: end + 1]) for end in range(len(parts))]


def make_mount_point(path: str, devices: dict[str, int], *, is_folder: bool) -> None:
    """Make a folder or file to mount onto, if there is none yet. The folder around it must be the sandbox's own, which
    may be read-only in there. `devices`: of the folders with the same names on this machine."""
    parent, name = os.path.split(path)
    place = refer(parent)
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=place, follow_symlinks=False)
        return
    if os.fstat(place).st_dev == devices[parent]:
        raise OSError(errno.EPERM, NOT_OURS)
    tree = call_kernel(_OPEN_TREE, place, b"", ctypes.c_uint(_AT_EMPTY_PATH | _OPEN_TREE_CLONE | os.O_CLOEXEC))
    set_flags(tree, 0, _MOUNT_ATTR_RDONLY, 0)
    if is_folder:
        os.mkdir(name, 0o755, dir_fd=tree)
    else:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=tree))


def set_flags(tree: int, on: int, off: int, deep: int) -> None:
    change = struct.pack("QQQQ", on, off, 0, 0)
    where = ctypes.c_uint(_AT_EMPTY_PATH | deep)
    call_kernel(_MOUNT_SETATTR, tree, b"", where, change, ctypes.c_size_t(len(change)))


def withdraw(pid: int, path: str, _: dict[str, list[str]], __: str) -> None:
    """Unmount what `show` has mounted, with all that was mounted in it. A process that is inside stays inside, past the
    guards, so it is made read-only first: that fails while a file in it is open for writing."""
    enter(pid)
    place = refer(path)
    deep = _AT_RECURSIVE if stat.S_ISDIR(os.fstat(place).st_mode) else 0
    for left in reversed(range(MAX_CLOSING)):
        try:
            set_flags(place, _MOUNT_ATTR_RDONLY, 0, deep)
            break
        except OSError as fault:
            if fault.errno != errno.EBUSY or not left:
                raise
            select.poll().poll(CLOSING_MS)
    os.close(place)
    unmount(path)


def unmount(path: str) -> None:
    check(libc.umount2(os.fsencode(path), _MNT_DETACH | _UMOUNT_NOFOLLOW))


def explain(fault: OSError) -> str:
    if fault.errno == errno.ELOOP:
        return LINK
    return NO_CALLS if fault.errno == errno.ENOSYS else fault.strerror or str(fault)


def answer(order: dict[str, Any]) -> dict[str, Any]:
    """Guard places. `places`: by path, the folders around each that are mounted, too, outermost first. `links`: by
    guarded file, the link that is shown in its place."""
    places: dict[str, list[str]] = order["places"]
    links: dict[str, str] = order["links"]
    try:
        guarding = Guarding(order["pid"])
        enter(order["pid"])
    except IndexError:
        return {"failed": [(path, ENDED) for path in places]}
    except OSError as fault:
        return {"failed": [(path, explain(fault)) for path in places]}
    failed: dict[str, str] = {}
    if places:
        mounted = guarding.read_mount_points()
        for path, around in places.items():
            try:
                guarding.guard(path, around, mounted)
            except OSError as fault:
                failed[path] = explain(fault)
        try:
            guarding.kill_holders()
        except OSError as fault:
            return {"failed": [(path, explain(fault)) for path in places]}
        failed.update({path: STILL_OPEN for path in places if path not in failed and guarding.is_still_open(path)})
    linked_to: list[str] = []
    for path, link in links.items():
        if path not in failed:
            with suppress(OSError):  # then it stays guarded, and cannot be written at all
                mount_link(link, path)
                linked_to.append(path)
    return {
        "done": [path for path in places if path not in failed],
        "failed": [*failed.items()],
        "stopped": guarding.stopped,
        "linked": guarding.linked,
        "redirected": linked_to,
    }


def main() -> None:
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # when a process breaks a lease
    order = json.load(sys.stdin)
    change = {"show": show, "withdraw": withdraw}.get(order.get("change", ""))
    if change is None:
        result = answer(order)
    else:
        try:
            change(order["pid"], order["path"], order["places"], order["source"])
            result = {"done": [order["path"]]}
        except OSError as fault:
            result = {"failed": [(order["path"], explain(fault))]}
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
