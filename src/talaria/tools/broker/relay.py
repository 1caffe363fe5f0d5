"""Programs outside the sandbox that are joined to one inside: its input goes out, their output comes back in frames."""

import asyncio
import os
import signal
import struct
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from talaria.core.aio import complete

CHUNK_BYTES = 64 << 10
END_S = 5.0
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class RelayOutput:
    """What a program in the sandbox receives: pieces of output, then the exit status."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def send(self, kind: bytes, content: bytes) -> None:
        self._writer.write(kind + struct.pack(">I", len(content)) + content)
        await self._writer.drain()

    async def fail(self, sentence: str) -> None:
        with suppress(OSError):
            await self.send(b"e", f"talaria: {sentence}\n".encode("utf-8", "replace"))
            await self.end(1)

    async def end(self, code: int) -> None:
        await self.send(b"x", str(code).encode())


async def close_writer(writer: asyncio.StreamWriter) -> None:
    """The other side has `END_S` to read the rest."""
    writer.close()
    try:
        async with asyncio.timeout(END_S):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        writer.transport.abort()


async def run_joined(
    words: Sequence[str],
    environment: Mapping[str, str],
    answer: RelayOutput,
    pass_in: Callable[[asyncio.subprocess.Process], Awaitable[None]],
) -> int:
    """Run a program outside, joined to one in the sandbox. Returns its exit status; nothing of it is left afterwards.
    Raises `OSError`, and what `pass_in` raises."""
    process = await _start(words, environment)

    async def pass_out(kind: bytes, stream: asyncio.StreamReader | None) -> None:
        while stream is not None and (chunk := await stream.read(CHUNK_BYTES)):
            await answer.send(kind, chunk)

    async def pass_all_out() -> None:
        await asyncio.gather(pass_out(b"o", process.stdout), pass_out(b"e", process.stderr))

    passing = asyncio.ensure_future(pass_in(process))
    output = asyncio.ensure_future(pass_all_out())
    try:
        await asyncio.wait([passing, output], return_when=asyncio.FIRST_COMPLETED)
        if passing.done():
            passing.result()
        await output
        return await process.wait()
    finally:
        passing.cancel()
        output.cancel()
        await complete(asyncio.wait([passing, output]))
        await complete(_end(process))


async def run_program(
    words: Sequence[str], text: bytes, environment: Mapping[str, str], limit_s: float, errors_to: int = PIPE
) -> tuple[int | None, bytes, bytes]:
    """Run a program outside, with a text on its standard input. Returns its exit status, output and errors. Raises
    `OSError`, or `TimeoutError`. `errors_to`: `DEVNULL` if it may leave a process behind that keeps them open."""
    process = await _start(words, environment, errors_to)
    try:
        async with asyncio.timeout(limit_s):
            output, errors = await process.communicate(text)
    finally:
        await complete(_end(process))
    return process.returncode, output, errors or b""


async def _start(
    words: Sequence[str], environment: Mapping[str, str], errors_to: int = PIPE
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *words,
        stdin=PIPE,
        stdout=PIPE,
        stderr=errors_to,
        cwd="/",
        env=environment,
        start_new_session=True,
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await process.wait()
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def copy_input(reader: asyncio.StreamReader, process: asyncio.subprocess.Process) -> None:
    while chunk := await reader.read(CHUNK_BYTES):
        await write_input(process, chunk)
    if process.stdin is not None:
        process.stdin.close()


async def write_input(process: asyncio.subprocess.Process, content: bytes) -> None:
    if process.stdin is not None:
        with suppress(ConnectionError):  # it has ended, and says why itself
            process.stdin.write(content)
            await process.stdin.drain()
