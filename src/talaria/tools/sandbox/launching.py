"""Starting a tool host with any command, and ending it for good."""

import asyncio
import json
import math
import os
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from talaria.core.aio import complete, in_thread, in_threads
from talaria.core.errors import ToolFailed
from talaria.tools.sandbox.base import SandboxLimits, SandboxPolicy
from talaria.tools.sandbox.channel import HostChannel
from talaria.tools.sandbox.host.frames import HELLO, frame
from talaria.tools.sandbox.resource_limits import enforce_limits
from talaria.tools.sandbox.toolchains import VARIABLES

PROGRAM = Path(__file__).parent / "host"
PACKAGE = "talaria/tools/sandbox/host"
"""Where the program is below a root from which it can be imported."""
SHELL = "/bin/bash"
START_S = 20.0
END_S = 8.0
LOST_S = 0.5
"""For a tool host that was lost or given up: it no longer ends by itself."""
NO_SUCH_PROGRAM = 127
MAX_SAID_BYTES = 2_000
USUAL_WEIGHT = 100
"""The weight for processor time where nobody has set another."""
_NICE_STEP = 1.25
"""One step of niceness divides a weight by this."""

_BOOT = "import sys; sys.path.insert(0, {root!r}); from talaria.tools.sandbox.host.{module} import main; main()"
_HELLO = frame(HELLO)[:9]
"""How the first frame of a tool host begins."""
_MAX_NOISE_BYTES = 1 << 16

ARRIVAL = "import sys; sent = sys.stdin.buffer; exec(sent.read(int(sent.readline())))"
"""For `python3 -c` where Talaria is not installed. Nothing else is sent until the tool host speaks, so it reads no more
than the program."""
FOLDER = "/tmp/.talaria-"  # noqa: S108  (over there)
_OF_THIS_MACHINE = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL"}) | VARIABLES
_NOT_SENT = frozenset({"__init__", "arrival", "program"})


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How to start a tool host."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    pass_fds: Sequence[int] = ()
    sent: bytes = b""
    """The program itself (`pack_host`), for its standard input. That and its output are then the channel; otherwise the
    channel's descriptor is appended to the command."""
    start_s: float = START_S
    explain: Callable[[str, int | None], str] | None = None
    """Why it did not start, from its error output and its exit code."""
    limits: SandboxLimits | None = None
    """For the tool host and all that it starts; None: they are enforced elsewhere."""
    prepare: Callable[[int], None] | None = None
    """Called with its pid once it has started, before its first command; not on the loop."""


