"""Two sockets joined, so that what one says the other hears. Nothing piles up: who reads slowly is sent to slowly."""

import asyncio
import socket
import sys
from contextlib import suppress

from talaria.core.clock import Clock

CHUNK_BYTES = 64 << 10
IDLE_S = 300.0


class ByteLimitReached(Exception):
    """No more bytes may move."""


class Meter:
    """What one session may still move, over all its connections and in both directions."""

    def __init__(self, most_bytes: int | None = None) -> None:
        self._left = sys.maxsize if most_bytes is None else most_bytes

    def spend(self, size_bytes: int) -> None:
        """Raises `ByteLimitReached`, and does so ever after."""
        self._left -= size_bytes
        if self._left < 0:
            raise ByteLimitReached


class Tunnel:
    def __init__(self, client: socket.socket, upstream: socket.socket, clock: Clock, meter: Meter) -> None:
        self._client = client
        self._upstream = upstream
        self._clock = clock
        self._meter = meter
        self._moved_at = clock.monotonic()

    async def join(self, early: bytes) -> None:
        """Until both sides have said all, one fails, or both are silent for long. `early` is what the client has
        said already.
        """
        await self._run(early, sys.maxsize, ends_together=False)

    async def exchange(self, early: bytes, body_bytes: int) -> None:
        """As `join`, for one request: of the client exactly its body is heard, and the end of one side is the end."""
        await self._run(early[:body_bytes], body_bytes, ends_together=True)

    async def _run(self, early: bytes, most: int, *, ends_together: bool) -> None:
        watch = asyncio.create_task(self._watch(), name="tunnel watch")
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(self._client, self._upstream, early, most, ends_together))
                pumps.create_task(self._pump(self._upstream, self._client, b"", sys.maxsize, ends_together))
        finally:
            watch.cancel()

    async def _pump(
        self, source: socket.socket, target: socket.socket, early: bytes, most: int, ends_together: bool
    ) -> None:
        try:
            await self._copy(source, target, early, most)
            if not ends_together:
                target.shutdown(socket.SHUT_WR)
                return
        except (OSError, ByteLimitReached):
            pass
        self._shut()

    async def _copy(self, source: socket.socket, target: socket.socket, early: bytes, left: int) -> None:
        """Behind the last byte that counts it still waits for the source to end, or to say too much."""
        loop = asyncio.get_running_loop()
        chunk = early or await loop.sock_recv(source, CHUNK_BYTES)
        while chunk and left > 0:
            self._moved_at = self._clock.monotonic()
            self._meter.spend(len(chunk))
            await loop.sock_sendall(target, chunk[:left])
            left -= len(chunk)
            chunk = await loop.sock_recv(source, CHUNK_BYTES)

    async def _watch(self) -> None:
        while (left_s := self._moved_at + IDLE_S - self._clock.monotonic()) > 0:
            await self._clock.expire(left_s)
        self._shut()

    def _shut(self) -> None:
        """Wakes both pumps, wherever they wait."""
        for side in (self._client, self._upstream):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
