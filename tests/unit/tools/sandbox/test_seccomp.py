"""Filters of system calls: what they answer, what this kernel makes of them, and what goes on working."""

import errno
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from talaria.tools.sandbox.host import seccomp
from talaria.tools.sandbox.host.seccomp import NUMBERS

X86, ARM, I386 = 0xC000003E, 0xC00000B7, 0x40000003
ARCHITECTURES = {"x86_64": X86, "aarch64": ARM}
ALLOWED, KILLED, NOTIFIED = "allowed", "killed", "notified"
WEIGHED = {
    "clone",
    "clone3",
    "connect",
    "fallocate",
    "ioctl",
    "open",
    "openat",
    "openat2",
    "personality",
    "socket",
    "truncate",
    "unshare",
}
REPORTED = {"connect"}
"""Never refused."""
SHARED = {
    *("shmget", "shmat", "shmctl", "semget", "semop", "semtimedop", "semctl"),
    *("msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink"),
}
OF_PROCESSES = {
    *("prlimit64", "setpriority", "ioprio_set"),
    *("sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"),
}
METADATA = {
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchown", "fchownat"),
    *("utime", "utimes", "futimesat", "utimensat", "setxattr", "lsetxattr", "fsetxattr"),
    *("removexattr", "lremovexattr", "fremovexattr"),
}
NEW_METADATA = {"file_setattr", "setxattrat", "removexattrat"}
ONLY_OFFLINE = SHARED | OF_PROCESSES | METADATA | NEW_METADATA
CLONE_THREAD, CLONE_FS, CLONE_NEWUSER, CLONE_NEWNS = 0x3D0F00, 0x200, 0x10000000, 0x20000
TIOCSTI, TIOCLINUX, TCGETS = 0x5412, 0x541C, 0x5401
UNIX, INET, INET6, NETLINK, PACKET, ALG, VSOCK = 1, 2, 10, 16, 17, 38, 40
READ_AND_TRUNCATE, WRITE_AND_TRUNCATE = os.O_TRUNC, os.O_WRONLY | os.O_TRUNC
is_linux = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine not in ARCHITECTURES, reason="filters are for Linux"
)


