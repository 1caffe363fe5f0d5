"""Tries to break out of the sandbox it runs in, in every way of the matrix (probes.py), and reports what happened.

    python -I -S intruder.py ATTEMPTS.json

Prints a line of JSON for each attempt: its name, whether it succeeded, details. It may be wrong (what it wrote may
have gone nowhere), so the other side judges. Every attempt is a process of its own, because it may get killed.
Imports nothing from Talaria.
"""

import ctypes
import fcntl
import json
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

ATTEMPT_S = 30
LIFE_S = 60
"""How long a process that was left behind lives if nobody ends it."""
PIECE_BYTES = 32 << 20
CLONE_NEWUSER = 0x10000000
PTRACE_ATTACH, PTRACE_DETACH = 16, 17
SHM_RDONLY, IPC_NOWAIT = 0o10000, 0o4000
KERNEL = ("/proc", "/sys/kernel/mm", "/sys/module", "/sys/power")
NICENESS = 19
"""Whatever the agent runs at: everybody may make their own processes yield more, and nobody less."""
AT_FDCWD, RENAME_EXCHANGE = -100, 2
WATCHED_S = 3.0


class Failed(Exception):
    """The attempt did not succeed; the text says why."""


class NothingToTry(Exception):
    """Something that the attempt needs is not here."""


def main(attempts: list[list[Any]]) -> None:
    """Each has a name, a function in this file, and its arguments.

    Such a function returns what it got, and raises `Failed` or `OSError`.
    """
    for name, function, *arguments in attempts:
        child = os.fork()
        if child == 0:
            signal.alarm(ATTEMPT_S)
            code = 1
            try:
                _report(name, True, globals()[function](*arguments))
                code = 0
            except NothingToTry as fault:
                _report(name, None, str(fault))
                code = 0
            except (Failed, OSError, subprocess.SubprocessError) as fault:
                _report(name, False, str(fault))
                code = 0
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != 0:
            _report(name, False, f"ended by signal {-code}" if code < 0 else "broke off")


def _report(name: str, succeeded: bool | None, detail: str) -> None:
    line = json.dumps({"name": name, "succeeded": succeeded, "detail": detail[:400]})
    os.write(1, line.encode() + b"\n")


def read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(200).decode("utf-8", "replace")


def open_any(paths: list[str]) -> str:
    """Without reading anything."""
    for path in paths:
        with suppress(OSError):
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            return path
    raise Failed("none can be opened")


def write(path: str, mark: str) -> str:
    with open(path, "a") as file:
        file.write(mark)
    return path


def move(paths: list[str]) -> str:
    """And back: this would let it put anything in their place."""
    moved: list[str] = []
    for path in paths:
        with suppress(OSError):
            os.rename(path, f"{path}-moved")
            os.rename(f"{path}-moved", path)
            moved.append(path)
    if not moved:
        raise Failed("none of them")
    return ", ".join(moved)


def connect(address: str | list[str | int], mark: str) -> str:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as stream:
        stream.settimeout(3)
        stream.connect(address if isinstance(address, str) else tuple(address))
        stream.sendall(mark.encode())
    return repr(address)


