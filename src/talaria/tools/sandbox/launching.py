"""Starting a tool host behind a command of any kind, and ending it for good."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Self

import msgspec

from talaria.model.errors import ToolFailed
from talaria.tools.sandbox.base import View
from talaria.tools.sandbox.channel import Channel
from talaria.tools.sandbox.commands import Command, Sink, Started
from talaria.tools.sandbox.host.frames import HELLO, frame
from talaria.tools.sandbox.pids import ProcessLimit, process_limit
from talaria.waiting import completed, in_thread

PROGRAM = Path(__file__).parent / "host"
PACKAGE = "talaria/tools/sandbox/host"
"""Where the program lies below a root from which it can be imported."""
SHELL = "/bin/bash"
START_S = 20.0
END_S = 8.0
LOST_S = 0.5
"""For one that was lost or given up: it does not end by itself any more."""
MAX_SAID_BYTES = 2_000

_BOOT = "import sys; sys.path.insert(0, {root!r}); from talaria.tools.sandbox.host.loop import main; main()"
_HELLO = frame(HELLO)[:9]
"""How the first frame of a tool host begins."""
_MAX_NOISE_BYTES = 1 << 16


def _explained(said: str, code: int | None) -> str:
    return f"the tool host did not start: {said or f'exit code {code}'}"


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How to start a tool host."""

    before: Sequence[str] = ()
    """What stands in front of the interpreter."""
    python: str = ""
    root: str = ""
    """The program can be imported from there."""
    settings: Mapping[str, Any] = {}
    environment: Mapping[str, str]
    pass_fds: Sequence[int] = ()
    sent: bytes = b""
    """The program itself (delivery.py), for its standard input. That and its output are the channel then, and `before`
    is the whole command."""
    start_s: float = START_S
    explain: Callable[[str, int | None], str] = _explained
    """Why it did not start, from what was said meanwhile and the exit code."""
    max_processes: int | None = None
    """Together with all that it starts; None: somebody else sees to that."""

    def argv(self, descriptor: int) -> tuple[str, ...]:
        if self.sent:
            return (*self.before,)
        settings = json.dumps({**self.settings, "channel": (descriptor, descriptor)})
        return (*self.before, self.python, "-I", "-S", "-c", _BOOT.format(root=self.root), settings)


def settings_for(view: View, folder: str, **more: Any) -> dict[str, Any]:
    """What every tool host is told. `folder` is where it keeps the state of the shell."""
    return {
        "folder": folder,
        "cwd": str(view.project),
        "shell": SHELL,
        "limits": {"CORE": 0, "FSIZE": view.limits.file_bytes},
        "reserve_bytes": view.limits.reserve_bytes,
        "unwanted": [str(path) for path in view.unwanted],
        **more,
    }


class LaunchedHost:
    def __init__(self, channel: Channel, listener: socket.socket | None) -> None:
        self._channel = channel
        self.listener = listener
        """For a proxy: it listens where the commands are."""

    @property
    def is_alive(self) -> bool:
        return self._channel.is_open

    def start(self, command: Command, sink: Sink) -> Started:
        return self._channel.start(command, sink)


class _Errors:
    """What is said on standard error: a pipe, so that it takes only so much, whoever writes to it."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()
        os.set_blocking(self._reading, False)

    def read(self) -> bytes:
        with suppress(BlockingIOError):
            return os.read(self._reading, MAX_SAID_BYTES)
        return b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._reading)
        os.close(self.writing)


@asynccontextmanager
async def launched(launch: Launch) -> AsyncGenerator[LaunchedHost]:
    """From the loop's own thread: what dies with its parent dies with the thread that made it. Raises `ToolFailed`."""
    async with _limited(launch.max_processes) as limit, _opened(launch, limit) as host:
        yield host