def answer(program: bytes, architecture: int, number: int, *arguments: int) -> str | int:
    """What the kernel would do about a call: allow it, kill the process, or let it fail with a number."""
    words = [argument & ((1 << 64) - 1) for argument in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *words)
    steps = [*struct.iter_unpack("<HBBI", program)]
    held = at = 0
    while True:
        operation, if_so, if_not, operand = steps[at]
        at += 1
        match operation:
            case 0x20:
                (held,) = struct.unpack_from("<I", data, operand)
            case 0x54:
                held &= operand
            case 0x15:
                at += if_so if held == operand else if_not
            case 0x35:
                at += if_so if held >= operand else if_not
            case 0x06:
                return {0x7FFF0000: ALLOWED, 0x80000000: KILLED, 0x7FC00000: NOTIFIED}.get(operand, operand & 0xFFFF)
            case _:
                pytest.fail(f"an operation that nobody knows: {operation:#x}")


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Filters are made for it."""
    name = str(request.param)
    uname = os.uname_result(("Linux", "here", "6.1", "", name))
    monkeypatch.setattr(os, "uname", lambda: uname)
    monkeypatch.setattr(sys, "platform", "linux")
    return name


def asked(machine: str, program: bytes, call: str, *arguments: int) -> str | int:
    number = NUMBERS[call][[*ARCHITECTURES].index(machine)]
    assert number is not None
    return answer(program, ARCHITECTURES[machine], number, *arguments)


def test_connecting_is_reported_and_nothing_else(machine: str) -> None:
    program = seccomp.report_connecting()
    reported = {
        call for call, number in NUMBERS.items() if None not in number and asked(machine, program, call) != ALLOWED
    }
    assert reported == {"connect"}
    assert asked(machine, program, "connect") == NOTIFIED


def test_ways_out_are_refused_by_every_filter(machine: str) -> None:
    refused = NUMBERS.keys() - WEIGHED - REPORTED - ONLY_OFFLINE
    for program in (seccomp.always(), seccomp.offline(2), seccomp.offline(7)):
        assert {asked(machine, program, call) for call in refused} == {errno.EPERM}
    assert refused == {
        *(
            "ptrace",
            "process_vm_readv",
            "process_vm_writev",
            "pidfd_getfd",
            "setns",
            "bpf",
            "perf_event_open",
            "userfaultfd",
        ),
        *("mount", "umount2", "pivot_root", "move_mount", "open_tree", "open_tree_attr", "mount_setattr"),
        *("fsopen", "fsconfig", "fsmount", "fspick", "open_by_handle_at", "add_key", "request_key", "keyctl"),
        *("io_uring_setup", "io_uring_enter", "io_uring_register", "kexec_load", "kexec_file_load", "reboot"),
        *("init_module", "finit_module", "delete_module", "swapon", "swapoff"),
    }


@pytest.mark.parametrize(
    ("call", "arguments", "expected"),
    [
        ("clone", (CLONE_THREAD,), ALLOWED),
        ("clone", (17,), ALLOWED),
        ("clone", (17 | CLONE_NEWUSER,), errno.EPERM),
        ("clone", (17 | CLONE_NEWNS,), errno.EPERM),
        ("clone3", (), errno.ENOSYS),
        ("fallocate", (3, 0), errno.EOPNOTSUPP),
        ("fallocate", (3, 1), errno.EOPNOTSUPP),
        ("fallocate", (3, 3), ALLOWED),
        ("fallocate", (3, 0x10), errno.EOPNOTSUPP),
        ("unshare", (CLONE_FS,), ALLOWED),
        ("unshare", (CLONE_NEWUSER,), errno.EPERM),
        ("unshare", (CLONE_FS | CLONE_NEWUSER,), errno.EPERM),
        ("unshare", (0x80,), errno.EPERM),
        ("personality", (0,), ALLOWED),
        ("personality", (0xFFFFFFFF,), ALLOWED),
        ("personality", (0x40000,), ALLOWED),
        ("personality", (0x400000,), errno.EPERM),
        ("ioctl", (0, TCGETS), ALLOWED),
        ("ioctl", (0, TIOCSTI), errno.EPERM),
        ("ioctl", (0, TIOCSTI | 1 << 32), errno.EPERM),
        ("ioctl", (TIOCSTI, 0), ALLOWED),
        ("ioctl", (0, TIOCLINUX), errno.EPERM),
        ("socket", (UNIX, 1), ALLOWED),
        ("socket", (INET, 1), ALLOWED),
        ("socket", (INET6, 2), ALLOWED),
        ("socket", (NETLINK, 3, 0), ALLOWED),
        ("socket", (NETLINK, 3, 15), errno.EAFNOSUPPORT),
        ("socket", (PACKET, 3), errno.EAFNOSUPPORT),
        ("socket", (ALG, 5), errno.EAFNOSUPPORT),
        ("socket", (VSOCK, 1), errno.EAFNOSUPPORT),
        ("socket", (VSOCK | 1 << 32, 1), errno.EAFNOSUPPORT),
        ("truncate", (), ALLOWED),
        ("openat", (0, 0, READ_AND_TRUNCATE), ALLOWED),
    ],
)
def test_arguments_are_weighed(machine: str, call: str, arguments: tuple[int, ...], expected: str | int) -> None:
    assert asked(machine, seccomp.always(), call, *arguments) == expected


@pytest.mark.parametrize("family", [UNIX, INET, INET6, PACKET, ALG, VSOCK])
def test_offline_there_are_no_sockets(machine: str, family: int) -> None:
    assert asked(machine, seccomp.offline(7), "socket", family, 1) == errno.EPERM
    assert asked(machine, seccomp.offline(7), "socket", NETLINK, 3, 0) == ALLOWED


def test_offline_nothing_is_shared_with_processes_elsewhere(machine: str) -> None:
    assert {asked(machine, seccomp.offline(7), call) for call in SHARED} == {errno.EPERM}


@pytest.mark.parametrize(
    ("call", "arguments", "expected"),
    [
        ("prlimit64", (0, 7), ALLOWED),
        ("prlimit64", (1234, 7), errno.EPERM),
        ("sched_setaffinity", (0, 8), ALLOWED),
        ("sched_setaffinity", (1234, 8), errno.EPERM),
        ("sched_setscheduler", (1234, 0), errno.EPERM),
        ("sched_setattr", (1234, 0), errno.EPERM),
        ("sched_setparam", (1234, 0), errno.EPERM),
        ("setpriority", (0, 0, 5), ALLOWED),
        ("setpriority", (1, 0, 5), ALLOWED),
        ("setpriority", (0, 1234, 5), errno.EPERM),
        ("setpriority", (2, 0, 5), errno.EPERM),
        ("ioprio_set", (1, 0), ALLOWED),
        ("ioprio_set", (1, 1234), errno.EPERM),
        ("ioprio_set", (3, 0), errno.EPERM),
        ("ioctl", (0, 0x40086602), errno.EPERM),
        ("ioctl", (0, 0x401C5820), errno.EPERM),
        ("ioctl", (0, TCGETS), ALLOWED),
    ],
)
def test_offline_a_process_changes_only_itself(
    machine: str, call: str, arguments: tuple[int, ...], expected: str | int
) -> None:
    assert asked(machine, seccomp.offline(7), call, *arguments) == expected
    assert asked(machine, seccomp.always(), call, *arguments) == ALLOWED


@pytest.mark.parametrize(
    ("answer", "expected"), [(seccomp.NOTIFY, NOTIFIED), (seccomp.ALLOW, ALLOWED), (errno.EPERM, errno.EPERM)]
)
def test_changes_of_modes_and_times_go_to_whoever_decides(machine: str, answer: int, expected: str | int) -> None:
    calls = seccomp.numbers(METADATA)
    assert {asked(machine, seccomp.offline(7, answer), call) for call in calls} == {expected}
    assert {asked(machine, seccomp.offline(7, answer), call) for call in NEW_METADATA} == {errno.ENOSYS}


@pytest.mark.parametrize(
    ("call", "arguments", "before_3"),
    [
        ("truncate", (), errno.EACCES),
        ("openat", (0, 0, READ_AND_TRUNCATE), errno.EACCES),
        ("openat", (0, 0, WRITE_AND_TRUNCATE), ALLOWED),
        ("openat", (0, 0, 0), ALLOWED),
        ("openat2", (), errno.ENOSYS),
    ],
)
def test_truncating_is_refused_where_landlock_does_not_know_it(
    machine: str, call: str, arguments: tuple[int, ...], before_3: str | int
) -> None:
    assert asked(machine, seccomp.offline(2), call, *arguments) == before_3
    assert asked(machine, seccomp.offline(3), call, *arguments) == ALLOWED


def test_what_no_rule_names_is_allowed(machine: str) -> None:
    assert answer(seccomp.always(), ARCHITECTURES[machine], 500) == ALLOWED


def test_calls_of_another_architecture_are_deadly() -> None:
    assert answer(seccomp.program((), "x86_64"), I386, 20) == KILLED
    assert answer(seccomp.program((), "x86_64"), ARM, 20) == KILLED
    assert answer(seccomp.program((), "aarch64"), X86, 20) == KILLED


def test_calls_of_x32_do_not_exist() -> None:
    assert answer(seccomp.program((), "x86_64"), X86, 0x40000000 + 39) == errno.ENOSYS
    assert answer(seccomp.program((), "x86_64"), X86, 0x40000000) == errno.ENOSYS


def test_first_rule_that_fits_decides_and_all_its_conditions_count() -> None:
    rules: list[seccomp.Rule] = [
        ("socket", 5, [(0, 0xFF, 1), (2, 0xF0, 0x20)]),
        ("socket", seccomp.ALLOW, [(0, 0xFF, 1)]),
        ("socket", 7, ()),
    ]
    program = seccomp.program(rules, "x86_64")
    assert [answer(program, X86, 41, *given) for given in ((1, 0, 0x2F), (1, 0, 0x30), (2, 0, 0x20))] == [5, ALLOWED, 7]


def test_unknown_machine_is_said_to_be_unknown() -> None:
    with pytest.raises(OSError, match="the system calls of riscv64 are not supported"):
        seccomp.program((), "riscv64")


def test_other_systems_are_told_that_only_linux_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    for call in (seccomp.always, lambda: seccomp.offline(0), lambda: seccomp.install(b"")):
        with pytest.raises(OSError, match="only Linux can filter system calls"):
            call()


@pytest.mark.parametrize(
    ("header", "column"),
    [("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", 0), ("/usr/include/asm-generic/unistd.h", 1)],
)
def test_numbers_are_those_of_the_kernel(header: str, column: int) -> None:
    if not Path(header).exists():
        pytest.skip("the headers of the kernel are not installed")
    known = dict(re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", Path(header).read_text()))
    ours = {call: numbers[column] for call, numbers in NUMBERS.items() if call in known}
    assert ours == {call: int(known[call]) for call in ours}
    assert len(ours) > 35


TRY = """
import ctypes, sys
install(always() if sys.argv[1] == "always" else offline(int(sys.argv[1])))
libc = ctypes.CDLL(None, use_errno=True)
for call in sys.argv[2:]:
    number, *arguments = map(int, call.split(","))
    print(0 if libc.syscall(number, *arguments) >= 0 else ctypes.get_errno())
