"""Starting a tool host behind a command of any kind, and ending it for good."""

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
from talaria.tools.sandbox.resource_limits import Enforced, enforce_limits

PROGRAM = Path(__file__).parent / "host"
PACKAGE = "talaria/tools/sandbox/host"
"""Where the program lies below a root from which it can be imported."""
SHELL = "/bin/bash"
START_S = 20.0
END_S = 8.0
LOST_S = 0.5
"""For one that was lost or given up: it does not end by itself any more."""
MAX_SAID_BYTES = 2_000
USUAL_WEIGHT = 100
"""Of processor time, where nobody has set another."""
_NICE_STEP = 1.25
"""By so much one step of niceness lessens a weight."""

_BOOT = "import sys; sys.path.insert(0, {root!r}); from talaria.tools.sandbox.host.command_loop import main; main()"
_PROGRAM = "import sys; sys.path.insert(0, {root!r}); from talaria.tools.sandbox.host.program import main; main()"
_HELLO = frame(HELLO)[:9]
"""How the first frame of a tool host begins."""
_MAX_NOISE_BYTES = 1 << 16


def _explain(said: str, code: int | None) -> str:
    return f"the tool host did not start: {said or f'exit code {code}'}"


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How to start a tool host."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    pass_fds: Sequence[int] = ()
    sent: bytes = b""
    """The program itself (delivery.py), for its standard input. That and its output are the channel then; else the
    channel's descriptor stands behind the command."""
    start_s: float = START_S
    explain: Callable[[str, int | None], str] = _explain
    """Why it did not start, from what was said meanwhile and the exit code."""
    limits: SandboxLimits | None = None
    """Together with all that it starts; None: somebody else sees to that."""
    prepare: Callable[[int], None] | None = None
    """Called with its process once it has begun, before its first command; not on the loop."""


def program_in(root: str, python: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The command for a tool host that can be imported from below a folder."""
    return (python, "-I", "-S", "-c", _BOOT.format(root=root), json.dumps(settings))


def program_starter(
    root: str, python: str, view: SandboxPolicy, argv: Sequence[str], cwd: str, **more: Any
) -> tuple[str, ...]:
    """The command for `host/program.py`, which can be imported from below a folder."""
    limits = {"CORE": 0, "FSIZE": view.limits.file_bytes}
    settings = {"argv": [*argv], "cwd": cwd, "limits": limits, **more}
    return (python, "-I", "-S", "-c", _PROGRAM.format(root=root), json.dumps(settings))


async def receive_listener(channel: socket.socket) -> socket.socket | None:
    """What a program sends right before it begins; None: it did not get that far."""
    channel.setblocking(False)
    try:
        async with asyncio.timeout(START_S):
            await _readable(channel)
            _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    except (TimeoutError, OSError):
        return None
    return socket.socket(fileno=descriptors[0]) if descriptors else None


def settings_for(view: SandboxPolicy, folder: str, **more: Any) -> dict[str, Any]:
    """What every tool host is told. `folder` is where it keeps the state of the shell."""
    return {
        "folder": folder,
        "cwd": str(view.project),
        "shell": SHELL,
        "limits": {"CORE": 0, "FSIZE": view.limits.file_bytes},
        "reserve_bytes": view.limits.reserve_bytes,
        **more,
    }


def measures(limits: SandboxLimits) -> dict[str, Any]:
    """What a tool host on this machine is told of limits that no control group may hold."""
    steps = round(math.log(USUAL_WEIGHT / limits.cpu_weight, _NICE_STEP))
    return {"memory_bytes": limits.memory_bytes, "niceness": min(19, steps)}


@asynccontextmanager
async def launch_host(launch: Launch) -> AsyncGenerator[HostChannel]:
    """From the loop's own thread: what dies with its parent dies with the thread that made it. Raises `ToolFailed`."""
    limits = launch.limits or SandboxLimits(processes=0, cpu_weight=0)
    limiting = enforce_limits(limits.processes, limits.memory_bytes, limits.cpu_weight)
    async with in_threads(limiting) as enforcing, _open_host(launch, enforcing) as host:
        yield host


@asynccontextmanager
async def _open_host(launch: Launch, enforcing: Enforced) -> AsyncGenerator[HostChannel]:
    with ExitStack() as held:
        errors, erring = os.pipe()  # what is said on standard error: it takes only so much, whoever writes to it
        for descriptor in (errors, erring):
            held.callback(os.close, descriptor)
        os.set_blocking(errors, False)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        let_go = ours.close
        process, channel = None, None
        try:
            with theirs:
                process = await _spawn(launch, theirs.fileno(), erring)
            received, listener = await _wait_for_greeting(launch, ours, process, errors)
            with listener or nullcontext():
                if enforcing.join is not None:
                    await in_thread(partial(enforcing.join, process.pid))
                if launch.prepare is not None:
                    await in_thread(partial(launch.prepare, process.pid))
                made = HostChannel(received, listener, process.pid, enforcing, launch.limits)
                _, channel = await asyncio.get_running_loop().create_connection(lambda: made, sock=ours)
                let_go = channel.close
                yield channel
        finally:
            patience_s = LOST_S if channel is not None and not channel.is_alive else END_S
            let_go()
            if process is not None:
                await complete(_end_process(process, patience_s))


async def _spawn(launch: Launch, theirs: int, erring: int) -> asyncio.subprocess.Process:
    channel = theirs if launch.sent else asyncio.subprocess.DEVNULL
    try:
        return await asyncio.create_subprocess_exec(  # cancelled meanwhile, it leaves nothing behind
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
    """The first that the tool host says, and the listening socket that may come with it."""
    try:
        async with asyncio.timeout(launch.start_s):
            with suppress(ConnectionError):  # it has ended: that is seen next
                await asyncio.get_running_loop().sock_sendall(ours, launch.sent)
            received, descriptors = await _read_greeting(ours)
    except TimeoutError:
        reason = f"the tool host did not start within {launch.start_s:.0f} seconds"
        raise ToolFailed(f"Commands cannot run: {reason}.") from None
    noise, hello, rest = received.partition(_HELLO)
    if not hello:
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await process.wait()
        told = noise[:MAX_SAID_BYTES]
        with suppress(BlockingIOError):
            told = os.read(errors, MAX_SAID_BYTES)
        said = told.decode("utf-8", "replace").strip()
        raise ToolFailed(f"Commands cannot run: {launch.explain(said, process.returncode)}")
    return hello + rest, socket.socket(fileno=descriptors[0]) if descriptors else None


async def _read_greeting(ours: socket.socket) -> tuple[bytes, list[int]]:
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


async def _end_process(process: asyncio.subprocess.Process, patience_s: float) -> None:
    """It ends all that it has started when its channel closes; if not, it is made to."""
    try:
        async with asyncio.timeout(patience_s):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
