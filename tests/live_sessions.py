"""What tests do with a live session."""

from talaria.runtime.session import LiveSession
from talaria.runtime.turn_runner import RunningTurn


def running_turn(live: LiveSession) -> RunningTurn:
    """Its turn, which runs."""
    assert live.running is not None
    return live.running


def steer(live: LiveSession, text: str) -> bool:
    return live.running is not None and live.running.steer(text)
