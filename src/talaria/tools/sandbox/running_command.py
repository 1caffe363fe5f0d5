"""A command in a sandbox, from our side: what to run, where its output goes, how it ended."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Literal, Protocol

import msgspec

from talaria.core.aio import complete
from talaria.tools.sandbox.host.frames import INPUT, KILL, MAX_BYTES

MAX_OUTPUT_BYTES = 64 << 20
"""For one command; of anything beyond it, only the end is shown."""

KILL_S = 8.0

Reason = Literal["", "disk", "memory", "lost"]


class SandboxCommand(msgspec.Struct, frozen=True, kw_only=True):
    command: str = ""
    """For the shell."""
    program: tuple[str, ...] | None = None
    """Instead of a shell and its state."""
    cwd: str | None = None
    """None: where the last command ended."""
    is_kept: bool = True
    """Whether the next command begins with the environment, functions and folder that this one leaves behind."""
    has_input: bool = False
    size: tuple[int, int] | None = None
    """Of its terminal, in rows and columns; None: it has no terminal."""
    limit_bytes: int = MAX_OUTPUT_BYTES


class ExitStatus(msgspec.Struct, frozen=True):
    code: int
    why: Reason = ""
    """`disk`: we ended it because the disk is nearly full. `memory`: it or one of its processes was killed because the
    session used too much. `lost`: it ended together with its tool host."""
    cwd: str = ""
    """Where the next command would begin."""
    limit_bytes: int = 0
    """The memory limit for all commands of the session."""
    unreachable: tuple[str, ...] | None = None
    """What it tried to connect to that is not in the sandbox: `port NUMBER` of this machine, `socket PATH`, `host
    ADDRESS:PORT`. The tool host reports it, so it only informs. None: not known."""


LOST = ExitStatus(code=137, why="lost")


class OutputSink(Protocol):
    """Where the output of a command goes."""

    def add(self, chunk: bytes) -> None: ...
    def skip(self, size_bytes: int) -> None:
        """This much is left out here."""
        ...


class RunningCommand:
    def __init__(self, sink: OutputSink, send: Callable[[bytes, bytes], None], give_up: Callable[[], None]) -> None:
        """`send`: a frame of this kind to the tool host. `give_up`: ends the tool host, with all that it runs."""
        self.sink = sink
        self._send = send
        self._give_up = give_up
        self._limit: asyncio.Timeout | None = None
        self._end: asyncio.Future[ExitStatus] = asyncio.get_running_loop().create_future()

    def write(self, content: bytes) -> None:
        for start in range(0, len(content), MAX_BYTES):
            self._send(INPUT, content[start : start + MAX_BYTES])

    def close_input(self) -> None:
        self._send(INPUT, b"")

    async def wait_within(self, limit_s: float) -> ExitStatus | None:
        """None: it took longer and was stopped. Nothing of it is left, even if this is cancelled."""
        try:
            async with asyncio.timeout(limit_s) as self._limit:
                return await self.wait()
        except TimeoutError:
            return None
        finally:
            self._limit = None
            if self.end is None:
                await complete(self.kill())

    @contextmanager
    def pause_limit(self) -> Generator[None]:
        """Stop its clock while a person is asked about it."""
        limit = self._limit
        ends_at = limit.when() if limit is not None else None
        if limit is None or ends_at is None:  # it has none, or is paused already
            yield
            return
        now = asyncio.get_running_loop().time
        began_at = now()
        limit.reschedule(None)
        try:
            yield
        finally:
            if self._limit is limit and not limit.expired():
                limit.reschedule(ends_at + now() - began_at)

    async def kill(self) -> ExitStatus:
        """With all that it has started. A tool host that does not answer is given up: a command may have stopped it."""
        self._send(KILL, b"")
        try:
            async with asyncio.timeout(KILL_S):
                return await self.wait()
        except TimeoutError:
            self._give_up()
            return await self.wait()

    def finish(self, end: ExitStatus) -> None:
        if not self._end.done():
            self._end.set_result(end)

    def when_ended(self, tell: Callable[[ExitStatus], None]) -> None:
        self._end.add_done_callback(lambda ended: tell(ended.result()))

    @property
    def end(self) -> ExitStatus | None:
        return self._end.result() if self._end.done() else None

    async def wait(self) -> ExitStatus:
        return await asyncio.shield(self._end)