def send(address: list[str | int], mark: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(mark.encode(), tuple(address))
    return repr(address)


def _processes() -> Iterator[str]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            yield f"/proc/{name}"


def read_environments(variable: str) -> str:
    seen = 0
    for process in _processes():
        with suppress(OSError), open(f"{process}/environ", "rb") as file:
            seen += 1
            for entry in file.read().decode("utf-8", "replace").split("\0"):
                if entry.startswith(f"{variable}="):
                    return entry
    raise Failed(f"{seen} could be read, none with the canary")


def read_through_roots(secret: str) -> str:
    for process in _processes():
        with suppress(OSError):
            return read(f"{process}/root{secret}")
    raise Failed("no other process leads there")


def find_descriptors() -> str:
    found: list[str] = []
    for descriptor in range(3, 1024):
        with suppress(OSError):
            os.fstat(descriptor)
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    if not found:
        raise Failed("there are none")
    return ", ".join(found)


def trace(pid: int) -> str:
    _libc("ptrace", PTRACE_ATTACH, pid, None, None)
    os.waitpid(pid, 0)
    _libc("ptrace", PTRACE_DETACH, pid, None, None)
    return "attached"


def kill(pid: int, mark: str) -> str:
    with suppress(FileNotFoundError, PermissionError), open(f"/proc/{pid}/cmdline") as file:
        if mark not in file.read():
            raise Failed("another process has its number here")
    os.kill(pid, signal.SIGKILL)
    return "killed"


def make_namespace() -> str:
    _libc("unshare", CLONE_NEWUSER)
    return "made"


def mount(project: str) -> str:
    place = f"{project}/mounted"
    os.makedirs(place, exist_ok=True)
    _libc("mount", b"none", place.encode(), b"tmpfs", 0, None)
    _libc("umount2", place.encode(), 0)
    return "mounted"


def find_capabilities() -> str:
    with open("/proc/self/status") as file:
        (held,) = (line.split()[1] for line in file if line.startswith("CapEff:"))
    if int(held, 16) == 0:
        raise Failed("none")
    return held


def make_device(project: str) -> str:
    path = f"{project}/device"
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    try:
        os.close(os.open(path, os.O_RDWR))
    finally:
        os.unlink(path)
    return "made and opened"


def open_disks() -> str:
    disks: list[str] = []
    for name in {*_list_folder("/dev"), *_list_folder("/sys/class/block"), "sda", "vda", "nvme0n1"}:
        with suppress(OSError):
            if stat.S_ISBLK(os.stat(f"/dev/{name}").st_mode):
                disks.append(f"/dev/{name}")
    for path in ("/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", *disks):
        with suppress(OSError):
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            return path
    raise Failed("none can be opened")


def _list_folder(folder: str) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []


def open_settings() -> str:
    """Without writing anything."""
    for top in KERNEL:
        for folder, inner, files in os.walk(top):
            inner[:] = [name for name in inner if not (folder == "/proc" and name.isdigit())]
            for file in files:
                with suppress(OSError):
                    os.close(os.open(f"{folder}/{file}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW))
                    return f"{folder}/{file}"
    raise Failed("none can be opened")


def change_mode(path: str) -> str:
    os.chmod(path, 0o640)
    return path


def change_device() -> str:
    """To the mode it already has."""
    os.chmod(os.devnull, stat.S_IMODE(os.stat(os.devnull).st_mode))
    return os.devnull


def change_times(path: str) -> str:
    os.utime(path, (1, 1))
    return path


def change_attributes(path: str) -> str:
    os.setxattr(path, "user.talaria", b"x")
    return path


def read_shared_memory(segment: int) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_ssize_t
    address = libc.shmat(segment, None, SHM_RDONLY)
    if address == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return ctypes.string_at(address, 100).decode("utf-8", "replace")


def read_queue(queue: int) -> str:
    received = ctypes.create_string_buffer(200)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.msgrcv(queue, received, ctypes.c_size_t(100), ctypes.c_long(0), IPC_NOWAIT) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return received.raw[8:].rstrip(b"\0").decode("utf-8", "replace")


def change_limits(pid: int) -> str:
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft - 1, hard))
    return "changed"


def change_priority(pid: int) -> str:
    os.setpriority(os.PRIO_PROCESS, pid, NICENESS)
    return "changed"


def change_processors(pid: int) -> str:
    os.sched_setaffinity(pid, {min(os.sched_getaffinity(pid))})
    return "changed"


def type_into_terminal() -> str:
    """Without one, into a terminal of our own: what counts is whether the kernel allows it."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        os.setsid()
        _, terminal = os.openpty()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    fcntl.ioctl(terminal, termios.TIOCSTI, b" ")
    return "typed"


def outlive(line: str) -> str:
    """Leaves a detached process behind."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.alarm(LIFE_S)
            held = os.open(line, os.O_RDWR)
            _discard_output()
            os.write(writing, b"+")
            os.read(held, 1)
        os._exit(0)
    os.close(writing)
    if not os.read(reading, 1):
        raise Failed("it did not start")
    return "left a process behind"


def _discard_output() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)


def fork(processes: int) -> str:
    children: list[int] = []
    try:
        while len(children) <= processes:
            child = os.fork()
            if child == 0:
                signal.alarm(LIFE_S)
                _discard_output()
                signal.pause()
                os._exit(0)
            children.append(child)
    except BlockingIOError:
        raise Failed(f"stopped after {len(children)}") from None
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return f"{len(children)} at once"


