"""The channel to a tool host. What it brings may be the work of a command: it is data, and of limited size."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from socket import socket
from types import MappingProxyType

import msgspec
from msgspec import structs

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
    """Also a `ToolHost`: the one at its other end."""

    def __init__(
        self, received: bytes, listener: socket | None, pid: int, enforced: Enforced, limits: SandboxLimits | None
    ) -> None:
        """`received`: what came before the channel was opened. `pid`: of the process that was started on this side."""
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
        """How many processes the kernel had killed for using too much memory at the last check."""
        self._transport: asyncio.Transport

    def start(self, command: SandboxCommand, sink: OutputSink) -> RunningCommand:
        number = next(self._numbers)
        running = RunningCommand(sink, partial(self._send, number), self._give_up)
        if self.is_alive:
            self._commands[number] = running
            self._send(number, START, _encode(command))
        else:
            running.finish(LOST)
        return running

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

    def _send(self, number: int, kind: bytes, content: bytes) -> None:
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
                running = self._commands.get(number)
                if running is None:
                    continue
                if kind == OUTPUT:
                    running.sink.add(content)
                elif kind == SKIPPED:
                    with suppress(ValueError):
                        running.sink.skip(max(0, int(content[:20])))
                elif kind == ENDED:
                    del self._commands[number]
                    self._finish(running, content)
        except BrokenStream:
            self._give_up()

    def _finish(self, running: RunningCommand, content: bytes) -> None:
        """A command that failed is finished once it is known whether the kernel has killed one of its processes."""
        try:
            end = _decode_end(content)
        except msgspec.MsgspecError:
            end = LOST
        if end.unreachable is not None:
            named = [one for one in end.unreachable if one.isprintable() and len(one) <= MAX_UNREACHABLE_CHARS]
            end = structs.replace(end, unreachable=tuple(named[:MAX_UNREACHABLE]))
        end = structs.replace(end, limit_bytes=self._memory_bytes)
        if self._enforced.memory_group is None:
            running.finish(end)
            return
        if end.code == 0 or end.why:
            running.finish(end)

        def compare(checked: asyncio.Future[int]) -> None:
            count = self._out_of_memory if checked.cancelled() else checked.result()
            is_killed = count > self._out_of_memory
            self._out_of_memory = count
            running.finish(structs.replace(end, why="memory") if is_killed else end)

        checking = asyncio.get_running_loop().run_in_executor(None, self._enforced.out_of_memory)
        checking.add_done_callback(compare)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.is_alive = False
        for running in self._commands.values():
            running.finish(LOST)
        self._commands.clear()
