"""What was said while we were away, or between an invitation and our coming: read backwards, within bounds."""

import logging
from collections.abc import Sequence
from typing import Protocol, TypeGuard, cast

import nio  # pyright: ignore[reportMissingTypeStubs]

from talaria.platforms.base import AccessLost
from talaria.platforms.matrix.matrix_client import MatrixClient, read

MAX_EVENTS = 200
MAX_AGE_S = 24 * 3600.0
_PAGE = 100

log = logging.getLogger(__name__)


class Timeline(Protocol):
    """nio's, with types."""

    events: list[nio.Event]
    limited: bool
    prev_batch: str | None


async def heard(client: MatrixClient, room: str, timeline: Timeline, since: str, now: float) -> Sequence[nio.Event]:
    """The events of a room since then, oldest first; of one that we have entered meanwhile, since we were invited.

    Raises `NotTaken`, `Refused`.
    """
    events = timeline.events
    is_new = any(_has_come(event, client.user_id) for event in events)
    is_whole = not timeline.limited or any(_is_invitation(event, client.user_id) for event in events)
    if timeline.prev_batch and not is_whole:
        earlier = await _before(client, room, timeline.prev_batch, None if is_new else since, now)
        events = [*earlier, *events]
    return _since_invited(events, client.user_id)


async def _before(client: MatrixClient, room: str, start: str, since: str | None, now: float) -> Sequence[nio.Event]:
    found: list[nio.Event] = []  # newest first
    at: str | None = start
    while at and len(found) < MAX_EVENTS:
        try:
            page = await read(client.room_messages(room, at, since, limit=_PAGE), nio.RoomMessagesResponse)
        except AccessLost:
            break
        chunk = cast("list[nio.Event]", page.chunk)
        young = [event for event in chunk if _sent_at(event) >= now - MAX_AGE_S]
        found += young
        is_enough = len(young) < len(chunk) or any(_is_invitation(event, client.user_id) for event in young)
        at = None if is_enough or not chunk else page.end
    if at:
        log.warning("more was said in the Matrix room %s than is read after an absence; the oldest is left out", room)
    return found[:MAX_EVENTS][::-1]


def _since_invited(events: Sequence[nio.Event], us: str) -> Sequence[nio.Event]:
    """All of them, if we were invited, or came, before."""
    for at in range(len(events) - 1, -1, -1):
        event = events[at]
        if _is_invitation(event, us) or (_has_come(event, us) and event.prev_membership != "invite"):
            return events[at:]
    return events


def _is_invitation(event: nio.Event, us: str) -> bool:
    return isinstance(event, nio.RoomMemberEvent) and event.state_key == us and event.membership == "invite"


def _has_come(event: nio.Event, us: str) -> TypeGuard[nio.RoomMemberEvent]:
    if not isinstance(event, nio.RoomMemberEvent) or event.state_key != us:
        return False
    return event.membership == "join" and event.prev_membership != "join"


def _sent_at(event: nio.Event) -> float:
    return float(getattr(event, "server_timestamp", 0)) / 1000  # some are no events at all
