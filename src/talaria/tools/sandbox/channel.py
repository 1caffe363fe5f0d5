"""The way to a tool host. What comes from there may be a command's doing: it is data, and of limited size."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from socket import socket
from types import MappingProxyType

import msgspec

from talaria.tools.sandbox.base import Guarded, SandboxLimits
from talaria.tools.sandbox.host.frames import ENDED, OUTPUT, SKIPPED, START, BrokenStream, Frames, frame
from talaria.tools.sandbox.resource_limits import Enforced
from talaria.tools.sandbox.running_command import LOST, ExitStatus, OutputSink, RunningCommand, SandboxCommand

_encode = msgspec.json.Encoder().encode
_decode_end = msgspec.json.Decoder(ExitStatus).decode


NO_MOUNTS = "this level has no mounts"
MAX_UNREACHABLE = 32
MAX_UNREACHABLE_CHARS = 300


class HostChannel(asyncio.Protocol):
    """Also the `Host` at its other end."""

    def __init__(
        self, received: bytes, listener: socket | None, pid: int, enforced: Enforced, limits: SandboxLimits | None
    ) -> None:
        """`received` came before the channel was opened. `pid`: of the process that was started on this side."""
        self.listener = listener
        self.pid = pid
        self.is_alive = True
        self._received = received
        self._frames = Frames()
        self._numbers = count(1)
        self._commands: dict[int, RunningCommand] = {}
        self._enforced = enforced
        self._memory_bytes = limits.memory_bytes if limits else 0
        self._out_of_memory = 0
        """How many processes the kernel had ended for that when it was last looked."""
        self._transport: asyncio.Transport

    def start(self, command: SandboxCommand, sink: OutputSink) -> RunningCommand:
        number = next(self._numbers)
        started = RunningCommand(sink, partial(self._tell, number), self._give_up)
        if self.is_alive:
            self._commands[number] = started
            self._tell(number, START, _encode(command))
        else:
            started.finish(LOST)
        return started

    async def guard(
        self,
        places: Sequence[Path],
        links: Mapping[Path, Path] = MappingProxyType({}),  # noqa: ARG002
    ) -> Guarded:
        return Guarded(failed=tuple((place, NO_MOUNTS) for place in places))

    async def share(self, place: Path, guarded: Sequence[Path] = ()) -> str:  # noqa: ARG002
        return NO_MOUNTS

    async def withdraw(self, place: Path) -> str:  # noqa: ARG002
        return NO_MOUNTS

    @property
    def ports(self) -> None:
        return None

    def find_unguarded(self, places: Sequence[Path]) -> tuple[Path, ...]:  # noqa: ARG002
        return ()

    def _tell(self, number: int, kind: bytes, content: bytes) -> None:
        if self.is_alive:
            self._transport.write(frame(kind, number, content))

    def _give_up(self) -> None:
        self._transport.abort()

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport
        self.data_received(self._received)

    def data_received(self, data: bytes) -> None:
        try:
            for kind, number, content in self._frames.feed(data):
                self._handle(kind, self._commands.get(number), number, content)
        except BrokenStream:
            self._give_up()

    def _handle(self, kind: bytes, started: RunningCommand | None, number: int, content: bytes) -> None:
        if started is None:
            return
        if kind == OUTPUT:
            started.sink.add(content)
        elif kind == SKIPPED:
            with suppress(ValueError):
                started.sink.skip(max(0, int(content[:20])))
        elif kind == ENDED:
            del self._commands[number]
            self._finish(started, msgspec.structs.replace(_end(content), limit_bytes=self._memory_bytes))

    def _finish(self, started: RunningCommand, end: ExitStatus) -> None:
        """One that failed waits until it is known whether the kernel has ended a process of it."""
        if self._enforced.memory_group is None:
            started.finish(end)
            return
        if end.code == 0 or end.why:
            started.finish(end)

        def compare(looked: asyncio.Future[int]) -> None:
            count = self._out_of_memory if looked.cancelled() else looked.result()
            is_killed = count > self._out_of_memory
            self._out_of_memory = count
            started.finish(msgspec.structs.replace(end, why="memory") if is_killed else end)

        looking = asyncio.get_running_loop().run_in_executor(None, self._enforced.out_of_memory)
        looking.add_done_callback(compare)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.is_alive = False
        for started in self._commands.values():
            started.finish(LOST)
        self._commands.clear()


def _end(content: bytes) -> ExitStatus:
    try:
        end = _decode_end(content)
    except msgspec.MsgspecError:
        return LOST
    if end.unreachable is None:
        return end
    named = [one for one in end.unreachable if one.isprintable() and len(one) <= MAX_UNREACHABLE_CHARS]
    return msgspec.structs.replace(end, unreachable=tuple(named[:MAX_UNREACHABLE]))
