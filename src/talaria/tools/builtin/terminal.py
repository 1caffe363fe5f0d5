"""Shell commands in the foreground. The whole process group ends with the call: by exit, timeout or interruption."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

from talaria.model.errors import ToolFailed
from talaria.tools.base import EXCLUSIVE, INDEPENDENT, Effect, Run, Scope
from talaria.tools.function import tool
from talaria.tools.output import Output
from talaria.waiting import completed

MAX_TIMEOUT_S = 600
LEFTOVER_S = 0.5
PASSED_ON = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "TZ", "TMPDIR", "VIRTUAL_ENV"}
)
"""Environment a command sees, with LC_*: none of it is a secret."""


def _effect(arguments: Any, _: Scope) -> Effect:
    return INDEPENDENT if arguments.independent else EXCLUSIVE


def _question(arguments: Any) -> str:
    shown = arguments.command.replace("\n", "\n  ")  # every line of it set in: none can pass for ours
    return f"Run this command?\n  {shown}"


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
    """The running command, its output flowing into `output`; nothing of it is left running at the end."""
    async with AsyncExitStack() as ending:
        # An interruption waits for the start: asyncio itself would end the shell alone, not what it has started.
        process = await completed(_start(command, workdir, output, ending))
        if isinstance(process, ToolFailed):
            raise process
        yield process


async def _start(
    command: str, workdir: Path, output: Output, ending: AsyncExitStack
) -> asyncio.subprocess.Process | ToolFailed:
    """`ending` ends what was begun here. A failure is returned: raised, it would take the place of an interruption.

    The pipe is ours, not the process's: so the end of the command is seen even if a child of it keeps the pipe open.
    """
    reading, writing = os.pipe()
    try:
        pipe, collecting = await asyncio.get_running_loop().connect_read_pipe(
            lambda: _Collecting(output), os.fdopen(reading, "rb", 0)
        )
        ending.callback(pipe.close)
        process = await _spawn(command, workdir, writing)
    except (OSError, ValueError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else fault
        return ToolFailed(f"Cannot start the command in {workdir}: {reason}.")
    finally:
        os.close(writing)
    ending.push_async_callback(_end, process, collecting.ended)
    return process


class _Collecting(asyncio.Protocol):
    def __init__(self, output: Output) -> None:
        self._output = output
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self._output.add(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.ended.set_result(None)


async def _end(process: asyncio.subprocess.Process, output_ended: asyncio.Future[None]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # also children that the command left behind
    await process.wait()
    await asyncio.wait([output_ended], timeout=LEFTOVER_S)  # a process that left the group may hold the pipe


async def _spawn(command: str, workdir: Path, output: int) -> asyncio.subprocess.Process:
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