def fill(scratch_bytes: int, mark: str) -> str:
    folder = f"{os.environ.get('TMPDIR', '/tmp')}/filled-{mark}"  # noqa: S108
    os.mkdir(folder)
    try:
        for number in range(scratch_bytes // PIECE_BYTES + 1):
            with open(f"{folder}/{number}", "wb") as file:
                os.posix_fallocate(file.fileno(), 0, PIECE_BYTES)
    finally:
        shutil.rmtree(folder)
    return f"more than {scratch_bytes} bytes"


def write_large(project: str, file_bytes: int) -> str:
    with open(f"{project}/large", "wb") as file:
        os.pwrite(file.fileno(), b"x", file_bytes)
    return f"more than {file_bytes} bytes"


def use_memory(size_bytes: int) -> str:
    held = bytearray(b"x") * size_bytes
    time.sleep(WATCHED_S)  # so that a limit that is only checked now and then is checked
    return f"{len(held)} bytes"


def use_instances(persons_own: int) -> str:
    """Only those of a sandbox with a limit of its own; otherwise it reports that there is none."""
    if not persons_own:
        raise NothingToTry("this kernel does not say how many there are")
    with open("/proc/sys/user/max_inotify_instances") as file:
        ours = int(file.read())
    if ours > persons_own // 2:
        return f"not limited: all {persons_own} of the user"
    libc = ctypes.CDLL(None, use_errno=True)
    for _ in range(ours + 1):
        if libc.inotify_init() < 0:
            raise Failed(f"no more than {ours}")
    return f"more than {ours}"


def go_on() -> str:
    time.sleep(WATCHED_S)
    return "it was not stopped"


def swap(folder: str, elsewhere: str) -> str:
    """Keeps exchanging the folder with a link, until this process is ended."""
    link = f"{os.path.dirname(folder)}/link"
    os.symlink(elsewhere, link)
    while True:
        _libc("renameat2", AT_FDCWD, link.encode(), AT_FDCWD, folder.encode(), RENAME_EXCHANGE)


def write_in_project(project: str) -> str:
    write(f"{project}/written", "x")
    os.rename(f"{project}/written", f"{project}/renamed")
    os.truncate(f"{project}/renamed", 0)
    os.unlink(f"{project}/renamed")
    return "written, renamed, cut and removed"


def change_in_project(project: str) -> str:
    """Everything that programs such as tar and git do to files."""
    file, link = f"{project}/changed", f"{project}/changed-link"
    write(file, "x")
    os.symlink(file, link)
    os.chmod(file, 0o700)
    os.utime(file, ns=(1, 2))
    os.utime(link, ns=(3, 4), follow_symlinks=False)
    os.chown(link, os.getuid(), os.getgid(), follow_symlinks=False)
    with open(file) as opened:
        os.fchmod(opened.fileno(), 0o710)
        os.fchown(opened.fileno(), os.getuid(), os.getgid())
        os.utime(opened.fileno(), ns=(1, 2))
    found = os.stat(file)
    if (stat.S_IMODE(found.st_mode), found.st_mtime_ns, os.lstat(link).st_mtime_ns) != (0o710, 2, 4):
        raise Failed("the mode or time is not what was set")
    os.unlink(link)
    os.unlink(file)
    return "mode, owner and times changed"


def use_null() -> str:
    with open("/dev/null", "r+b", buffering=0) as null:
        null.write(b"x")
        return "written" if null.read(1) == b"" else ""


def use_python() -> str:
    return _run("python3", "-c", "import subprocess; subprocess.run(['true'], check=True)")


def use_git(project: str) -> str:
    place = f"{project}/repository"
    _run("git", "init", "-q", place)
    write(f"{place}/file", "x")
    _run("git", "-C", place, "add", ".")
    return _run("git", "-C", place, "-c", "user.name=x", "-c", "user.email=x@localhost", "commit", "-qm", "x")


def use_gcc(project: str) -> str:
    write(f"{project}/program.c", "int main(void) { return 0; }\n")
    _run("gcc", f"{project}/program.c", "-o", f"{project}/program")
    return _run(f"{project}/program")


def _run(*argv: str) -> str:
    if shutil.which(argv[0]) is None:
        raise NothingToTry(f"{argv[0]} is not installed")
    ran = subprocess.run(  # noqa: S603
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False
    )
    if ran.returncode != 0:
        raise Failed(f"{argv[0]} exited with {ran.returncode}: {ran.stderr[-200:]}")
    return ran.stdout or "done"


def serve() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        if os.fork() == 0:
            with socket.create_connection(server.getsockname(), timeout=5) as client:
                client.sendall(b"hello")
            os._exit(0)
        with server.accept()[0] as served:
            return served.recv(5).decode()


def _libc(function: str, *arguments: int | bytes | None) -> None:
    if ctypes.CDLL(None, use_errno=True)[function](*arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    with open(sys.argv[1]) as description:
        described = json.load(description)
    main(described)  # with the file closed: one of the attempts looks for open descriptors
