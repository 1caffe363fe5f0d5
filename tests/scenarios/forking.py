"""Commands without the wait for their imports: a server that has loaded everything forks a process for each.

What runs is the real program in a process of its own, with its own arguments, environment, folder and pipes.
"""

import gc
import io
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import msgspec

TIMEOUT_S = 60.0
_MAX_BYTES = 4 << 20


class Job(msgspec.Struct):
    arguments: list[bytes]
    """As bytes: a name may be no text."""
    environment: dict[str, bytes]
    folder: str


class CommandServer:
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="talaria-commands-")
        self._path = str(Path(self._folder.name) / "socket")
        command = [sys.executable, "-m", "tests.scenarios.forking", self._path]
        environment = {"PATH": os.environ["PATH"], "HOME": self._folder.name, "LANG": "C.UTF-8", "TERM": "dumb"}
        self._process = subprocess.Popen(
            command, cwd=Path(__file__).parents[2], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._folder.cleanup()

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], input: str
    ) -> subprocess.CompletedProcess[str]:
        own = {name: os.fsencode(value) for name, value in environment.items()}
        job = msgspec.json.encode(Job([os.fsencode(one) for one in arguments], own, environment["PWD"]))
        given, out, err = (os.pipe() for _ in range(3))
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(TIMEOUT_S)
            line.connect(self._path)
            socket.send_fds(line, [job], [given[0], out[1], err[1]])
            line.shutdown(socket.SHUT_WR)
            for theirs in (given[0], out[1], err[1]):
                os.close(theirs)
            writing = threading.Thread(target=_write, args=(given[1], input.encode()), daemon=True)
            reading = [_Reading(end) for end in (out[0], err[0])]
            for thread in (writing, *reading):
                thread.start()
            code = int(line.recv(64))
            for thread in reading:
                thread.join(TIMEOUT_S)
        return subprocess.CompletedProcess(list(arguments), code, *(thread.text for thread in reading))


class _Reading(threading.Thread):
    def __init__(self, end: int) -> None:
        super().__init__(daemon=True)
        self._end = end
        self.text = ""

    def run(self) -> None:
        with os.fdopen(self._end, "rb") as stream:
            self.text = stream.read().decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def _write(end: int, data: bytes) -> None:
    try:
        with os.fdopen(end, "wb") as stream:
            stream.write(data)
    except BrokenPipeError:
        pass


def _serve(path: str) -> None:
    import talaria.cli

    for found in pkgutil.walk_packages(talaria.cli.__path__, "talaria.cli."):
        if ".screen" not in found.name:
            import_module(found.name)
    for name in (
        "net.client",
        "app.builtin_tools",
        "store.sqlite.store",
        "providers.http_provider",
        "tools.browser.browser_tools",
    ):
        import_module(f"talaria.{name}")
    gc.freeze()  # commands that collect garbage would copy all of it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen(64)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        threading.Thread(target=_end_with_parent, daemon=True).start()
        while True:
            line, _ = door.accept()
            if os.fork() == 0:
                door.close()
                _handle(line)
            line.close()


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def _handle(line: socket.socket) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, ends, _, _ = socket.recv_fds(line, _MAX_BYTES, 3)
    while piece := line.recv(_MAX_BYTES):
        data += piece
    child = os.fork()
    if child == 0:
        line.close()
        _become(msgspec.json.decode(data, type=Job), ends)
    for end in ends:
        os.close(end)
    _, status = os.waitpid(child, 0)
    line.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(job: Job, ends: Sequence[int]) -> NoReturn:
    for number, end in enumerate(ends):
        os.dup2(end, number)
        os.close(end)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8", "surrogateescape")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), "utf-8", "surrogateescape")
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)), "utf-8", "backslashreplace", line_buffering=True
    )
    os.environ.clear()
    os.environ.update({name: os.fsdecode(value) for name, value in job.environment.items()})
    os.chdir(job.folder)
    arguments = [os.fsdecode(one) for one in job.arguments]
    sys.argv = ["talaria", *arguments]
    code = 1
    try:
        code = import_module("talaria.cli.main").main(arguments)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:  # noqa: BLE001  (as the interpreter would)
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = 120
    os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])
