"""The transports to a server: a child process that speaks one JSON message per line, or HTTP with bounded bodies.

The protocol's errors do not say what went wrong, so each transport remembers it.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from contextvars import ContextVar
from http.client import BAD_REQUEST, responses
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from talaria.core.aio import complete, in_thread
from talaria.core.errors import ToolFailed
from talaria.tools.mcp import warden
from talaria.tools.mcp.offers import ServerUnavailable
from talaria.tools.mcp.sandboxing import ConfinedServer
from talaria.tools.mcp.server_entries import ServerEntry, make_environment
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
    """A transport as the `mcp` package expects it: entering it gives a stream to read and one to write.

    All processes of the server end with us (`warden`).
    """

    def __init__(self, entry: ServerEntry, environment: Mapping[str, str], confined: ConfinedServer | None) -> None:
        self._entry = entry
        self._confined = confined
        self._sandbox = AsyncExitStack()
        self._environment = make_environment(entry, environment)
        self._process: asyncio.subprocess.Process | None = None
        self._lifeline: int | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._keeping_errors: asyncio.Task[None] | None = None
        self._streams: list[Reading | Writing | _Incoming | _Outgoing] = []
        self._errors = bytearray()
        self._flood = ""

    @property
    def last_words(self) -> str:
        """Why it is gone, as far as that is known."""
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
            process = await self._spawn(plain)
        else:
            try:
                launched = await self._sandbox.enter_async_context(self._confined.launch(argv, self._environment))
            except ToolFailed as fault:
                reason = f"cannot start in the sandbox ({self._confined.setting}): {fault}"
                raise ServerUnavailable(reason, is_final=True) from fault
            process = await self._spawn(launched.launch)
            await self._sandbox.enter_async_context(launched.supervise(process.pid))
        incoming, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        writing, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        self._streams = [incoming, reading, writing, outgoing]
        for work in (self._read(process, incoming), self._write(process, outgoing)):
            self._tasks.append(asyncio.create_task(work, name=f"mcp process {process.pid}"))
        return reading, writing

    async def _stop(self) -> None:
        """Leaves nothing running. Its output is drained, since unread output would keep it from ending."""
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
            if process is not None and self._keeping_errors is not None:
                async with asyncio.timeout(CLOSE_S):
                    await asyncio.gather(process.wait(), _drain(process.stdout), self._keeping_errors)
        except TimeoutError:
            with suppress(ProcessLookupError):
                cast("asyncio.subprocess.Process", process).kill()
        finally:
            await self._sandbox.aclose()

    def _find_command(self) -> str:
        """Not in the project, where a command of the model may have put a program of that name."""
        entry, project = self._entry, Path.cwd()
        folders = filter(None, self._environment.get("PATH", os.defpath).split(os.pathsep))
        path = os.pathsep.join(one for one in folders if not Path(one).resolve().is_relative_to(project))
        command = Path(entry.command or "").expanduser()
        relative = Path(entry.cwd) / command if entry.cwd and len(command.parts) > 1 else command
        found = shutil.which(relative, path=path)
        if found is None:
            raise ServerUnavailable(f"cannot start: there is no command {entry.command!r}", is_final=True)
        return str(Path(found).absolute())

    async def _spawn(self, launch: ProgramLaunch) -> asyncio.subprocess.Process:
        lifeline, self._lifeline = os.pipe()
        try:
            process = self._process = await asyncio.create_subprocess_exec(
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
            raise ServerUnavailable(f"cannot start: {reason}", is_final=True) from fault
        finally:
            os.close(lifeline)
        self._keeping_errors = asyncio.create_task(self._keep_errors(process), name=f"mcp errors of {process.pid}")
        return process

    async def _read(self, process: asyncio.subprocess.Process, incoming: _Incoming) -> None:
        stdout = cast("asyncio.StreamReader", process.stdout)
        kept = bytearray()
        async with incoming:
            while chunk := await stdout.read(CHUNK_BYTES):
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    kept += line
                    try:
                        message = jsonrpc_message_adapter.validate_json(bytes(kept), by_name=False)
                    except ValueError:  # some servers greet their terminal
                        message = None
                    kept.clear()
                    if message is not None:
                        with suppress(anyio.BrokenResourceError):
                            await incoming.send(SessionMessage(message))
                kept += rest
                if len(kept) > MAX_LINE_BYTES:
                    self._flood = f"sent a message longer than {MAX_LINE_BYTES >> 20} MB"
                    return
                await asyncio.sleep(0)  # a flood of lines that are not messages must not block the loop

    async def _write(self, process: asyncio.subprocess.Process, outgoing: _Outgoing) -> None:
        stdin = cast("asyncio.StreamWriter", process.stdin)
        with suppress(OSError):
            async with outgoing:
                async for item in outgoing:
                    stdin.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                    await stdin.drain()

    async def _keep_errors(self, process: asyncio.subprocess.Process) -> None:
        """Only the end of its standard error is kept."""
        stderr = cast("asyncio.StreamReader", process.stderr)
        while chunk := await stderr.read(CHUNK_BYTES):
            self._errors[:] = (self._errors + chunk)[-TAIL_BYTES:]


async def _drain(stream: asyncio.StreamReader | None) -> None:
    while await cast("asyncio.StreamReader", stream).read(CHUNK_BYTES):
        pass


MAX_BODY_BYTES = 8 << 20
IDLE_S = 300.0
NO_SUCH_PLACE = frozenset({400, 404, 405, 406})
"""Answers to the newer transport by a server that speaks only the older one, server-sent events."""


class RequestProgress:
    """How far the requests of one call got."""

    def __init__(self) -> None:
        self.is_unreached = False
        """The last one did not reach the server."""
        self.has_arrived = False
        """One of them did, or may have."""
        self.status: int | None = None
        """Of the last answer, if it was a refusal."""

    @property
    def never_arrived(self) -> bool:
        return self.is_unreached and not self.has_arrived

    def describe(self) -> str:
        """What went wrong, if anything; continues a sentence that begins with the server."""
        if self.is_unreached:
            return "cannot be reached"
        if self.status is None:
            return ""
        return f"answered {self.status} {responses.get(self.status, '')}".strip()


PROGRESS: ContextVar[RequestProgress | None] = ContextVar("progress", default=None)
"""Of the call that this task is making: the package sends each message in its sender's context."""