"""


def confined(filter: str, script: str, *arguments: str, user: int | None = None) -> list[str]:
    source = Path(seccomp.__file__).read_text() + script
    python = sys.executable if user is None else "/usr/bin/python3"
    done = subprocess.run(
        [python, "-I", "-S", "-c", source, filter, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd="/",
        user=user,
        group=user,
        extra_groups=None if user is None else (),
    )
    return done.stdout.split()


@pytest.fixture(params=["root", "nobody"])
def user(request: pytest.FixtureRequest) -> int | None:
    """None: whoever we are."""
    if request.param == "root":
        return None
    if os.getuid() != 0 or not Path("/usr/bin/python3").exists():
        pytest.skip("only root can become somebody else")
    return 65534


@is_linux
def test_kernel_refuses_what_the_filter_names(user: int | None) -> None:
    column = [*ARCHITECTURES].index(os.uname().machine)
    names = NUMBERS.keys() - WEIGHED - REPORTED - ONLY_OFFLINE
    calls = [f"{NUMBERS[call][column]},0,0,0,0,0" for call in names]
    assert confined("always", TRY, *calls, user=user) == [str(errno.EPERM)] * len(calls)


@is_linux
def test_kernel_weighs_arguments(user: int | None) -> None:
    column = [*ARCHITECTURES].index(os.uname().machine)
    number = {call: numbers[column] for call, numbers in NUMBERS.items()}
    calls = {
        f"{number['socket']},{UNIX},1,0": ("0", "1"),
        f"{number['socket']},{INET},1,0": ("0", "1"),
        f"{number['socket']},{NETLINK},3,0": ("0", "0"),
        f"{number['socket']},{VSOCK},1,0": (str(errno.EAFNOSUPPORT), "1"),
        f"{number['unshare']},{CLONE_FS}": ("0", "0"),
        f"{number['unshare']},{CLONE_NEWUSER}": ("1", "1"),
        f"{number['clone3']},0,0": (str(errno.ENOSYS), str(errno.ENOSYS)),
        f"{number['truncate']},0,0": (str(errno.EFAULT), str(errno.EACCES)),
        f"{number['personality']},{0xFFFFFFFF}": ("0", "0"),
        f"{number['personality']},{0x400000}": ("1", "1"),
        f"{number['ioctl']},0,{TIOCSTI},0": ("1", "1"),
    }
    assert confined("always", TRY, *calls, user=user) == [always for always, _ in calls.values()]
    assert confined("2", TRY, *calls, user=user) == [offline for _, offline in calls.values()]


RUN = """
import os, sys, warnings
install(always() if sys.argv[1] == "always" else offline(int(sys.argv[1]), ALLOW))
os.execvp("bash", ["bash", "-c", sys.argv[2]])
"""
WORK = {
    "bash": "diff <(echo a | cat) <(echo a) && (exit 3) || [ $? = 3 ] && wait && echo done",
    "git": "git init -q x && cd x && echo a > a && git add a && git -c user.name=x -c user.email=x@y commit -qm x "
    "&& git clone -q . ../y && echo done",
    "gcc": "echo 'int main(void) { return 0; }' > a.c && gcc a.c && ./a.out && echo done",
    "make": "printf 'all: b c\\nb c:\\n\\ttouch $@\\n' > Makefile && make -sj2 && echo done",
    "tar": "echo a > a && tar czf a.tgz a && rm a && tar xzf a.tgz && cat a > /dev/null && echo done",
    "python3": "python3 -c \"import subprocess, multiprocessing as m; subprocess.run(['true'], check=True); "
    "assert m.get_context('fork').Pool(2).map(abs, [-1]) == [1]; print('done')\"",
    "asyncio": "python3 -c \"import asyncio; asyncio.run((lambda: asyncio.to_thread(print, 'done'))())\"",
    "node": "node -e \"require('child_process').execSync('true'); require('os').networkInterfaces(); "
    "new (require('worker_threads').Worker)('console.log(\\'done\\')', {eval: true})\"",
    "npm": "npm --version > /dev/null && echo done",
}


@is_linux
@pytest.mark.parametrize("filter", ["always", "2"])
@pytest.mark.parametrize("program", WORK)
def test_work_goes_on(program: str, filter: str, tmp_path: Path) -> None:
    if shutil.which({"asyncio": "python3"}.get(program, program)) is None:
        pytest.skip(f"{program} is not installed")
    command = f"cd {tmp_path} && export HOME=$PWD && {WORK[program]}"
    assert confined(filter, RUN, command) == ["done"]


SERVE = """python3 -c "
import socket, threading
server = socket.create_server(('127.0.0.1', 0))
threading.Thread(target=lambda: server.accept()[0].sendall(b'done')).start()
(*_, address), *_ = socket.getaddrinfo('localhost', server.getsockname()[1], socket.AF_INET)
print(socket.create_connection(address).recv(4).decode())
" """


