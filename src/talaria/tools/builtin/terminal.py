"""Shell commands in the foreground. The whole process group ends with the call: by exit, timeout or interruption."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from talaria.model.errors import ToolFailed
from talaria.tools.base import EXCLUSIVE, INDEPENDENT, Effect, Run, Scope
from talaria.tools.function import tool
from talaria.tools.output import Output

MAX_TIMEOUT_S = 600
CHUNK_BYTES = 64 << 10
LEFTOVER_S = 0.5
PASSED_ON = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "TZ", "TMPDIR", "VIRTUAL_ENV"}
)
"""Environment a command sees, with LC_*: none of it is a secret."""


def _effect(arguments: Any, _: Scope) -> Effect:
    return INDEPENDENT if arguments.independent else EXCLUSIVE


def _question(arguments: Any) -> str:
    return f"Run this command?\n  {arguments.command}"


@tool(effect=_effect, question=_question, timeout_s=None)
async def terminal(
    command: Annotated[str, "The command, run by bash."],
    run: Run,
    timeout_s: Annotated[int, f"Seconds until it is stopped, at most {MAX_TIMEOUT_S}."] = 120,
    workdir: Annotated[str, "Where to run it; the session's working directory if left out."] = ".",
    independent: Annotated[bool, "True if it may run at the same time as its neighbours."] = False,  # noqa: ARG001
) -> str:
    """Run a shell command and wait for its end.

    Answers its output (stdout and stderr together) and exit code. Processes that it leaves behind are ended.
    """
    output = Output(run.spill("output"))
    limit = max(1, min(timeout_s, MAX_TIMEOUT_S))
    async with _started(command, run.scope.resolve(workdir), output) as process:
        try:
            async with asyncio.timeout(limit):
                code = await process.wait()
            ending = f"[exit code {code}]"
        except TimeoutError:
            ending = f"[stopped after {limit} seconds; it did not end by itself]"
    return f"{output.text()}\n{ending}".lstrip("\n")


@asynccontextmanager
async def _started(command: str, workdir: Path, output: Output) -> AsyncGenerator[asyncio.subprocess.Process]:
    """The running command, its output flowing into `output`; nothing of it is left running at the end.

    The pipe is ours, not the process's: so the end of the command is seen even if a child of it keeps the pipe open.
    """
    reading, writing = os.pipe()
    spawning = asyncio.create_task(_spawn(command, workdir, writing), name="terminal start")
    try:
        process = await _despite_interruption(spawning)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    pump = asyncio.create_task(_pump(reading, output), name="terminal output")
    try:
        yield process
    finally:
        await _end(process)
        await asyncio.wait([pump], timeout=LEFTOVER_S)  # a process that left the group may hold the pipe
        pump.cancel()
        await asyncio.gather(pump, return_exceptions=True)


async def _despite_interruption(spawning: asyncio.Task[asyncio.subprocess.Process]) -> asyncio.subprocess.Process:
    """An interruption waits for the start: asyncio itself would end the shell alone, not what it has started."""
    try:
        return await asyncio.shield(spawning)
    except asyncio.CancelledError:
        await asyncio.wait([spawning])
        if spawning.exception() is None:
            await _end(spawning.result())
        raise


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # also children that the command left behind
    await process.wait()


async def _spawn(command: str, workdir: Path, output: int) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            "/bin/bash",
            "-c",
            command,
            cwd=workdir,
            env={name: value for name, value in os.environ.items() if name in PASSED_ON or name.startswith("LC_")},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    except (OSError, ValueError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else fault
        raise ToolFailed(f"Cannot start the command in {workdir}: {reason}.") from fault


async def _pump(descriptor: int, output: Output) -> None:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            output.add(chunk)
    finally:
        transport.close()