@asynccontextmanager
async def _limited(most: int | None) -> AsyncGenerator[ProcessLimit | None]:
    if most is None:
        yield None
        return
    with ExitStack() as making:
        limit = await completed(in_thread(lambda: making.enter_context(process_limit(most))))
        removing = making.pop_all()
    try:
        yield limit
    finally:
        await completed(in_thread(removing.close))


@asynccontextmanager
async def _opened(launch: Launch, limit: ProcessLimit | None) -> AsyncGenerator[LaunchedHost]:
    with ExitStack() as held:
        errors = held.enter_context(_Errors())
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        let_go = ours.close
        process, channel = None, None
        try:
            with theirs:
                process = await _spawned(launch, theirs.fileno(), errors)
            received, listener = await _greeted(launch, ours, process, errors)
            with listener or nullcontext():
                if limit is not None:
                    pid = process.pid
                    await in_thread(lambda: limit.join(pid))
                _, channel = await asyncio.get_running_loop().create_connection(lambda: Channel(received), sock=ours)
                let_go = channel.close
                yield LaunchedHost(channel, listener)
        finally:
            patience_s = LOST_S if channel is not None and not channel.is_open else END_S
            let_go()
            if process is not None:
                await completed(_ended(process, patience_s))


async def _spawned(launch: Launch, theirs: int, errors: _Errors) -> asyncio.subprocess.Process:
    channel = theirs if launch.sent else asyncio.subprocess.DEVNULL
    argv = launch.argv(theirs)
    try:
        return await asyncio.create_subprocess_exec(  # cancelled meanwhile, it leaves nothing behind
            *argv,
            env=launch.environment,
            cwd="/",
            stdin=channel,
            stdout=channel,
            stderr=errors.writing,
            pass_fds=launch.pass_fds if launch.sent else (theirs, *launch.pass_fds),
            start_new_session=True,
        )
    except OSError as fault:
        raise not_started(argv[0], fault) from fault


def not_started(program: str, fault: OSError) -> ToolFailed:
    reason = "it is not installed" if isinstance(fault, FileNotFoundError) else fault.strerror
    return ToolFailed(f"Commands cannot run: {program}: {reason}.")


async def _greeted(
    launch: Launch, ours: socket.socket, process: asyncio.subprocess.Process, errors: _Errors
) -> tuple[bytes, socket.socket | None]:
    """The first that the tool host says, and the listening socket that may come with it."""
    try:
        async with asyncio.timeout(launch.start_s):
            with suppress(ConnectionError):  # it has ended: that is seen next
                await asyncio.get_running_loop().sock_sendall(ours, launch.sent)
            received, descriptors = await _heard(ours)
    except TimeoutError:
        reason = f"the tool host did not start within {launch.start_s:.0f} seconds"
        raise ToolFailed(f"Commands cannot run: {reason}.") from None
    noise, hello, rest = received.partition(_HELLO)
    if not hello:
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await process.wait()
        said = (errors.read() or noise[:MAX_SAID_BYTES]).decode("utf-8", "replace").strip()
        raise ToolFailed(f"Commands cannot run: {launch.explain(said, process.returncode)}")
    return hello + rest, socket.socket(fileno=descriptors[0]) if descriptors else None


async def _heard(ours: socket.socket) -> tuple[bytes, list[int]]:
    """All until the tool host has spoken, with what shells say before it; less, if it never does."""
    received, descriptors = b"", list[int]()
    while _HELLO not in received and len(received) < _MAX_NOISE_BYTES:
        await _readable(ours)
        try:
            chunk, passed, _, _ = socket.recv_fds(ours, 1 << 16, 1)
        except OSError:
            break
        received += chunk
        descriptors += passed
        if not chunk:
            break
    return received, descriptors


async def _readable(ours: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(ours, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(ours)


async def _ended(process: asyncio.subprocess.Process, patience_s: float) -> None:
    """It ends all that it has started when its channel closes; if not, it is made to."""
    try:
        async with asyncio.timeout(patience_s):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
