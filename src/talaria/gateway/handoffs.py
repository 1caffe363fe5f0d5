"""Moves conversations from the terminal to a platform: the terminal's request, and the gateway's side of it. One
gateway claims each request, greets on the platform with all its context, and completes the handoff, or fails it with a
reason.

The turns that greet have ids made from the request's: after a crash the next gateway finds what was done for this
request, and continues from there. A failure, or an answer that comes too late, undoes all of it.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from talaria.core.aio import complete
from talaria.core.clock import Clock
from talaria.core.entries import TurnEnded, TurnStarted, Undone
from talaria.core.errors import SessionBusy, TalariaError, UserFacing
from talaria.core.ids import SessionId, TurnId
from talaria.core.messages import user
from talaria.gateway.audit import log_handoff, log_turn
from talaria.gateway.conversations import Conversations
from talaria.gateway.delivery import Delivery
from talaria.gateway.dispatcher import SessionDispatcher
from talaria.gateway.envelope import OutgoingBody, Principal, Received, encode_body, session_key
from talaria.gateway.gateway_state import GatewayState
from talaria.gateway.replies import EXPIRES_AFTER_S
from talaria.platforms.base import Address, Arrival, ChatInfo, Platform, PlatformFailure, Sender
from talaria.runtime.placement import Placement
from talaria.runtime.session import LiveSession
from talaria.store.base import Session, Store
from talaria.store.chat_ports import HandoffRequest, Handoffs, Outgoing

POLL_S = 0.5
PATIENCE_S = 60.0
NOBODY = "It timed out: no gateway picked it up within 60 s. Is one running? (talaria gateway status)"
TOO_SLOW = "It timed out: a gateway picked it up, but did not finish within 60 s. The conversation stays here."
GIVEN_UP = "The person stopped waiting."

FIRST_LOOK_S = 5.0
EVERY_S = 2.0
DELIVERED_WITHIN_S = 45.0
LOOK_S = 0.2
THREAD_S = 20.0
SYSTEM = "system:handoff"
GREETING = (
    "[The person has just moved this conversation from their terminal to {place}. "
    "Say in a few sentences where you stand and what comes next. Do not call tools for that.]"
)

log = logging.getLogger(__name__)


class HandoffFailed(UserFacing):
    """The conversation stays where it is."""


async def hand_off(store: Store, clock: Clock, session: SessionId, platform: str) -> None:
    """Returns once the conversation is there. Raises `HandoffFailed` with the reason. If cancelled, it is withdrawn."""
    row = await store.sessions.get(session)
    if row is not None and row.open_turn is not None:
        raise HandoffFailed("A turn of this conversation is running, here or elsewhere. Wait until it ends.")
    handoffs = store.handoffs
    if not await handoffs.request(session, platform):
        raise HandoffFailed("This conversation is already being handed over.")
    try:
        deadline = clock.monotonic() + PATIENCE_S
        while clock.monotonic() < deadline:
            await clock.sleep(POLL_S)
            if await _has_arrived(handoffs, session):
                return
        reason = NOBODY if await handoffs.find_running(session) is None else TOO_SLOW
        has_failed = await handoffs.fail(session, reason) or not await _has_arrived(handoffs, session)
    except asyncio.CancelledError:
        await complete(handoffs.fail(session, GIVEN_UP))
        raise
    if has_failed:
        raise HandoffFailed(reason)


async def _has_arrived(handoffs: Handoffs, session: SessionId) -> bool:
    found = await handoffs.state(session)
    if found is not None and found.state == "failed":
        raise HandoffFailed(f"The handoff failed: {found.error}")
    return found is not None and found.state == "completed"


class HandoffRejected(UserFacing):
    """`str()` of it is the reason that is stored."""


class _Withdrawn(HandoffRejected):
    """The terminal has stopped waiting, and said that the handoff failed, and why."""


class _Turn(msgspec.Struct, frozen=True):
    """A turn that greets for a request."""

    id: TurnId
    end: TurnEnded | None = None


class HandoffWatcher:
    def __init__(
        self,
        state: GatewayState,
        conversations: Conversations,
        dispatcher: SessionDispatcher,
        delivery: Delivery,
        placement: Placement,
    ) -> None:
        self._state = state
        self._store = state.host.store
        self._clock = state.host.clock
        self._links = state.links
        self._gatekeeper = state.gatekeeper
        self._conversations = conversations
        self._dispatcher = dispatcher
        self._pool = state.pool
        self._delivery = delivery
        self._placement = placement
        self._running: dict[SessionId, asyncio.Task[None]] = {}
        self._greeting: dict[SessionId, LiveSession] = {}
        self._destinations: dict[str, asyncio.Lock] = {}
        """By platform: two conversations must not be bound to one chat at the same time."""
        self._unfinished: dict[SessionId, tuple[str, str]] = {}
        """Failures that could not be cleaned up yet: the ids of their requests, and the reasons."""
        self._is_closed = False

    async def run(self) -> None:
        await self._store.handoffs.reclaim()
        await self._clock.sleep(FIRST_LOOK_S)
        async with asyncio.TaskGroup() as group:
            while True:
                try:
                    for session, live in tuple(self._greeting.items()):
                        if await self._store.handoffs.find_running(session) is None and live.running is not None:
                            live.running.interrupt()
                    if not self._is_closed:
                        for session in await self._store.handoffs.list_pending():
                            if session not in self._running and await self._store.handoffs.claim(session):
                                task = group.create_task(self._serve(session), name=f"handoff {session}")
                                self._running[session] = task
                                task.add_done_callback(lambda _, session=session: self._running.pop(session, None))
                        for session, request in (await self._store.handoffs.list_unsettled()).items():
                            if session not in self._running:
                                await self._clean_up(session, request)
                        for session, (request, reason) in tuple(self._unfinished.items()):
                            await self._clean_up(session, request, reason)
                except TalariaError as fault:
                    log.warning("handoffs wait: %s", fault)
                await self._clock.sleep(EVERY_S)

    async def close(self, grace_s: float) -> None:
        """Begin no handoff; running ones may end. Those that do not are resumed from the disk at the next start."""
        self._is_closed = True
        if running := tuple(self._running.values()):
            await asyncio.wait(running, timeout=grace_s)
        for live in self._greeting.values():
            if live.running is not None:
                live.running.abandon()
        if running := tuple(self._running.values()):
            await asyncio.wait(running, timeout=LOOK_S)

    async def _serve(self, session: SessionId) -> None:
        """One handoff. Whatever happens, the waiting terminal learns how it ended."""
        began_at, failure = self._clock.monotonic(), None
        request: HandoffRequest | None = None
        try:
            request = await self._store.handoffs.find_running(session)
            if request is not None:  # else it was withdrawn just as it was claimed
                received = await self._bind(session, request)
                await self._greet(session, request, received)
        except (TalariaError, TimeoutError) as fault:
            failure = fault
        except Exception as fault:  # the person waits for an answer, whatever it is
            failure = fault
            log.exception("handoff of session %s broke", session)
        finally:
            self._greeting.pop(session, None)
        if failure is not None and self._is_closed:
            return
        if failure is not None:
            is_bug = not isinstance(failure, TalariaError | TimeoutError)
            reason = f"a bug: {failure!r}" if is_bug else str(failure) or "it took too long"
            await self._clean_up(session, request.id if request else "", reason)
        if request is not None:
            outcome = "failed" if failure else "completed"
            log_handoff(session, request.platform, outcome, self._clock.monotonic() - began_at, failure)

    async def _bind(self, session: SessionId, request: HandoffRequest) -> Received:
        """Bind the chats at the destination to the conversation. Returns a message as if somebody had written there."""
        row, platform = await self._store.sessions.get(session), self._links.find(request.platform)
        if row is None or not request.platform:
            raise HandoffRejected("No platform was named.")
        if platform is None:
            raise HandoffRejected(f"{request.platform} is not connected.")
        async with self._destinations.setdefault(platform.name, asyncio.Lock()):
            received, keys = await self._destination(platform, row, request)
            before = [await self._store.chats.get(key) for key in keys]
            if not await self._store.handoffs.bind(session, keys, str(received.arrival.where)):
                raise _Withdrawn("It was withdrawn.")
        for one in (session, *(chat.session for chat in before if chat is not None)):
            self._dispatcher.arrivals.forget(one)
            self._pool.evict(one)
        return received

    async def _destination(
        self, platform: Platform, row: Session, request: HandoffRequest
    ) -> tuple[Received, Sequence[str]]:
        """Where it goes, and the keys under which the next messages there will find their conversation."""
        home = await self._state.home_channel(platform.name)
        if home is None:
            raise HandoffRejected(f"{platform.name} has no home channel. Send /sethome in the chat that should be it.")
        try:
            info = await platform.chat_info(home)
        except PlatformFailure as fault:
            raise HandoffRejected(str(fault)) from fault
        where = Address.parse(request.address) if request.address else await self._thread(platform, home, info, row)
        where, rules = where or info.where, self._state.key_rules
        people: Sequence[str]
        if info.kind == "dm":
            people = (info.person or where.chat,)
        elif session_key(where, "group", SYSTEM, rules) == session_key(where, "group", "", rules):
            people = ("",)  # everybody there has this conversation together
        else:
            admins = self._gatekeeper.admins(platform.name)
            if not admins:
                raise HandoffRejected(
                    f"Everybody in {where} has a conversation of their own, and it is not known which is yours:"
                    " send /sethome there."
                )
            chosen_by = await self._store.chats.home_person(platform.name)
            people = (chosen_by,) if chosen_by in admins else sorted(admins)
        keys = [session_key(where, info.kind, person, rules) for person in people]
        user = people[0] if len(people) == 1 and people[0] else SYSTEM
        is_admin = user in self._gatekeeper.admins(platform.name)
        principal = Principal(platform.name, user, "Handoff", is_admin=is_admin)
        arrival = Arrival("", where, info.kind, Sender(user, principal.name))  # there is no message to reply to
        return Received(arrival, principal, keys[0]), keys

    async def _thread(self, platform: Platform, home: Address, info: ChatInfo, row: Session) -> Address | None:
        """The thread that the conversation already has there, or a new one; None: the home channel itself."""
        if home.thread or not platform.capabilities.has_threads:
            return None
        for chat in await self._store.chats.list_for(row.id):
            known = Address.parse(chat.address) if chat.address else info.where
            if known.thread and known != info.where and known.chat == home.chat and known.platform == home.platform:
                return known
        try:
            async with asyncio.timeout(THREAD_S):
                return await platform.create_thread(home, f"Talaria — {row.title or row.id[:8]}")
        except (PlatformFailure, TimeoutError) as fault:
            log.info("no thread in %s: %s", home, fault or "it took too long")
            return None

    async def _greet(self, session: SessionId, request: HandoffRequest, received: Received) -> None:
        """A real turn, whose answer is sent like any other: once for each request, even after a crash."""
        turns = await self._turns(session, request.id)
        turn = turns[-1] if turns else None
        if turn is None or turn.end is None:
            id = turn.id if turn else TurnId(f"handoff_{request.id}_{len(turns)}")
            live = self._greeting[session] = await self._conversations.open(session, received)
            began_at, options = self._clock.monotonic(), self._state.host.turn_options()
            wake = partial(self._delivery.wake, str(received.arrival.where))
            mail = self._conversations.turn_mail((), received, live, wake, turn=id, is_asking=False)
            report = await live.resume(mail=mail, options=options) if turn else None
            message = user(GREETING.format(place=request.platform), author="host")
            report = report or await live.ask(message, mail=mail, options=options)
            del self._greeting[session]
            log_turn(report, received.principal.person, received.arrival.where, self._clock.monotonic() - began_at)
            self._pool.touch(session)
            turn = _Turn(report.turn, TurnEnded(report.turn, report.outcome, error=str(report.error or "")))
        if turn.end is not None and turn.end.outcome == "failed":
            raise HandoffRejected(turn.end.error or "The model did not answer.")
        async with asyncio.timeout(DELIVERED_WITHIN_S):
            while True:
                rows = [row for row in await self._store.outbox.rows(session) if row.key.startswith(f"{turn.id}:")]
                if failed := next((row for row in rows if row.state in ("failed", "expired")), None):
                    raise HandoffRejected(f"It could not be sent: {failed.error}")
                if all(row.state == "sent" for row in rows):
                    break
                if await self._store.handoffs.find_running(session) is None:
                    raise _Withdrawn("It came too late.")
                await self._clock.sleep(LOOK_S)
        if not await self._store.handoffs.complete(session):
            raise _Withdrawn("It came too late.")

    async def _turns(self, session: SessionId, request: str) -> Sequence[_Turn]:
        """The turns that greeted for this request and were not undone, in order."""
        found: dict[TurnId, _Turn] = {}
        for recorded in await self._store.journal.entries(session):
            match recorded.entry:
                case TurnStarted(turn) if turn.startswith(f"handoff_{request}_"):
                    found[turn] = _Turn(turn)
                case TurnEnded(turn) as end if turn in found:
                    found[turn] = _Turn(turn, end)
                case Undone(turn):
                    found.pop(turn, None)
                case _:
                    pass
        return tuple(found.values())

    async def _clean_up(self, session: SessionId, request: str, reason: str = "") -> None:
        """After a failure, for `reason` or for one that is already on the disk: take back the greeting, in the chat as
        far as it was sent, and in the conversation."""
        self._unfinished.pop(session, None)
        try:
            row, turns = await self._store.sessions.get(session), await self._turns(session, request)
            if row is not None and turns:
                turn, expires_at = turns[-1].id, self._clock.now() + EXPIRES_AFTER_S
                shown = [one for one in await self._store.outbox.rows(session) if one.key.startswith(f"{turn}:")]
                nothing = [Outgoing(one.target, encode_body(OutgoingBody()), one.key, expires_at) for one in shown]
                await self._store.outbox.add(session, nothing)
                for one in shown:
                    self._delivery.wake(one.target)
                self._pool.evict(session)
                host = self._state.host
                live = host.live_session(session, row, host.session_config(cwd=Path(row.cwd), origin="platform"))
                try:
                    await live.undo(only=turn)
                except SessionBusy:  # somebody has already continued it
                    log.info("the greeting stays in session %s: another turn came after it", session)
            if reason:
                await self._store.handoffs.fail(session, reason)
            await self._store.handoffs.settle(session)
            for waiting in await self._store.inbox.list_sessions():  # chats are bound back, and their mail with them
                self._dispatcher.arrivals.forget(waiting)
                self._placement.wake(waiting)
        except TalariaError as fault:
            log.warning("a failed handoff of session %s will be cleaned up later: %s", session, fault)
            self._unfinished[session] = (request, reason)
        except Exception:
            log.exception("a failed handoff of session %s could not be cleaned up", session)
