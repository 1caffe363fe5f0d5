"""Asking a gateway to take a conversation over to a platform, and waiting for its answer."""

import asyncio

from talaria.core.aio import complete
from talaria.core.clock import Clock
from talaria.core.errors import UserFacing
from talaria.core.ids import SessionId
from talaria.store.base import Store
from talaria.store.chat_ports import Handoffs

LOOK_S = 0.5
PATIENCE_S = 60.0
NOBODY = "It timed out: no gateway picked it up within 60 s. Is one running? (talaria gateway status)"
TOO_SLOW = "It timed out: a gateway picked it up, but did not finish within 60 s. The conversation stays here."
GIVEN_UP = "The person stopped waiting."


class HandoffFailed(UserFacing):
    """The conversation stays where it is."""


async def hand_off(store: Store, clock: Clock, session: SessionId, platform: str) -> None:
    """Returns when the conversation is there. Raises `HandoffFailed` with the reason; cancelled, it is taken back."""
    row = await store.sessions.get(session)
    if row is not None and row.open_turn is not None:
        raise HandoffFailed("A turn of this conversation is running, here or elsewhere. Wait until it ends.")
    if not await store.handoffs.request(session, platform):
        raise HandoffFailed("This conversation is being handed over already.")
    try:
        await _wait_for_arrival(store.handoffs, clock, session)
    except asyncio.CancelledError:
        await complete(store.handoffs.fail(session, GIVEN_UP))
        raise


async def _wait_for_arrival(handoffs: Handoffs, clock: Clock, session: SessionId) -> None:
    deadline = clock.monotonic() + PATIENCE_S
    while clock.monotonic() < deadline:
        await clock.sleep(LOOK_S)
        if await _has_arrived(handoffs, session):
            return
    reason = NOBODY if await handoffs.find_running(session) is None else TOO_SLOW
    if not await handoffs.fail(session, reason) and await _has_arrived(handoffs, session):
        return
    raise HandoffFailed(reason)


async def _has_arrived(handoffs: Handoffs, session: SessionId) -> bool:
    found = await handoffs.state(session)
    if found is not None and found.state == "failed":
        raise HandoffFailed(f"The handoff failed: {found.error}")
    return found is not None and found.state == "completed"
