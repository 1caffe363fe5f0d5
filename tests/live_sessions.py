"""What tests do with a live session."""

from talaria.core.clock import Clock
from talaria.core.ids import OwnerId
from talaria.providers.upstream import Upstream
from talaria.runtime.process import ProcessLinks, ProcessServices
from talaria.runtime.session import LiveSession
from talaria.runtime.turn_runner import RunningTurn
from talaria.store.base import Store


def process_services(store: Store, owner: OwnerId, upstream: Upstream, clock: Clock) -> ProcessServices:
    """Of a process that nobody else knows."""
    return ProcessServices(store, owner, upstream, clock, ProcessLinks(store, owner))


def running_turn(live: LiveSession) -> RunningTurn:
    """Its turn, which runs."""
    assert live.running is not None
    return live.running


def steer(live: LiveSession, text: str) -> bool:
    return live.running is not None and live.running.steer(text)
