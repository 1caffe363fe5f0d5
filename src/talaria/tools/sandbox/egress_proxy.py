"""The way out of a session's sandbox: a proxy of ours, to hosts that the person has listed or allows when asked."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from socket import socket
from typing import TYPE_CHECKING

from talaria.core.aio import complete
from talaria.core.clock import Clock
from talaria.core.errors import Denied
from talaria.net.urls import parse_allowance
from talaria.tools.hosts import host_matches

if TYPE_CHECKING:
    from talaria.net.egress import Intercept

MAX_BYTES = 1 << 30
"""Of a session, in both directions."""
MAX_TOLD = 5
MAX_BLOCKED = 20


class EgressProxy:
    def __init__(
        self,
        hosts: tuple[str, ...],
        private: tuple[str, ...],
        clock: Clock,
        whose: str = "Commands do",
        max_bytes: int | None = MAX_BYTES,
    ) -> None:
        """`private`: what may be reached although it is not on the public internet. `whose`: how a refusal begins."""
        self._hosts = hosts
        self._whose = whose
        self._max_bytes = max_bytes
        self._private = private
        self._clock = clock
        self._refused: deque[tuple[str, str]] = deque(maxlen=MAX_TOLD)
        self._unreachable: deque[tuple[str, str]] = deque(maxlen=MAX_TOLD)
        self.blocked: deque[str] = deque(maxlen=MAX_BLOCKED)
        """What was lately asked for in vain, for people."""
        self.consent: Callable[[str], Awaitable[None]] | None = None
        """Decides about a host that is not listed; raises `Denied`. None: there is nobody to ask."""
        self.intercept: Intercept | None = None
        """Who answers some requests itself; None: nobody."""

    @asynccontextmanager
    async def serve(self, listener: socket) -> AsyncGenerator[None]:
        """The proxy is loaded when somebody first wants to get out: few commands do."""
        serving = asyncio.create_task(self._serve(listener), name="way out")
        try:
            yield
        finally:
            serving.cancel()
            await complete(asyncio.wait([serving]))
            listener.close()

    async def _serve(self, listener: socket) -> None:
        listener.setblocking(False)
        await _readable(listener)
        from talaria.net.egress import Egress  # noqa: PLC0415  (few let commands out)

        async with Egress(
            listener,
            self.admit,
            allowance=parse_allowance(self._private),
            clock=self._clock,
            refused=self.note_refused,
            unreachable=self._note_unreachable,
            max_bytes=self._max_bytes,
            intercept=self.intercept or (lambda _: None),
        ):
            await asyncio.get_running_loop().create_future()

    def is_listed(self, host: str) -> bool:
        return any(host_matches(host, pattern) for pattern in self._hosts)

    async def admit(self, host: str, port: int) -> None:  # noqa: ARG002
        """Raises `Denied`."""
        if self.is_listed(host):
            return
        if self.consent is None:
            raise Denied(f"{self._whose} not reach {host} from here.")
        await self.consent(host)

    def note_refused(self, host: str, port: int, reason: str) -> None:
        self.note(f"{host}:{port}", reason)

    def note(self, what: str, reason: str) -> None:
        self._refused.append((what, reason.rstrip(".")))
        self.blocked.append(what)

    def _note_unreachable(self, host: str, port: int, reason: str) -> None:
        self._unreachable.append((f"{host}:{port}", reason.rstrip(".")))

    def take_unreachable(self) -> tuple[tuple[str, str], ...]:
        """What may be reached and could not be, since this was last asked, and why: programs are told by the status of
        a tunnel only, which most of them do not explain."""
        unreachable = tuple(dict.fromkeys(self._unreachable))
        self._unreachable.clear()
        return unreachable

    def take_refused(self) -> tuple[tuple[str, str], ...]:
        """What was asked for in vain since this was last asked, and why."""
        refused = tuple(dict.fromkeys(self._refused))
        self._refused.clear()
        return refused


async def _readable(listener: socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(listener, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(listener)
