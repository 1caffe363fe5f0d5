"""The way out of a session's sandbox: a proxy of ours, to hosts that the person has listed."""

from collections import deque
from contextlib import AbstractAsyncContextManager
from socket import socket

from talaria.model.clock import Clock
from talaria.model.errors import Denied
from talaria.net.addresses import allowance
from talaria.tools.hosts import is_covered

MAX_BYTES = 1 << 30
"""Of a session, in both directions."""
MAX_TOLD = 5


class WayOut:
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
        self._refused: deque[str] = deque(maxlen=MAX_TOLD)

    def served(self, listener: socket) -> AbstractAsyncContextManager[object]:
        from talaria.net.egress import Egress  # noqa: PLC0415  (few let commands out)

        return Egress(
            listener,
            self._admit,
            allowance=allowance(self._private),
            clock=self._clock,
            refused=self._note,
            max_bytes=self._max_bytes,
        )

    def is_listed(self, host: str) -> bool:
        return any(is_covered(host, pattern) for pattern in self._hosts)

    async def _admit(self, host: str, port: int) -> None:  # noqa: ARG002
        if not self.is_listed(host):
            raise Denied(f"{self._whose} not reach {host} from here.")

    def _note(self, host: str, port: int) -> None:
        self._refused.append(f"{host}:{port}")

    def take_refused(self) -> tuple[str, ...]:
        """What was asked for in vain since this was last asked."""
        refused = tuple(dict.fromkeys(self._refused))
        self._refused.clear()
        return refused
