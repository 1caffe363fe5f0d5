"""Handles a session's mail in order, each message once. One task at a time calls it for a session."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from talaria.core.clock import Clock
from talaria.core.errors import SessionBusy, StoreUnavailable, TalariaError
from talaria.core.ids import InboxId, SessionId
from talaria.core.messages import user
from talaria.gateway.attachments import Attachments
from talaria.gateway.audit import log_broken_turn, log_turn
from talaria.gateway.chat_commands import PlatformChat
from talaria.gateway.conversations import Conversations, SessionResets, reply_to
from talaria.gateway.delivery import Delivery
from talaria.gateway.envelope import Mail, Received, parse_arrival, read_received
from talaria.gateway.gateway_state import GatewayState
from talaria.gateway.preview import PreviewUpdater
from talaria.gateway.replies import Replies
from talaria.platforms.base import Sender
from talaria.runtime.commands import Ask, GivenCommand, Outcome, Say, run_command
from talaria.runtime.lease import Observer
from talaria.runtime.placement import Placement
from talaria.runtime.session import LiveSession, ignore
from talaria.runtime.session_config import Asker, TurnMail, TurnOptions
from talaria.runtime.turn_runner import Report
from talaria.runtime.turn_signals import SENDER_FIRST_S
from talaria.store.chat_ports import Inbound

QUIET_S = 0.05
"""Messages that were sent together arrive within this time."""
CONTINUED_S = 0.6
"""For the next part of a text that the client split, or the next picture of an album."""
MAX_KNOWN = 4096
"""Sessions whose mail need not be read from the store. When there are more, all is read again, once."""
STORE_WAIT_S = 5.0
AT_ONCE = 30
"""How many messages are read, so no more of them become one turn."""
NOTIFY_AFTER_S = 5.0
HELD = "(This conversation is in use at the terminal. Your message waits until it is free.)"
ELSEWHERE = "(Your message was interrupted by work at the terminal. Send it again if it still matters.)"
CUT_OFF = "(A restart cut this command off. Check whether it took effect; if not, send it again.)"
BROKE = "⚠ This failed because of a bug. The details are in the log."

log = logging.getLogger(__name__)


def quiet_s(mail: Sequence[Mail]) -> float:
    """How long nothing more may arrive before these messages count as complete."""
    return CONTINUED_S if any(one.received.arrival.is_continued for one in mail) else QUIET_S


def first_group(mail: Sequence[Mail]) -> Sequence[Mail]:
    """The first messages that one person sent in one place, up to a command or somebody else's message."""
    group: list[Mail] = []
    for one in mail:
        first = group[0].received if group else one.received
        is_same = one.received.principal == first.principal and one.received.arrival.where == first.arrival.where
        if one.is_command or not is_same or (one.request is not None and group):
            break
        group.append(one)
        if one.request is not None:
            break
    return group


