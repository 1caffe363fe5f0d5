"""Asking a gateway to take a conversation over to a platform, and waiting for its answer."""

from talaria.model.clock import Clock
from talaria.model.errors import UserFacing
from talaria.model.ids import SessionId
from talaria.store.base import Handoffs

LOOK_S = 0.5
PATIENCE_S = 60.0
NOBODY = "It timed out: no gateway has taken it within 60 s. Is one running? (talaria gateway status)"


class HandoffFailed(UserFacing):
    """The conversation stays where it is."""


async def hand_off(handoffs: Handoffs, clock: Clock, session: SessionId, platform: str) -> None:
    """Returns when the conversation is there. Raises `HandoffFailed` with the reason."""
    if not await handoffs.request(session, platform):
        raise HandoffFailed("This conversation is on its way already.")
    deadline = clock.monotonic() + PATIENCE_S
    while clock.monotonic() < deadline:
        await clock.sleep(LOOK_S)
        if await _has_arrived(handoffs, session):
            return
    if not await handoffs.fail(session, NOBODY) and await _has_arrived(handoffs, session):
        return
    raise HandoffFailed(NOBODY)


async def _has_arrived(handoffs: Handoffs, session: SessionId) -> bool:
    found = await handoffs.state(session)
    if found is not None and found.state == "failed":
        raise HandoffFailed(f"The handoff failed: {found.error}")
    return found is not None and found.state == "completed"