class McpHttpClient(httpx2.AsyncClient):
    """Notes the progress of its last message and of each call."""

    last = RequestProgress()

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        noted = [self.last] if request.method == "POST" else []
        call = PROGRESS.get()
        noted += [call] if call is not None else []
        try:
            response = await super().send(request, **options)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError):
            for progress in noted:
                progress.is_unreached = True
            raise
        except BaseException:
            for progress in noted:
                progress.has_arrived = True
            raise
        for progress in noted:
            progress.is_unreached, progress.has_arrived = False, True
            progress.status = response.status_code if response.status_code >= BAD_REQUEST else None
        response.headers.pop("content-encoding", None)  # we ask for none: a small body must not unpack into a huge one
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _Bounded(cast("httpx2.AsyncByteStream", response.stream))
        return response

    @property
    def last_words(self) -> str:
        return self.last.describe()


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._inner:
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                raise httpx2.ReadError(f"a body longer than {MAX_BODY_BYTES >> 20} MB")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


def make_client(entry: ServerEntry) -> McpHttpClient:
    headers = {name: value.reveal() for name, value in entry.headers.items()}
    limits = httpx2.Timeout(entry.connect_timeout, read=max(IDLE_S, entry.timeout))
    client = McpHttpClient(headers={**headers, "accept-encoding": "identity"}, timeout=limits)
    client.last = RequestProgress()
    return client


def streamable(entry: ServerEntry, client: McpHttpClient) -> AbstractAsyncContextManager[Any]:
    return streamable_http_client(entry.url or "", http_client=client, max_sse_event_size=MAX_BODY_BYTES)


def event_stream(entry: ServerEntry, client: McpHttpClient) -> AbstractAsyncContextManager[Any]:
    """The older transport. It opens and closes the client itself."""

    def ready_made(headers: object = None, timeout: object = None, auth: object = None) -> McpHttpClient:  # noqa: ARG001
        return client

    return sse_client(entry.url or "", httpx_client_factory=ready_made)