class Arrivals:
    """What has arrived for each session. If a session had no mail before, this is all of it, and the store need not be
    read. A message that is gone from the disk by then is refused there, when it is taken."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_at: dict[SessionId, float] = {}
        self._known: dict[SessionId, list[Mail]] = {}
        self._unseen: set[SessionId] = set()
        """Sessions for which something arrived after the last `take`."""

    def note(self, mail: Mail) -> None:
        session = mail.row.session
        if mail.request is None:
            self._last_at[session] = self._clock.monotonic()
        if (known := self._known.get(session)) is not None:
            known.append(mail)
        else:
            self._unseen.add(session)

    def wait_s(self, session: SessionId, quiet_s: float) -> float:
        """How long until nothing has arrived for `quiet_s`; 0 or less: it has been quiet."""
        return self._last_at.get(session, 0.0) + quiet_s - self._clock.monotonic()

    def take(self, session: SessionId) -> Sequence[Mail]:
        """Empty: read it from the store, at once."""
        self._unseen.discard(session)
        return self._known.pop(session, ())

    def note_empty(self, session: SessionId) -> None:
        """The session has no mail, apart from what arrived after the last `take`."""
        if session in self._unseen:
            return
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[session] = []

    def forget(self, session: SessionId) -> None:
        """Its mail may change in other ways than by arriving."""
        self._known.pop(session, None)

    def forget_all(self) -> None:
        """Commands may have changed: parse again what waits."""
        self._known.clear()

    def forget_time(self, session: SessionId) -> None:
        self._last_at.pop(session, None)


class SessionDispatcher:
    def __init__(
        self,
        state: GatewayState,
        conversations: Conversations,
        delivery: Delivery,
        previews: PreviewUpdater,
        placement: Placement,
    ) -> None:
        self._state = state
        self._store = state.host.store
        self._clock = state.host.clock
        self._pool = state.pool
        self._conversations = conversations
        self._attachments = Attachments(state.links)
        self._gatekeeper = state.gatekeeper
        self._delivery = delivery
        self._previews = previews
        self._placement = placement
        self.arrivals = Arrivals(self._clock)
        self.resets = SessionResets(state, delivery, conversations)
        self._in_progress: set[InboxId] = set()
        """Commands that run now."""
        self._dropped: dict[SessionId, set[InboxId]] = {}
        """Mail that was dropped since its session's mail was last read."""
        self._queued_since: dict[SessionId, float] = {}
        """Sessions that terminals have queued lines in, and since when these could ask them."""
        self._is_closed = False
        self._is_draining = False
        self.held: dict[SessionId, float | None] = {}
        """Sessions whose mail has to wait, and since when another process runs them; None: it waits for something else,
        or its senders have been told."""

    def drain(self) -> None:
        """Begin no new turn; running ones may end."""
        self._is_draining = True

    def close(self) -> None:
        """Begin nothing more, and leave running turns as they are on the disk: the next start resumes them."""
        self._is_closed = True
        for session in self._pool:
            if (live := self._pool.find(session)) is not None and live.running is not None:
                live.running.abandon()

    def forget_unauthorized_steering(self) -> None:
        """Running turns may end, but people who may no longer write do not steer them."""
        for session in self._pool:
            if (live := self._pool.find(session)) is None or live.running is None:
                continue
            platform = live.config.platform
            if not self._gatekeeper.may_write_directly(
                platform, Sender(live.running.asker.removeprefix(f"{platform}:"))
            ):
                live.running.turn.forget_steering()

    async def process(self, session: SessionId) -> None:
        """Handle its mail until there is none."""
        since = self.held.pop(session, None)
        try:
            while not self._is_draining and not self._is_closed and (mail := await self._next_mail(session)):
                if await self._handle(session, mail):
                    self.arrivals.note_empty(session)
                    break
            if (live := self._pool.find(session)) is not None:
                await live.release_lease()
            await self._ask_queued(session)
            self.arrivals.forget_time(session)
        except SessionBusy as fault:
            log.info("mail of session %s waits: %s", session, fault)
            live = self._pool.find(session)
            is_ours = live is not None and live.is_busy
            self.held[session] = None if is_ours else since or self._clock.monotonic()
        except StoreUnavailable as fault:
            log.warning("mail of session %s waits for the store: %s", session, fault)
            await self._clock.sleep(STORE_WAIT_S)
            self.held[session] = None

    async def _ask_queued(self, session: SessionId) -> None:
        """After a turn of ours and the mail: the oldest line that a terminal has queued and not asked itself, as the
        person who queued it. Nobody is asked for permission, and the chat gets no reply."""
        host, queued = self._state.host, self._state.host.links.signals.queued
        if session not in queued or self._is_draining or self._is_closed:
            return
        since = self._queued_since.setdefault(session, self._clock.monotonic())
        lines = [one for one in await self._store.signals.list_new([session]) if one.kind == "queue"]
        if lines and self._clock.monotonic() - since < SENDER_FIRST_S:
            return  # whoever looks for what other processes write wakes the session again
        queued.discard(session)
        del self._queued_since[session]
        if not lines or (live := self._pool.find(session)) is None:
            return
        line, options = lines[0], host.turn_options()
        try:
            report = await live.ask_queued(line, user(line.text), options=options, asker=Asker(line.by))
        except SessionBusy as fault:
            log.info("what is queued in session %s waits: %s", session, fault)
        else:
            if report is not None:
                self._state.counts.count_turn(report.outcome)
        queued.add(session)  # until nothing is found

    async def notify_waiting(self) -> None:
        """After a while, tell people that another process runs their conversation: once in each chat, however many
        messages wait. The notice's key names the first of them."""
        long_ago = self._clock.monotonic() - NOTIFY_AFTER_S
        due = [session for session, since in self.held.items() if since is not None and since <= long_ago]
        self.held.update(dict.fromkeys(due))
        for session in due:
            pending = [one for one in await self._read_pending(session) if one.request is None]
            first = {one.received.arrival.where: one for one in reversed(pending)}
            for where, one in first.items():
                notice = self._conversations.replies_to(one.received).parts(f"held:{one.row.id}", HELD)
                is_new = await self._store.outbox.find(notice[0].key) is None
                if is_new and self._gatekeeper.recheck(one.received):
                    await self._store.outbox.add(session, notice)
                    self._delivery.wake(str(where))

    async def drop(self, rows: Sequence[Inbound]) -> int:
        """Finish them unanswered; how many. All at once, because a person who says stop does not want to wait."""
        sessions = await asyncio.gather(*map(self._take, rows))
        for session in {one for one in sessions if one is not None}:
            ids = [row.id for row, one in zip(rows, sessions, strict=True) if one == session]
            self._dropped.setdefault(session, set()).update(ids)
            await self._store.inbox.finish(session, ids)
        return len(rows) - sessions.count(None)

    async def _take(self, row: Inbound) -> SessionId | None:
        return await self._store.inbox.take(row.id) if row.state == "new" else row.session

    async def _next_mail(self, session: SessionId) -> Sequence[Mail]:
        """What waits once nothing has arrived for a moment, from people who may still write."""
        while True:
            if (wait_s := self.arrivals.wait_s(session, QUIET_S)) > 0:
                await self._clock.sleep(wait_s)
            self._dropped.pop(session, None)
            mail = self.arrivals.take(session) or await self._read_pending(session)
            allowed: list[Mail] = []
            refused: list[Inbound] = []
            for one in mail[:AT_ONCE]:
                if one.row.id in self._in_progress or not self._gatekeeper.has_rules(one.row.platform):
                    continue
                if (received := self._gatekeeper.recheck(one.received)) is not None:
                    allowed.append(one if received == one.received else Mail(one.row, received, one.given))
                else:
                    refused.append(one.row)
            if not refused:
                return allowed
            log.info("%d messages for session %s are from people who may no longer write", len(refused), session)
            await self.drop(refused)

    async def _read_pending(self, session: SessionId) -> Sequence[Mail]:
        commands = self._state.host.commands
        pending = [(row, read_received(row.body)) for row in await self._store.inbox.list_pending(session, AT_ONCE)]
        return [Mail(row, received, parse_arrival(received.arrival, commands)) for row, received in pending]

    async def _handle(self, session: SessionId, mail: Sequence[Mail]) -> bool:
        """True: it is known that nothing more waits."""
        first = mail[0]
        try:
            if first.row.state == "taken":  # a crash left it
                turn = first.row.turn
                left = [one for one in mail if one.row.state == "taken" and one.row.turn == turn]
                ids, received = tuple(one.row.id for one in left), left[-1].received
                row = await self._store.sessions.get(session)
                if turn is not None and row is not None and row.open_turn == turn:
                    live = await self._conversations.open(session, received)
                    await self._run_turn(live, received, ids, live.resume)
                else:
                    replies = self._conversations.replies_to(received)
                    await self._finish(session, ids, replies, CUT_OFF if turn is None else ELSEWHERE)
            elif first.is_command:
                await self.run_command(session, first)
            else:
                return await self._answer(session, mail)
        except TalariaError:
            raise
        except Exception:
            log.exception("mail %s of session %s broke", first.row.id, session)
            for pending in await self._store.inbox.list_pending(session):
                if pending.id == first.row.id:  # one message must not hold up all others
                    await self._take(pending)
                    await self._finish(session, (pending.id,), self._conversations.replies_to(first.received), BROKE)
        return False

    async def _answer(self, session: SessionId, mail: Sequence[Mail]) -> bool:
        """True: nothing more waits, or the session would still hold its lease."""
        is_whole = mail[0].request is not None
        while (
            not is_whole and (wait_s := self.arrivals.wait_s(session, quiet_s(mail))) > 0
        ):  # for the rest of what belongs together
            await self._clock.sleep(wait_s)
            mail = await self._next_mail(session)
        mail = first_group(mail)
        said = [one.received for one in mail]
        if not said:  # it was dropped meanwhile
            return False
        if not is_whole and (new := await self.resets.start_new_if_over(session, mail[0])) is not None:
            self._placement.wake(new)
            return False
        message = await self._attachments.message(mail, lambda: self._conversations.find_folder(session, said[0]))
        live = await self._conversations.open(session, said[0])
        ids = tuple(one.row.id for one in mail)
        # Attachments may take minutes; meanwhile a message may be deleted, or /stop or a change of the rules may come.
        if self._dropped.get(session, set()).intersection(ids) or [*map(self._gatekeeper.recheck, said)] != said:
            return False
        report = await self._run_turn(live, said[-1], ids, partial(live.ask, message))
        return report is not None and report.outcome == "completed" and not live.is_in_use

    async def _run_turn(
        self,
        live: LiveSession,
        received: Received,
        ids: tuple[InboxId, ...],
        start: Callable[[Observer, TurnMail, TurnOptions], Awaitable[Report | None]],
    ) -> Report | None:
        """Show the turn while it runs, send its replies after its last commit, then count and log it."""
        began, person, where = self._clock.monotonic(), received.principal.person, received.arrival.where
        request, observer, deliver = received.arrival.request, ignore, lambda: None
        if request is None:
            observer = preview = self._previews.begin(where, live.id, reply_to(received))

            def deliver() -> None:
                if self._previews.end(preview):
                    self._delivery.wake(str(where), ends_draft=True)

        turn = request.turn if request else None
        mail = self._conversations.turn_mail(ids, received, live, deliver, turn=turn)
        try:
            report = await start(observer, mail, self._state.turn_options(received.principal))
        except TalariaError:  # the turn did not start
            raise
        except Exception as fault:
            log_broken_turn(live.id, fault, person, where, self._clock.monotonic() - began)
            raise
        finally:
            self._pool.touch(live.id)
            deliver()
        if report is not None:
            self._state.stopped.pop(report.turn, None)
            self._state.counts.count_turn(report.outcome)
            log_turn(report, person, where, self._clock.monotonic() - began)
        return report

    async def run_command(self, session: SessionId, mail: Mail) -> None:
        """The message is taken first, so that a crash cannot run its command twice."""
        row, received, given = mail.row, mail.received, mail.given
        self.arrivals.forget(session)  # the command may drop what waits, or move it
        self._in_progress.add(row.id)
        try:
            if await self._store.inbox.take(row.id) is None:
                return
            outcome: Outcome
            if isinstance(given, GivenCommand) and given.command.is_for_admins and not received.principal.is_admin:
                outcome = Say(f"Only admins can use /{given.command.name}.")
            else:
                live = await self._conversations.open(session, received)
                chat = PlatformChat(self._state.host, received, live, self._conversations)
                try:
                    with live.as_current(self._conversations.asker(session, received)):
                        outcome = await run_command(given, chat)
                except TalariaError as fault:
                    outcome = Say(str(fault))
            binding = await self._store.chats.get(received.key)
            bound = binding.session if binding else session
            if bound != session:  # the chat is about another conversation now, and what waits has moved there
                self.arrivals.forget(bound)
                self.resets.note_resumed(bound)
                self._pool.evict(session)
                self._placement.wake(bound)
            if isinstance(outcome, Ask):
                live = await self._conversations.open(bound, received)
                await self._run_turn(live, received, (row.id,), partial(live.ask, user(outcome.text)))
            else:
                text = outcome.text if isinstance(outcome, Say) else ""
                await self._finish(session, (row.id,), self._conversations.replies_to(received), text)
        finally:
            self._in_progress.discard(row.id)
            kept = self._pool.find(session)
            if kept is not None and kept.is_in_use and not kept.is_busy:  # a turn ended meanwhile and left us its lease
                self._placement.wake(session)

    async def _finish(self, session: SessionId, ids: tuple[InboxId, ...], replies: Replies, text: str) -> None:
        rows = replies.parts(f"mail:{session}:{ids[0]}", text) if text and replies.is_wanted else ()
        await self._store.inbox.finish(session, ids, rows)
        if rows:
            self._delivery.wake(str(replies.where))
