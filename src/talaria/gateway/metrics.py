"""Monitoring, on this machine only: `/metrics` in the format of Prometheus, and `/health`."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from talaria.core.clock import Clock
from talaria.core.errors import OperatorError, TalariaError
from talaria.gateway.gateway_state import Counts
from talaria.gateway.gateway_status import GatewayStatus, count_due_and_failed, is_up
from talaria.net import tls
from talaria.store.chat_ports import Outbox

with tls.skip_certificates():
    from aiohttp import web

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
HOST = "127.0.0.1"
SAMPLE_S = 0.25
SAMPLES = 120
"""Half a minute's worth."""
_CLOSING_S = 1.0

log = logging.getLogger(__name__)

Values = Mapping[str, float]
"""By the label's value; without a label, under the empty string."""


class Lag:
    """How late the event loop runs what is due: the worst of the last half minute."""

    def __init__(self) -> None:
        self._late_s: deque[float] = deque(maxlen=SAMPLES)

    @property
    def worst_s(self) -> float:
        return max(self._late_s, default=0.0)

    async def watch(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + SAMPLE_S
            await asyncio.sleep(SAMPLE_S)
            self._late_s.append(max(0.0, loop.time() - due))


class MetricsServer:
    def __init__(self, look: Callable[[], GatewayStatus], counts: Counts, outbox: Outbox, clock: Clock) -> None:
        self._look = look
        self._counts = counts
        self._outbox = outbox
        self._clock = clock
        self._lag = Lag()
        self.port: int | None = None
        """Where it listens."""

    async def serve(self, port: int) -> None:
        """Until cancelled; on any free port if it is 0. Raises `OperatorError`."""
        server = web.Server(self._answer, access_log=None, lingering_time=_CLOSING_S)
        try:
            sockets = await asyncio.get_running_loop().create_server(server, HOST, port)
        except OSError as fault:
            raise OperatorError(
                f"Cannot listen on {HOST}, port {port}: {fault.strerror}. Set gateway.metrics_port to another."
            ) from fault
        try:
            self.port = sockets.sockets[0].getsockname()[1]
            await self._lag.watch()
        finally:
            sockets.close()
            await server.shutdown(_CLOSING_S)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        status, now = self._look(), self._clock.now()
        if (request.method, request.path) == ("GET", "/health"):
            complaints = list(status.complaints(now))
            return web.json_response(
                {"ok": not complaints, "complaints": complaints}, status=503 if complaints else 200
            )
        if (request.method, request.path) != ("GET", "/metrics"):
            return web.Response(status=404)
        heard = {one.name: now - one.heard_at for one in status.platforms if one.heard_at is not None}
        outbox: Values = {}
        try:
            due, failed = await count_due_and_failed(self._outbox)
            outbox = {"due": due, "failed": failed}
        except TalariaError as fault:  # everything else is known all the same
            log.warning("the outbox is not counted: %s", fault)
        metrics = (
            *_metric("info", "gauge", "version", {status.version: 1}),
            *_metric("start_time_seconds", "gauge", "", {"": status.since}),
            *_metric("platform_up", "gauge", "platform", {one.name: is_up(one) for one in status.platforms}),
            *_metric("platform_silent_seconds", "gauge", "platform", heard),
            *_metric("messages_accepted_total", "counter", "platform", self._counts.messages),
            *_metric("turns_running", "gauge", "", {"": status.running}),
            *_metric("turns_total", "counter", "outcome", self._counts.turns),
            *_metric("sessions_live", "gauge", "", {"": status.live}),
            *_metric("outbox_rows", "gauge", "state", outbox),
            *_metric("deliveries_total", "counter", "result", self._counts.deliveries),
            *_metric("event_loop_lag_seconds", "gauge", "", {"": self._lag.worst_s}),
        )
        return web.Response(text="".join(metrics), headers={"Content-Type": CONTENT_TYPE})


def _metric(name: str, type: str, label: str, values: Values) -> Iterator[str]:
    yield f"# TYPE talaria_{name} {type}\n"
    for value, number in values.items():
        escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        labelled = f'{{{label}="{escaped}"}}' if label else ""
        yield f"talaria_{name}{labelled} {float(number)!r}\n"
