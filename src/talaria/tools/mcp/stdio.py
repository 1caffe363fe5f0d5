"""A server as a child process: one JSON message per line, in and out. All of it ends with us (`warden`)."""

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import cast

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from talaria.core.aio import complete, in_thread
from talaria.core.errors import ToolFailed
from talaria.tools.mcp import warden
from talaria.tools.mcp.peer import Away
from talaria.tools.mcp.sandboxing import ConfinedServer
from talaria.tools.mcp.server_entries import ServerEntry, surroundings
from talaria.tools.sandbox.base import ProgramLaunch

MAX_LINE_BYTES = 8 << 20
CHUNK_BYTES = 1 << 16
TAIL_BYTES = 2_000
CLOSE_S = warden.LONGEST_S + 1

_SOURCE = str(Path(__file__).parents[3])
_WARDEN = f"import sys; sys.path.insert(0, {_SOURCE!r}); from talaria.tools.mcp.warden import main; main()"

Reading = MemoryObjectReceiveStream[SessionMessage | Exception]
Writing = MemoryObjectSendStream[SessionMessage]
_Incoming = MemoryObjectSendStream[SessionMessage | Exception]
_Outgoing = MemoryObjectReceiveStream[SessionMessage]


class StdioTransport:
    """A transport as the `mcp` package wants it: entered, it is a stream to read and one to write."""

    def __init__(
        self, entry: ServerEntry, environment: Mapping[str, str], confined: ConfinedServer | None = None
    ) -> None:
        self._entry = entry
        self._confined = confined
        self._sandbox = AsyncExitStack()
        self._environment = surroundings(entry, environment)
        self._process: asyncio.subprocess.Process | None = None
        self._lifeline: int | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._streams: list[Reading | Writing | _Incoming | _Outgoing] = []
        self._errors = bytearray()
        self._flood = ""

    @property
    def last_words(self) -> str:
        """Why it is gone, as far as one can tell."""
        if self._flood:
            return self._flood
        code = self._process.returncode if self._process else None
        said = bytes(self._errors).decode("utf-8", "replace").strip().splitlines()
        about = f": {said[-1].strip()}" if said else ""
        return f"ended{'' if code is None else f' with exit code {code}'}{about}"

    async def __aenter__(self) -> tuple[Reading, Writing]:
        try:
            return await complete(self._start())
        except BaseException:
            await complete(self._stop())
            raise

    async def __aexit__(self, *_: object) -> None:
        await complete(self._stop())

    async def _start(self) -> tuple[Reading, Writing]:
        command = await in_thread(self._find_command)
        argv = (command, *map(str, self._entry.args))
        if self._confined is None:
            plain = ProgramLaunch(argv=argv, environment=self._environment, cwd=self._entry.cwd or "")
            process = self._process = await self._spawn(plain)
        else:
            try:
                launched = await self._sandbox.enter_async_context(self._confined.launch(argv, self._environment))
            except ToolFailed as fault:
                raise Away(f"cannot start in the sandbox ({self._confined.setting}): {fault}", is_final=True) from fault
            process = self._process = await self._spawn(launched.launch)
            await self._sandbox.enter_async_context(launched.supervise(process.pid))
        incoming, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        writing, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        self._streams = [incoming, reading, writing, outgoing]
        for work in (self._read(process, incoming), self._write(process, outgoing), self._hear(process)):
            self._tasks.append(asyncio.create_task(work, name=f"mcp process {process.pid}"))
        return reading, writing

    async def _stop(self) -> None:
        """Nothing of it is left running. Output that nobody reads any more would keep it from ending."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stream in self._streams:
            stream.close()
        process = self._process
        if process is not None and process.stdin is not None:
            process.stdin.close()
        if self._lifeline is not None:
            os.close(self._lifeline)
        try:
            if process is not None:
                async with asyncio.timeout(CLOSE_S):
                    await asyncio.gather(process.wait(), _drain(process.stdout), _drain(process.stderr))
        except TimeoutError:
            with suppress(ProcessLookupError):
                cast("asyncio.subprocess.Process", process).kill()
        finally:
            await self._sandbox.aclose()

    def _find_command(self) -> str:
        entry = self._entry
        command = Path(entry.command or "").expanduser()
        path = _outside(Path.cwd(), self._environment.get("PATH", os.defpath))
        relative = Path(entry.cwd) / command if entry.cwd and len(command.parts) > 1 else command
        found = shutil.which(relative, path=path)
        if found is None:
            raise Away(f"cannot start: there is no command {entry.command!r}", is_final=True)
        return str(Path(found).absolute())

    async def _spawn(self, launch: ProgramLaunch) -> asyncio.subprocess.Process:
        lifeline, self._lifeline = os.pipe()
        try:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-c", _WARDEN, str(lifeline), *launch.argv),
                env=launch.environment,
                cwd=launch.cwd or None,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(lifeline, *launch.pass_fds),
                start_new_session=True,
            )
        except (OSError, ValueError) as fault:
            reason = fault.strerror if isinstance(fault, OSError) else fault
            raise Away(f"cannot start: {reason}", is_final=True) from fault
        finally:
            os.close(lifeline)

    async def _read(self, process: asyncio.subprocess.Process, incoming: _Incoming) -> None:
        stdout = cast("asyncio.StreamReader", process.stdout)
        kept = bytearray()
        async with incoming:
            while chunk := await stdout.read(CHUNK_BYTES):
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    kept += line
                    await _deliver(bytes(kept), incoming)
                    kept.clear()
                kept += rest
                if len(kept) > MAX_LINE_BYTES:
                    self._flood = f"sent a message longer than {MAX_LINE_BYTES >> 20} MB"
                    return
                await asyncio.sleep(0)  # a flood of lines that nobody reads must not hold the loop

    async def _write(self, process: asyncio.subprocess.Process, outgoing: _Outgoing) -> None:
        stdin = cast("asyncio.StreamWriter", process.stdin)
        with suppress(OSError):
            async with outgoing:
                async for item in outgoing:
                    stdin.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                    await stdin.drain()

    async def _hear(self, process: asyncio.subprocess.Process) -> None:
        """What it says beside the protocol: only the last of it is kept."""
        stderr = cast("asyncio.StreamReader", process.stderr)
        while chunk := await stderr.read(CHUNK_BYTES):
            self._errors[:] = (self._errors + chunk)[-TAIL_BYTES:]


def _outside(project: Path, path: str) -> str:
    """Where programs are looked for: not in the project, where a command of the model may have put one of that name."""
    folders = (folder for folder in path.split(os.pathsep) if folder)
    return os.pathsep.join(folder for folder in folders if not Path(folder).resolve().is_relative_to(project))


async def _deliver(line: bytes, incoming: _Incoming) -> None:
    """What is no message is passed over: some servers greet their terminal."""
    try:
        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return
    with suppress(anyio.BrokenResourceError):
        await incoming.send(SessionMessage(message))


async def _drain(stream: asyncio.StreamReader | None) -> None:
    while await cast("asyncio.StreamReader", stream).read(CHUNK_BYTES):
        pass
