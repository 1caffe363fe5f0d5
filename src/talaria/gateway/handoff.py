"""Conversations on their way from the terminal to a platform. Each is claimed by one gateway, greeted there with all
its context, and completed or failed with a reason."""

import asyncio
import logging

from talaria.gateway.conversations import Conversations
from talaria.gateway.delivery import Delivery
from talaria.gateway.desk import Desk
from talaria.gateway.envelope import Principal, Received
from talaria.gateway.keys import session_key
from talaria.gateway.links import Links
from talaria.gateway.mailroom import Mailroom
from talaria.model.entries import MessageAdded
from talaria.model.errors import TalariaError, UserFacing
from talaria.model.ids import SessionId
from talaria.model.messages import User, user
from talaria.platforms.base import Address, Arrival, ChatKind, Platform, PlatformFailure, Sender
from talaria.runtime.pool import Pool
from talaria.store.base import Session

FIRST_LOOK_S = 5.0
EVERY_S = 2.0
DELIVERED_WITHIN_S = 45.0
LOOK_S = 0.2
SYSTEM = Sender("system:handoff", "Handoff")
GREETING = (
    "[The person has just moved this conversation from their terminal to {place}. "
    "Say in a few sentences where you stand and what comes next. Do not call tools for that.]"
)

log = logging.getLogger(__name__)


class HandoffFailed(UserFacing):
    """`str()` of it is the reason that is kept."""


class HandoffWatcher:
    def __init__(
        self,
        desk: Desk,
        links: Links,
        conversations: Conversations,
        mailroom: Mailroom,
        pool: Pool,
        delivery: Delivery,
    ) -> None:
        self._desk = desk
        self._store = desk.host.store
        self._clock = desk.host.clock
        self._links = links
        self._conversations = conversations
        self._mailroom = mailroom
        self._pool = pool
        self._delivery = delivery

    async def run(self) -> None:
        await self._store.handoffs.reclaim()
        await self._clock.sleep(FIRST_LOOK_S)
        while True:
            try:
                await self.look()
            except TalariaError as fault:
                log.warning("handoffs wait: %s", fault)
            await self._clock.sleep(EVERY_S)

    async def look(self) -> None:
        for session in await self._store.handoffs.pending():
            if await self._store.handoffs.claim(session):
                await self._carried_out(session)

    async def _carried_out(self, session: SessionId) -> None:
        try:
            await self._carry_out(session)
        except (TalariaError, TimeoutError) as fault:
            await self._store.handoffs.fail(session, str(fault) or "it took too long")
        except Exception as fault:  # the person waits for an answer, whatever it is
            log.exception("handoff of session %s broke", session)
            await self._store.handoffs.fail(session, f"a bug: {fault!r}")
        else:
            await self._store.handoffs.complete(session)

    async def _carry_out(self, session: SessionId) -> None:
        state = await self._store.handoffs.state(session)
        row = await self._store.sessions.get(session)
        if state is None or row is None or not state.platform:
            raise HandoffFailed("No platform was named.")
        platform = self._links.find(state.platform)
        if platform is None:
            raise HandoffFailed(f"{state.platform} is not connected.")
        received = await self._destination(platform, row)
        where = str(received.arrival.where)
        before = await self._store.chats.bind(received.key, session, where)
        self._mailroom.arrivals.forget(session)
        self._pool.release(session)
        try:
            await self._greet(session, received, platform)
        except Exception:
            if before is not None:
                await self._store.chats.bind(received.key, before, where)
                self._mailroom.held[before] = None
            raise

    async def _destination(self, platform: Platform, row: Session) -> Received:
        home = await self.home_channel(platform.name)
        if home is None:
            raise HandoffFailed(f"{platform.name} has no home channel: send /sethome where it should be.")
        thread = await self._thread_of(row.id, home)
        thread = thread or await _new_thread(platform, home, f"Talaria — {row.title or row.id[:8]}")
        where, kind = thread or home, _kind(home, is_thread=thread is not None)
        principal = Principal(platform.name, home.chat if kind == "dm" else SYSTEM.id, SYSTEM.name, is_admin=True)
        sender = Sender(principal.user, principal.name)
        key = session_key(where, kind, principal.user if kind == "dm" else "", self._desk.key_rules)
        return Received(Arrival("", where, kind, sender), principal, key)  # there is no message to reply to

    async def _thread_of(self, session: SessionId, home: Address) -> Address | None:
        """That was made for it before a crash."""
        bound = [Address.parse(chat.address) for chat in await self._store.chats.of(session) if chat.address]
        return next(
            (one for one in bound if one.thread and (one.platform, one.chat) == (home.platform, home.chat)), None
        )

    async def home_channel(self, platform: str) -> Address | None:
        chosen = await self._store.chats.home(platform)
        if chosen:
            return Address.parse(chosen)
        return self._desk.homes.get(platform)

    async def _greet(self, session: SessionId, received: Received, platform: Platform) -> None:
        """A real turn, whose answer is sent like any other."""
        letter = self._conversations.letter((), received)
        message: User = user(GREETING.format(place=platform.name), author="host")
        row = await self._store.sessions.get(session)
        is_open = row is not None and row.open_turn is not None
        if not is_open and await self._has_been_greeted(session, message):
            return
        live = await self._conversations.open(session, received)
        report = await live.resume(letter=letter) if is_open else None
        report = report or await live.ask(message, letter=letter)
        self._pool.touch(session)
        self._delivery.wake(str(received.arrival.where))
        if report.outcome == "failed":
            raise HandoffFailed(str(report.error or "The model did not answer."))
        await self._delivered(f"{report.turn}:0")

    async def _has_been_greeted(self, session: SessionId, message: User) -> bool:
        """A crash came after the answer: it is on its way like any other."""
        entries = await self._store.journal.entries(session)
        said = [one.entry.message for one in entries if isinstance(one.entry, MessageAdded)]
        asked = [one for one in said if isinstance(one, User)]
        return bool(asked) and asked[-1].author == "host" and message.text in asked[-1].text

    async def _delivered(self, key: str) -> None:
        async with asyncio.timeout(DELIVERED_WITHIN_S):
            while True:
                row = await self._store.outbox.find(key)
                if row is None or row.state == "sent":
                    return
                if row.state in ("failed", "expired"):
                    raise HandoffFailed(f"It could not be sent: {row.error}")
                await self._clock.sleep(LOOK_S)


def _kind(home: Address, *, is_thread: bool) -> ChatKind:
    """A thread is everybody's there; without one it is the person's own chat. Telegram's have positive numbers."""
    is_private = home.platform == "telegram" and not home.chat.startswith("-")
    return "group" if is_thread and not is_private else "dm"


async def _new_thread(platform: Platform, home: Address, name: str) -> Address | None:
    if home.thread or not platform.capabilities.has_threads:
        return None
    try:
        async with asyncio.timeout(20):
            return await platform.create_thread(home, name)
    except (PlatformFailure, TimeoutError) as fault:
        log.info("no thread at %s: %s", home, fault)
        return None