@is_linux
def test_servers_of_its_own_are_reached_unless_it_is_offline(tmp_path: Path) -> None:
    if shutil.which("python3") is None:
        pytest.skip("python3 is not installed")
    assert confined("always", RUN, SERVE) == ["done"]
    assert confined("7", RUN, f"{SERVE} 2> /dev/null || echo refused") == ["refused"]


CONNECTING = """
import os, signal, socket, time
from talaria.tools.sandbox.host import seccomp

ours, theirs = socket.socketpair()
caller = os.fork()
if caller == 0:
    signal.signal(signal.SIGUSR1, lambda *_: None)
    seccomp.send_listener(theirs, seccomp.report_connecting())
    raise SystemExit(socket.socket(socket.AF_UNIX).connect_ex("/nobody/listens"))
listener = seccomp.receive_listener(ours)
notice = seccomp.receive(listener)
os.kill(caller, signal.SIGUSR1)
time.sleep(0.1)
seccomp.let_continue(listener, notice)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(caller, 0)[1]))
"""


@is_linux
@pytest.mark.skipif(os.uname().release.split(".")[:1] < ["6"], reason="Linux before 5.19 interrupts such calls")
def test_a_call_that_was_received_is_not_interrupted() -> None:
    """Programs take an interrupted `connect` for one that goes on, and fail later."""
    done = subprocess.run((sys.executable, "-c", CONNECTING), check=False, timeout=60)
    assert done.returncode == errno.ENOENT
