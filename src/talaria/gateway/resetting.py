"""When a chat begins a new conversation by itself: after a rest, or at an hour of the day. The old one is ended for
good (those who keep something of it hear it to its end) once, and can be gone back to."""

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from talaria.core.errors import SessionBusy, TalariaError
from talaria.core.ids import SessionId, new_session_id
from talaria.gateway.delivery import Delivery
from talaria.gateway.envelope import OutgoingBody, Received, written
from talaria.gateway.gateway_settings import ResetPolicy
from talaria.gateway.gateway_state import GatewayState
from talaria.gateway.replies import LIVES_S
from talaria.runtime.session import LiveSession
from talaria.runtime.session_pool import SessionPool
from talaria.store.base import Session
from talaria.store.chat_ports import Inbound, Outgoing

ATTEMPTS = 3

log = logging.getLogger(__name__)

Open = Callable[[SessionId, Received], Awaitable[LiveSession]]


def is_over(
    policy: ResetPolicy, last_at: float, now: float, wall: Callable[[float], datetime] = datetime.fromtimestamp
) -> bool:
    """Whether a conversation in which something last happened at `last_at` has ended. `wall` is the local time."""
    has_rested = now - last_at >= policy.idle_minutes * 60
    match policy.mode:
        case "none":
            return False
        case "idle":
            return has_rested
        case "daily":
            return _is_of_before(policy.at_hour, wall(last_at), wall(now))
        case "both":
            return has_rested or _is_of_before(policy.at_hour, wall(last_at), wall(now))


def _is_of_before(hour: int, last: datetime, now: datetime) -> bool:
    """The hour has struck since."""
    struck = now.replace(hour=hour, minute=0, second=0, microsecond=0)
    if struck > now:
        struck -= timedelta(days=1)
    return last < struck


class Resetting:
    def __init__(self, desk: GatewayState, pool: SessionPool, delivery: Delivery, open_: Open) -> None:
        self._desk = desk
        self._store = desk.host.store
        self._clock = desk.host.clock
        self._pool = pool
        self._delivery = delivery
        self._open = open_
        self._watched: dict[SessionId, Received] = {}
        """Conversations that will end some time, with the last that was said."""
        self._ended: set[SessionId] = set()
        """Those whose chats have not gone on to another yet."""
        self._taken_up: set[SessionId] = set()
        """Those that a person has gone back to, and said nothing yet."""

    def take_up(self, session: SessionId) -> None:
        """Somebody wants to go on with it, however old it is."""
        if self._desk.settings.session_reset.mode != "none":
            self._taken_up.add(session)

    async def begin_anew(self, session: SessionId, mail: Inbound, received: Received) -> SessionId | None:
        """The new conversation of the chat, if this one is over; its mail follows. None: it goes on."""
        if self._desk.settings.session_reset.mode == "none":
            return None
        row = await self._store.sessions.get(session)
        if row is None or session in self._taken_up or not self._is_over(row):
            self._taken_up.discard(session)
            self._watched[session] = received
            self._ended.discard(session)
            return None
        if not await self._has_ended(session, received):
            return None
        await self._tell(row, mail, received)
        new = new_session_id(self._clock.now())
        await self._store.chats.bind(received.key, new, str(received.arrival.where))
        self._ended.discard(session)
        return new

    async def sweep(self) -> int:
        """End those whose time is over although nobody speaks: how many. Their chats go on with the next message."""
        ended = 0
        for session, received in tuple(self._watched.items()):
            row = await self._store.sessions.get(session)
            if row is None:
                self._watched.pop(session, None)
            elif self._is_over(row):
                ended += await self._has_ended(session, received)
        return ended

    def _is_over(self, row: Session) -> bool:
        policy = self._desk.settings.session_reset
        return row.open_turn is None and is_over(policy, row.updated_at, self._clock.now())

    async def _has_ended(self, session: SessionId, received: Received) -> bool:
        """Once; marked before it is done, so that whoever comes meanwhile does not wait for it. False: it is busy."""
        self._watched.pop(session, None)
        if session in self._ended:
            return True
        self._ended.add(session)
        for _ in range(ATTEMPTS):
            try:
                live = await self._open(session, received)
                await live.catch_up()
                await self._pool.close(session, "session_expired")
            except SessionBusy:
                self._ended.discard(session)
                return False
            except TalariaError as fault:
                log.warning("session %s is over, and not ended: %s", session, fault)
            except Exception:  # what keeps something of it may be anybody's code
                log.exception("session %s is over, and not ended", session)
            else:
                break
        return True

    async def _tell(self, row: Session, mail: Inbound, received: Received) -> None:
        since = datetime.fromtimestamp(row.updated_at).astimezone()
        text = f"(A new conversation begins; the last one rested since {since:%Y-%m-%d %H:%M}. Back: /resume {row.id})"
        where = str(received.arrival.where)
        notice = Outgoing(where, written(OutgoingBody(text)), f"anew:{mail.id}", self._clock.now() + LIVES_S)
        await self._store.outbox.add(row.id, [notice])
        self._delivery.wake(where)
