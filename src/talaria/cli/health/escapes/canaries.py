"""Things outside a sandbox that nothing inside may reach, and that show whether something did.

Nothing of yours is touched: what is planted in your home has names that nobody else uses, and is removed afterwards.
"""

import ctypes
import json
import os
import resource
import secrets
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from talaria.tools.protected import HOST_KEYS, SYSTEM_SECRETS
from talaria.tools.sandbox.base import SandboxLimits

INTRUDER = Path(__file__).with_name("intruder.py")
SECRETS = "read the secret store"
GUARDED = (".git/hooks", ".git/config", ".talaria", ".mcp.json")
"""In a project, where they may only be read."""
GRACE_S = 1.0
"""For a killed process to disappear."""
_NOBODY = 65534
_TEST_NET = ("192.0.2.1", 9)  # nothing is sent there: it only selects a route
_PAUSE_S = 0.01
_IPC_CREATE, _IPC_REMOVE, _IPC_PRIVATE = 0o1600, 0, 0
_OPTIONAL = frozenset(
    {
        "read a file of another user",
        "open a private key of the machine",
        "connect to an abstract socket",
        "connect to an address in the network",
        "change the attributes of a file outside",
        "read shared memory of another process",
        "read a message queue of another process",
        "change the limits of another process",
        "change the processors of another process",
    }
)
"""These cannot be planted on every machine or by every user."""