def program_in(root: str, python: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The command for a tool host that can be imported from below a folder."""
    return (python, "-I", "-S", "-c", _BOOT.format(root=root, module="command_loop"), json.dumps(settings))


def program_starter(
    root: str, python: str, view: SandboxPolicy, argv: Sequence[str], cwd: str, **more: Any
) -> tuple[str, ...]:
    """The command for `host/program.py`, which can be imported from below a folder."""
    limits = {"CORE": 0, "FSIZE": view.limits.file_bytes}
    settings = {"argv": [*argv], "cwd": cwd, "limits": limits, **more}
    return (python, "-I", "-S", "-c", _BOOT.format(root=root, module="program"), json.dumps(settings))


def pack_host(view: SandboxPolicy, folder: str, **more: Any) -> bytes:
    """The tool host and its settings, for the standard input of `ARRIVAL`."""
    names = PACKAGE.split("/")
    sources = {".".join(names[: end + 1]): "" for end in range(len(names))}  # packages are empty
    for file in PROGRAM.glob("*.py"):
        if file.stem not in _NOT_SENT:
            sources[f"{'.'.join(names)}.{file.stem}"] = file.read_text("utf-8")
    arrival = (PROGRAM / "arrival.py").read_text("utf-8")
    code = f"{arrival}\n\narrive({sources!r}, {settings_for(view, folder, **more)!r})\n".encode()
    return b"%d\n%s" % (len(code), code)


def portable_environment(view: SandboxPolicy) -> dict[str, str]:
    """What commands on another machine get: the language, the time zone, the person's identity in git."""
    return {name: value for name, value in view.environment.items() if name not in _OF_THIS_MACHINE}


async def receive_listener(channel: socket.socket) -> socket.socket | None:
    """The socket that a program sends right before it begins; None: it did not get that far."""
    channel.setblocking(False)
    try:
        async with asyncio.timeout(START_S):
            await wait_readable(channel)
            _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    except (TimeoutError, OSError):
        return None
    return socket.socket(fileno=descriptors[0]) if descriptors else None


def settings_for(view: SandboxPolicy, folder: str, **more: Any) -> dict[str, Any]:
    """The settings of every tool host. `folder` is where it keeps the state of the shell."""
    return {
        "folder": folder,
        "cwd": str(view.project),
        "shell": SHELL,
        "limits": {"CORE": 0, "FSIZE": view.limits.file_bytes},
        "reserve_bytes": view.limits.reserve_bytes,
        **more,
    }


def limit_settings(limits: SandboxLimits) -> dict[str, Any]:
    """Settings for limits that a tool host on this machine enforces in case no control group does."""
    steps = round(math.log(USUAL_WEIGHT / limits.cpu_weight, _NICE_STEP))
    return {"memory_bytes": limits.memory_bytes, "niceness": min(19, steps)}


@asynccontextmanager
async def launch_host(launch: Launch) -> AsyncGenerator[HostChannel]:
    """On the loop's own thread: what dies with its parent dies with the thread that made it. Raises `ToolFailed`."""
    limits = launch.limits or SandboxLimits(processes=0, cpu_weight=0)
    limiting = enforce_limits(limits.processes, limits.memory_bytes, limits.cpu_weight)
    async with in_threads(limiting) as enforced:
        with ExitStack() as held:
            errors, erring = os.pipe()  # for standard error: it holds only so much, whatever writes to it
            for descriptor in (errors, erring):
                held.callback(os.close, descriptor)
            os.set_blocking(errors, False)
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            release = ours.close
            process, channel = None, None
            try:
                with theirs:
                    process = await _spawn(launch, theirs.fileno(), erring)
                received, listener = await _wait_for_greeting(launch, ours, process, errors)
                with listener or nullcontext():
                    if enforced.join is not None:
                        await in_thread(partial(enforced.join, process.pid))
                    if launch.prepare is not None:
                        await in_thread(partial(launch.prepare, process.pid))
                    made = HostChannel(received, listener, process.pid, enforced, launch.limits)
                    _, channel = await asyncio.get_running_loop().create_connection(lambda: made, sock=ours)
                    release = channel.close
                    yield channel
            finally:
                patience_s = LOST_S if channel is not None and not channel.is_alive else END_S
                release()
                if process is not None:
                    await complete(_end_process(process, patience_s))


async def _spawn(launch: Launch, theirs: int, erring: int) -> asyncio.subprocess.Process:
    channel = theirs if launch.sent else asyncio.subprocess.DEVNULL
    try:
        return await asyncio.create_subprocess_exec(  # if this is cancelled, it leaves nothing behind
            *(launch.argv if launch.sent else (*launch.argv, str(theirs))),
            env=launch.environment,
            cwd="/",
            stdin=channel,
            stdout=channel,
            stderr=erring,
            pass_fds=launch.pass_fds if launch.sent else (theirs, *launch.pass_fds),
            start_new_session=True,
        )
    except OSError as fault:
        raise not_started(launch.argv[0], fault) from fault


def not_started(program: str, fault: OSError) -> ToolFailed:
    reason = "it is not installed" if isinstance(fault, FileNotFoundError) else fault.strerror
    return ToolFailed(f"Commands cannot run: {program}: {reason}.")


async def _wait_for_greeting(
    launch: Launch, ours: socket.socket, process: asyncio.subprocess.Process, errors: int
) -> tuple[bytes, socket.socket | None]:
    """What the tool host says first, and the listening socket that may come with it."""
    received, descriptors = b"", list[int]()
    try:
        async with asyncio.timeout(launch.start_s):
            with suppress(ConnectionError):  # it has ended: that is noticed next
                await asyncio.get_running_loop().sock_sendall(ours, launch.sent)
            while _HELLO not in received and len(received) < _MAX_NOISE_BYTES:  # shells may print something before
                await wait_readable(ours)
                try:
                    chunk, passed, _, _ = socket.recv_fds(ours, 1 << 16, 1)
                except OSError:
                    break
                received += chunk
                descriptors += passed
                if not chunk:
                    break
    except TimeoutError:
        reason = f"the tool host did not start within {launch.start_s:.0f} seconds"
        raise ToolFailed(f"Commands cannot run: {reason}.") from None
    noise, hello, rest = received.partition(_HELLO)
    if hello:
        return hello + rest, socket.socket(fileno=descriptors[0]) if descriptors else None
    with suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            await process.wait()
    printed = noise[:MAX_SAID_BYTES]
    with suppress(BlockingIOError):
        printed = os.read(errors, MAX_SAID_BYTES)
    said, code = printed.decode("utf-8", "replace").strip(), process.returncode
    if launch.explain is not None:
        raise ToolFailed(f"Commands cannot run: {launch.explain(said, code)}")
    raise ToolFailed(f"Commands cannot run: the tool host did not start: {said or f'exit code {code}'}")


async def wait_readable(ours: socket.socket) -> None:
    """Not for a socket that a transport of the loop has."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(ours, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(ours)


async def _end_process(process: asyncio.subprocess.Process, patience_s: float) -> None:
    """When its channel closes, it ends with all that it has started; otherwise it is killed."""
    try:
        async with asyncio.timeout(patience_s):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
