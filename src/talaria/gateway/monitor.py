"""What a running gateway says about itself to whoever monitors it, whichever server that asks."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from talaria.core.clock import Clock
from talaria.core.errors import TalariaError
from talaria.gateway.gateway_state import Counts
from talaria.gateway.gateway_status import GatewayStatus, count_due_and_failed, is_up
from talaria.store.chat_ports import Outbox

SAMPLE_S = 0.25
SAMPLES = 120
"""Half a minute's worth."""

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


class GatewayMonitor:
    def __init__(self, look: Callable[[], GatewayStatus], counts: Counts, outbox: Outbox, clock: Clock) -> None:
        self._look = look
        self._counts = counts
        self._outbox = outbox
        self._clock = clock
        self._lag = Lag()

    async def run(self) -> None:
        """Until cancelled: what can only be known by watching all the time."""
        await self._lag.watch()

    def complaints(self) -> Sequence[str]:
        """What is wrong, a sentence each."""
        return tuple(self._look().complaints(self._clock.now()))

    def is_ready(self) -> bool:
        """New messages are stored and answered."""
        status = self._look()
        return not status.is_stopping and not status.store_trouble

    async def metrics(self) -> str:
        """In the format of Prometheus."""
        status, now = self._look(), self._clock.now()
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
        return "".join(metrics)


def _metric(name: str, type: str, label: str, values: Values) -> Iterator[str]:
    yield f"# TYPE talaria_{name} {type}\n"
    for value, number in values.items():
        escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        labelled = f'{{{label}="{escaped}"}}' if label else ""
        yield f"talaria_{name}{labelled} {float(number)!r}\n"