class Canaries:
    """Planted while the context is open. The project is an empty folder, and stays as the intruder leaves it."""

    def __init__(self, *, project: Path, home: Path, agent_home: Path, limits: SandboxLimits) -> None:
        self._project = project
        self._home = home
        self._agent_home = agent_home
        self._limits = limits
        self._mark = secrets.token_hex(8)
        self._secret = secrets.token_hex(16)
        self._variable = f"TALARIA_CANARY_{self._mark}"  # another trial may run at the same time
        self._reads: dict[str, Path] = {}
        self._writes: dict[str, Path] = {}
        self._listeners: dict[str, socket.socket] = {}
        self._addresses: dict[str, str | tuple[str, int]] = {}
        self._heard: set[str] = set()
        self._shared: dict[str, int] = {}
        """Ids of System V memory and queues."""
        self._files: dict[str, Path] = {}
        """Their mode, times and attributes must not change."""
        self._states: dict[str, tuple[Callable[[], object], object]] = {}
        """How to look at what must not change, and what it was."""
        self._neighbour = 0
        self._keys: list[str] = []
        """Private keys of this machine that we can read; nothing is planted for them."""
        self._decoy: subprocess.Popen[bytes] | None = None
        self._planted = ExitStack()

    @property
    def arguments(self) -> tuple[str, str]:
        """For a Python inside the sandbox: the intruder and the description of its attempts."""
        return str(self._project / "intruder.py"), str(self._project / "attempts.json")

    def __enter__(self) -> Self:
        with ExitStack() as planted:
            self._planted = planted
            apart = self._folder("/var/tmp")  # noqa: S108
            temporary = self._folder("/tmp")  # noqa: S108
            self._plant_files(apart, temporary)
            self._listen(apart, temporary)
            self._decoy = self._start_decoy()
            self._neighbour = self._start_decoy().pid
            self._plant_states(apart)
            self._plant_shared()
            folder, names = HOST_KEYS
            keys = [*map(str, sorted(folder.glob(names))), *(path for path in SYSTEM_SECRETS if Path(path).is_file())]
            self._keys = [path for path in keys if os.access(path, os.R_OK)]
            program, description = map(Path, self.arguments)
            shutil.copyfile(INTRUDER, program)
            description.write_text(json.dumps([*self._attempts(self._decoy.pid)]))
            self._planted = planted.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._planted.close()

    def _folder(self, place: str) -> Path:
        return Path(self._planted.enter_context(tempfile.TemporaryDirectory(prefix="talaria-", dir=place)))

    def _file(self, path: Path, content: str) -> Path:
        if not path.parent.exists():
            path.parent.mkdir(mode=0o700)
            self._planted.callback(_remove, path.parent)
        with path.open("x") as file:
            file.write(content)
        self._planted.callback(path.unlink, missing_ok=True)
        path.chmod(0o600)
        return path

    def _plant_files(self, apart: Path, temporary: Path) -> None:
        self._reads = {
            SECRETS: self._file(self._agent_home / f"{self._mark}.env", self._secret),
            "read an ssh key": self._file(self._home / ".ssh" / f"id_{self._mark}", self._secret),
            "read a file in the host's /tmp": self._file(temporary / "file", self._secret),
        }
        if os.getuid() == 0:  # nobody else can read the files of another user anyway
            foreign = self._file(apart / "foreign", self._secret)
            os.chown(foreign, _NOBODY, _NOBODY)
            self._reads["read a file of another user"] = foreign
        self._writes = {
            "write the policy": self._file(self._agent_home / f"{self._mark}.yaml", ""),
            "write a start-up file in the home": self._file(self._home / f".{self._mark}rc", ""),
            "write authorized keys": self._file(self._home / ".ssh" / f"authorized_{self._mark}", ""),
            "write a file in the host's /tmp": self._file(temporary / "target", ""),
            "write through a link out of the project": self._project / "exit",
            "write through a link in place of a repository": apart / "repository" / "config",
            "write .git/hooks": self._project / ".git/hooks/pre-commit",
            "write .git/config": self._project / ".git/config",
            "write .talaria": self._project / ".talaria/config.yaml",
            "write .mcp.json": self._project / ".mcp.json",
            "write .git/commondir": self._project / ".git/commondir",
        }
        for folder in (".git/hooks", ".talaria"):
            (self._project / folder).mkdir(parents=True)
        for file in (".git/config", ".mcp.json"):
            (self._project / file).touch()
        (self._project / "exit").symlink_to(self._file(apart / "target", ""))
        (apart / "repository" / "hooks").mkdir(parents=True)
        (self._project / "inner").mkdir()
        (self._project / "inner" / ".git").symlink_to(apart / "repository")
        os.mkfifo(self._project / "line")
        self._file(apart / "repository" / "config", "")

    def _listen(self, apart: Path, temporary: Path) -> None:
        stream, loopback = socket.SOCK_STREAM, ("127.0.0.1", 0)
        places: dict[str, tuple[socket.AddressFamily, socket.SocketKind, str | tuple[str, int]]] = {
            "connect to a service on loopback": (socket.AF_INET, stream, loopback),
            "send a datagram": (socket.AF_INET, socket.SOCK_DGRAM, loopback),
            "connect to a socket like docker's": (socket.AF_UNIX, stream, str(apart / "docker.sock")),
            "connect to a socket like ssh-agent's": (socket.AF_UNIX, stream, str(temporary / "agent.1")),
        }
        if sys.platform == "linux":
            places["connect to an abstract socket"] = (socket.AF_UNIX, stream, f"\0talaria-{self._mark}")
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_TEST_NET)
            own_address = str(probe.getsockname()[0])
            if not own_address.startswith("127."):
                places["connect to an address in the network"] = (socket.AF_INET, stream, (own_address, 0))
        for name, (family, kind, address) in places.items():
            listener = self._planted.enter_context(socket.socket(family, kind))
            listener.bind(address)
            listener.setblocking(False)
            if kind == stream:
                listener.listen()
            self._listeners[name] = listener
            self._addresses[name] = address if isinstance(address, str) else listener.getsockname()

    def _start_decoy(self) -> subprocess.Popen[bytes]:
        """A process that stands in for the agent."""
        decoy = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()", self._mark],
            env={self._variable: self._secret},
        )
        self._planted.callback(decoy.wait)
        self._planted.callback(decoy.kill)
        return decoy

    def _plant_states(self, apart: Path) -> None:
        """Notes the states of files, and of a process beside the agent, that must not change."""
        files = {name: self._file(apart / name, "") for name in ("mode", "times", "attributes")}
        pid = self._neighbour
        looks: dict[str, Callable[[], object]] = {
            "change the mode of a file outside": lambda: files["mode"].stat().st_mode,
            "change the times of a file outside": lambda: files["times"].stat().st_mtime_ns,
            "change the priority of another process": lambda: os.getpriority(os.PRIO_PROCESS, pid),
        }
        self._files = dict(zip(looks, (files["mode"], files["times"]), strict=False))
        if sys.platform == "linux":
            looks["change the limits of another process"] = lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE)
            if len(os.sched_getaffinity(pid)) > 1:
                looks["change the processors of another process"] = lambda: os.sched_getaffinity(pid)
            with suppress(OSError):  # not every file system has attributes
                os.setxattr(files["attributes"], "user.talaria", b"")
                attributes = "change the attributes of a file outside"
                looks[attributes] = lambda: os.getxattr(files["attributes"], "user.talaria")
                self._files[attributes] = files["attributes"]
        self._states = {name: (look, look()) for name, look in looks.items()}

    def _plant_shared(self) -> None:
        """Nothing where the kernel has no System V memory or queues."""
        if sys.platform != "linux":
            return
        libc = ctypes.CDLL(None, use_errno=True)
        libc.shmat.restype = ctypes.c_void_p
        content = self._secret.encode()
        memory = libc.shmget(_IPC_PRIVATE, ctypes.c_size_t(4096), _IPC_CREATE)
        if memory >= 0:
            self._planted.callback(libc.shmctl, memory, _IPC_REMOVE, None)
            address = ctypes.c_void_p(libc.shmat(memory, None, 0))
            ctypes.memmove(address, content, len(content))
            libc.shmdt(address)
            self._shared["read shared memory of another process"] = memory
        queue = libc.msgget(_IPC_PRIVATE, _IPC_CREATE)
        if queue >= 0:
            self._planted.callback(libc.msgctl, queue, _IPC_REMOVE, None)
            libc.msgsnd(queue, struct.pack("@l", 1) + content, ctypes.c_size_t(len(content)), 0)
            self._shared["read a message queue of another process"] = queue

    def _attempts(self, decoy: int) -> Iterator[tuple[object, ...]]:
        """For each its name in the matrix, the function in intruder.py, and its arguments."""
        project, mark, limits = str(self._project), self._mark, self._limits
        guarded = [str(self._project / name) for name in (".git", *GUARDED)]
        yield from ((name, "read", str(path)) for name, path in self._reads.items())
        yield from ((name, "write", str(path), mark) for name, path in self._writes.items())
        for name, listener in self._listeners.items():
            function = "send" if listener.type == socket.SOCK_DGRAM else "connect"
            yield name, function, self._addresses[name], mark
        for name, file in self._files.items():
            yield name, f"change_{name.split()[2]}", str(file)
        for name in self._states.keys() - self._files.keys():
            yield name, f"change_{name.split()[2]}", self._neighbour
        yield "change the mode of a device", "change_device"
        if self._keys:
            yield "open a private key of the machine", "open_any", self._keys
        for name, number in self._shared.items():
            yield name, "read_queue" if "queue" in name else "read_shared_memory", number
        yield "move guarded files away", "move", guarded
        yield "read the environment of other processes", "read_environments", self._variable
        yield "read the secret store through other processes", "read_through_roots", str(self._reads[SECRETS])
        yield "use descriptors left open", "find_descriptors"
        yield "trace the agent", "trace", decoy
        yield "kill the agent", "kill", decoy, mark
        yield "create a user namespace", "make_namespace"
        yield "mount a file system", "mount", project
        yield "have capabilities", "find_capabilities"
        yield "create a device", "make_device", project
        yield "open a disk or the memory", "open_disks"
        yield "open kernel settings for writing", "open_settings"
        yield "type into the terminal", "type_into_terminal"
        yield "outlive the command", "outlive", str(self._project / "line")
        yield "start too many processes", "fork", limits.processes
        yield "fill the temporary folder", "fill", limits.scratch_bytes, mark
        yield "write too large a file", "write_large", project, limits.file_bytes
        yield "write in the project", "write_in_project", project
        yield "chmod in the project", "change_in_project", project
        yield "use /dev/null", "use_null"
        yield "use python3", "use_python"
        yield "use git", "use_git", project
        yield "use gcc", "use_gcc", project
        yield "reach its own server", "serve"

    def is_missing(self, name: str) -> bool:
        """Whether this machine has nothing to try it on."""
        if name == "open a private key of the machine":
            return not self._keys
        return name in _OPTIONAL - {*self._reads, *self._listeners, *self._states, *self._shared}

    def is_secret_in(self, text: str) -> bool:
        return self._secret in text

    def is_marked(self, name: str) -> bool:
        try:
            return self._mark in self._writes[name].read_text()
        except OSError:
            return False

    def has_heard(self, name: str) -> bool:
        listener = self._listeners.get(name)
        while listener is not None and name not in self._heard:
            try:
                if listener.type == socket.SOCK_DGRAM:
                    heard = listener.recv(100)
                else:
                    with listener.accept()[0] as stream:
                        stream.settimeout(GRACE_S)
                        heard = stream.recv(100)
            except OSError:
                break
            if self._mark.encode() in heard:
                self._heard.add(name)
        return name in self._heard

    def is_changed(self, name: str) -> bool:
        look, before = self._states.get(name, (None, None))
        return look is not None and look() != before

    def is_decoy_dead(self) -> bool:
        return self._decoy is not None and self._decoy.poll() is not None

    def has_survivor(self) -> bool:
        """A process that still holds the fifo open is alive; it is then told to end."""
        deadline = time.monotonic() + GRACE_S
        while True:
            try:
                line = os.open(self._project / "line", os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                return False
            try:
                if time.monotonic() > deadline:
                    os.write(line, b"end")
                    return True
            finally:
                os.close(line)
            time.sleep(_PAUSE_S)


def _remove(folder: Path) -> None:
    with suppress(OSError):  # somebody else is using it now
        folder.rmdir()
