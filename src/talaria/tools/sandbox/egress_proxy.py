"""The proxy through which a session's commands reach hosts that the person has listed or allows when asked."""

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
from talaria.tools.sandbox.launching import wait_readable

if TYPE_CHECKING:
    from talaria.net.egress import Intercept

MAX_BYTES = 1 << 30
"""For a session, both directions together."""
MAX_NOTED = 5
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
        self._refused: deque[tuple[str, str]] = deque(maxlen=MAX_NOTED)
        self._unreachable: deque[tuple[str, str]] = deque(maxlen=MAX_NOTED)
        self.blocked: deque[str] = deque(maxlen=MAX_BLOCKED)
        """What was blocked recently, for people."""
        self.consent: Callable[[str], Awaitable[None]] | None = None
        """Decides about a host that is not listed; raises `Denied`. None: nobody can be asked."""
        self.intercept: Intercept | None = None
        """Answers some requests in place of their host."""

    @asynccontextmanager
    async def serve(self, listener: socket) -> AsyncGenerator[None]:
        serving = asyncio.create_task(self._serve(listener), name="egress proxy")
        try:
            yield
        finally:
            serving.cancel()
            await complete(asyncio.wait([serving]))
            listener.close()

    async def _serve(self, listener: socket) -> None:
        listener.setblocking(False)
        await wait_readable(listener)
        from talaria.net.egress import Egress  # noqa: PLC0415  (loaded at the first connection: few commands make one)

        def note_refused(host: str, port: int, reason: str) -> None:
            self.note(f"{host}:{port}", reason)

        def note_unreachable(host: str, port: int, reason: str) -> None:
            self._unreachable.append((f"{host}:{port}", reason.rstrip(".")))

        async with Egress(
            listener,
            self.admit,
            allowance=parse_allowance(self._private),
            clock=self._clock,
            refused=note_refused,
            unreachable=note_unreachable,
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

    def note(self, what: str, reason: str) -> None:
        self._refused.append((what, reason.rstrip(".")))
        self.blocked.append(what)

    def take_unreachable(self) -> tuple[tuple[str, str], ...]:
        """What was allowed but could not be reached since the last call, and why: a program learns only the status of
        a tunnel, which most do not explain."""
        unreachable = tuple(dict.fromkeys(self._unreachable))
        self._unreachable.clear()
        return unreachable

    def take_refused(self) -> tuple[tuple[str, str], ...]:
        """What was blocked since the last call, and why."""
        refused = tuple(dict.fromkeys(self._refused))
        self._refused.clear()
        return refused
