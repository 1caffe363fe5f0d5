"""What is done about a session's mail: in order, each once. Called for a session by one task at a time."""

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
from talaria.gateway.authorization import Gatekeeper
from talaria.gateway.chat_commands import PlatformChat
from talaria.gateway.conversations import Conversations, SessionResets, reply_to
from talaria.gateway.delivery import Delivery
from talaria.gateway.envelope import Mail, Received, read_received
from talaria.gateway.gateway_state import GatewayState
from talaria.gateway.preview import LivePreview, PreviewUpdater
from talaria.gateway.replies import Replies
from talaria.platforms.base import Sender
from talaria.runtime.commands import Ask, GivenCommand, Outcome, Say, run_command
from talaria.runtime.session import LiveSession
from talaria.runtime.session_config import TurnMail, TurnOptions
from talaria.runtime.session_pool import SessionPool
from talaria.runtime.turn_runner import Report
from talaria.store.chat_ports import Inbound

QUIET_S = 0.05
"""What was sent together arrives together."""
CONTINUED_S = 0.6
"""For what a client has split, or the next picture of an album."""
MAX_KNOWN = 4096
"""Sessions whose mail need not be looked up; beyond that, all of it is, once."""
STORE_WAIT_S = 5.0
AT_ONCE = 30
"""How many messages are looked at; no more of them become one turn."""
NOTIFY_AFTER_S = 5.0
HELD = "(This conversation is in use at the terminal. Your message waits until it is free.)"
ELSEWHERE = "(Your message was interrupted by work at the terminal. Send it again if it still matters.)"
CUT_OFF = "(A restart cut this command off. Check whether it took effect; if not, send it again.)"
BROKE = "⚠ This failed because of a bug. The details are in the log."

Start = Callable[[LivePreview, TurnMail, TurnOptions], Awaitable[Report | None]]

log = logging.getLogger(__name__)


def quiet_s(mail: Sequence[Mail]) -> float:
    """How long nothing more must have come before these are taken for all."""
    return CONTINUED_S if any(one.received.arrival.is_continued for one in mail) else QUIET_S


def first_group(mail: Sequence[Mail]) -> Sequence[Mail]:
    """The first messages that one person has sent in one place, up to a command or somebody else's."""
    group: list[Mail] = []
    for one in mail:
        first = group[0].received if group else one.received
        is_same = one.received.principal == first.principal and one.received.arrival.where == first.arrival.where
        if one.is_command or not is_same:
            break
        group.append(one)
    return group


class Arrivals:
    """What has arrived for each session. Where there was no mail before it, that is all, and need not be looked up:
    what is not on the disk any more by then is refused there, when it is taken."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_at: dict[SessionId, float] = {}
        self._known: dict[SessionId, list[Mail]] = {}
        self._unseen: set[SessionId] = set()
        """Sessions for which something has come after the last look."""

    def note(self, mail: Mail) -> None:
        session = mail.row.session
        self._last_at[session] = self._clock.monotonic()
        if (known := self._known.get(session)) is not None:
            known.append(mail)
        else:
            self._unseen.add(session)

    def wait_s(self, session: SessionId, quiet_s: float) -> float:
        """How long until nothing has come for `quiet_s`; not more than 0: it has been quiet."""
        return self._last_at.get(session, 0.0) + quiet_s - self._clock.monotonic()

    def take(self, session: SessionId) -> Sequence[Mail]:
        """Empty: it must be looked up, at once."""
        self._unseen.discard(session)
        return self._known.pop(session, ())

    def note_empty(self, session: SessionId) -> None:
        """It has no mail, but for what has come after the last look."""
        if session in self._unseen:
            return
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[session] = []

    def forget(self, session: SessionId) -> None:
        """Its mail may change by other ways than by arriving."""
        self._known.pop(session, None)

    def forget_all(self) -> None:
        """Commands may have changed: what waits is parsed again."""
        self._known.clear()

    def forget_time(self, session: SessionId) -> None:
        self._last_at.pop(session, None)


class SessionDispatcher:
    def __init__(
        self,
        state: GatewayState,
        pool: SessionPool,
        conversations: Conversations,
        attachments: Attachments,
        gatekeeper: Gatekeeper,
        delivery: Delivery,
        previews: PreviewUpdater,
        wake: Callable[[SessionId], None],
    ) -> None:
        """`wake`: that session has mail, too."""
        self._state = state
        self._store = state.host.store
        self._clock = state.host.clock
        self._pool = pool
        self._conversations = conversations
        self._attachments = attachments
        self._gatekeeper = gatekeeper
        self._delivery = delivery
        self._previews = previews
        self._wake = wake
        self.arrivals = Arrivals(self._clock)
        self.resets = SessionResets(state, pool, delivery, conversations.open)
        self._in_progress: set[InboxId] = set()
        """Commands that this process is running."""
        self._dropped: dict[SessionId, set[InboxId]] = {}
        """Mail that was dropped since the last look at that of its session."""
        self._is_closed = False
        self._is_draining = False
        self.held: dict[SessionId, float | None] = {}
        """Sessions with mail that has to wait, and since when that is because another process runs them; None: that is
        not why, or those who wait have been told."""

    def drain(self) -> None:
        """No turn is begun any more; those that run may end."""
        self._is_draining = True

    def close(self) -> None:
        """What runs is left as it is on the disk, and nothing more is begun: the next start resumes it."""
        self._is_closed = True
        for session in self._pool:
            if (live := self._pool.find(session)) is not None and live.running is not None:
                live.running.abandon()

    def forget_unauthorized_steering(self) -> None:
        """A turn that runs may end; but those who may not write any more do not steer it."""
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

    async def notify_waiting(self) -> None:
        """Whoever waits for a conversation that another process runs is told so after a while: in each chat once,
        however many messages wait; the key of that notice names the first of them."""
        long_ago = self._clock.monotonic() - NOTIFY_AFTER_S
        due = [session for session, since in self.held.items() if since is not None and since <= long_ago]
        self.held.update(dict.fromkeys(due))
        for session in due:
            first = {one.received.arrival.where: one for one in reversed(await self._read_pending(session))}
            for where, one in first.items():
                notice = self._conversations.replies_to(one.received).parts(f"held:{one.row.id}", HELD)
                is_new = await self._store.outbox.find(notice[0].key) is None
                if is_new and self._gatekeeper.recheck(one.received):
                    await self._store.outbox.add(session, notice)
                    self._delivery.wake(str(where))

    async def drop(self, rows: Sequence[Inbound]) -> int:
        """Done with, unanswered: how many. All at once, for whoever says stop does not want to wait."""
        sessions = await asyncio.gather(*map(self._take, rows))
        for session in {one for one in sessions if one is not None}:
            ids = [row.id for row, one in zip(rows, sessions, strict=True) if one == session]
            self._dropped.setdefault(session, set()).update(ids)
            await self._store.inbox.finish(session, ids)
        return len(rows) - sessions.count(None)

    async def _take(self, row: Inbound) -> SessionId | None:
        return await self._store.inbox.take(row.id) if row.state == "new" else row.session

    async def _next_mail(self, session: SessionId) -> Sequence[Mail]:
        """As it is once nothing has come for a moment, of those who may still write."""
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
            log.info("%d messages for session %s are of people who may not write any more", len(refused), session)
            await self.drop(refused)

    async def _read_pending(self, session: SessionId) -> Sequence[Mail]:
        parse = self._state.host.commands.parse
        pending = [(row, read_received(row.body)) for row in await self._store.inbox.list_pending(session, AT_ONCE)]
        return [Mail(row, received, parse(received.arrival.text, "platform")) for row, received in pending]

    async def _handle(self, session: SessionId, mail: Sequence[Mail]) -> bool:
        """True: it is known that nothing more waits."""
        first = mail[0]
        try:
            if first.row.state == "taken":
                turn = first.row.turn
                await self._resume(session, [one for one in mail if one.row.state == "taken" and one.row.turn == turn])
            elif first.is_command:
                await self.run_command(session, first)
            else:
                return await self._answer(session, await self._gather(session, mail))
        except TalariaError:
            raise
        except Exception:
            log.exception("mail %s of session %s broke", first.row.id, session)
            for left in await self._store.inbox.list_pending(session):
                if left.id == first.row.id:  # one message must not hold up all others
                    await self._take(left)
                    await self._finish(session, (left.id,), self._conversations.replies_to(first.received), BROKE)
        return False

    async def _gather(self, session: SessionId, mail: Sequence[Mail]) -> Sequence[Mail]:
        """With what belongs to it and is still on its way."""
        while (wait_s := self.arrivals.wait_s(session, quiet_s(mail))) > 0:
            await self._clock.sleep(wait_s)
            mail = await self._next_mail(session)
        return first_group(mail)

    async def _answer(self, session: SessionId, mail: Sequence[Mail]) -> bool:
        """True: nothing more waits, or the session would still hold its lease."""
        said = [one.received for one in mail]
        if not said:  # it was dropped meanwhile
            return False
        if (new := await self.resets.start_new_if_over(session, mail[0])) is not None:
            self._wake(new)
            return False
        message = await self._attachments.message(mail, lambda: self._conversations.find_folder(session, said[0]))
        live = await self._conversations.open(session, said[0])
        ids = tuple(one.row.id for one in mail)
        # Attachments may take minutes; deleting a message, /stop or a change of the rules may come meanwhile.
        if self._dropped.get(session, set()).intersection(ids) or [*map(self._gatekeeper.recheck, said)] != said:
            return False
        report = await self._run_turn(live, said[-1], ids, partial(live.ask, message))
        return report is not None and report.outcome == "completed" and not live.is_in_use

    async def _run_turn(
        self, live: LiveSession, received: Received, ids: tuple[InboxId, ...], start: Start
    ) -> Report | None:
        """Shown while it runs; its replies are sent when its last commit is done; then it is counted and logged."""
        began, person, where = self._clock.monotonic(), received.principal.person, received.arrival.where
        preview = self._previews.begin(where, live.id, reply_to(received))

        def deliver() -> None:
            if self._previews.end(preview):
                self._delivery.wake(str(where), ends_draft=True)

        mail = self._conversations.turn_mail(ids, received, live, deliver)
        try:
            report = await start(preview, mail, self._state.host.turn_options())
        except TalariaError:  # there was none
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

    async def _resume(self, session: SessionId, mail: Sequence[Mail]) -> None:
        """With what a crash has left."""
        turn, received = mail[0].row.turn, mail[-1].received
        ids, replies = tuple(one.row.id for one in mail), self._conversations.replies_to(received)
        if turn is None:
            await self._finish(session, ids, replies, CUT_OFF)
            return
        row = await self._store.sessions.get(session)
        if row is None or row.open_turn != turn:
            await self._finish(session, ids, replies, ELSEWHERE)
            return
        live = await self._conversations.open(session, received)
        await self._run_turn(live, received, ids, live.resume)

    async def run_command(self, session: SessionId, mail: Mail) -> None:
        """Taken first, so that a crash cannot run it twice."""
        row, received = mail.row, mail.received
        self.arrivals.forget(session)  # it may drop what waits, or move it
        self._in_progress.add(row.id)
        try:
            if await self._store.inbox.take(row.id) is None:
                return
            outcome = await self._run_command(session, mail)
            chat = await self._store.chats.get(received.key)
            bound = chat.session if chat else session
            if bound != session:  # the chat is about another conversation now, and what waits has gone there
                self.arrivals.forget(bound)
                self.resets.note_resumed(bound)
                self._pool.evict(session)
                self._wake(bound)
            if isinstance(outcome, Ask):
                live = await self._conversations.open(bound, received)
                await self._run_turn(live, received, (row.id,), partial(live.ask, user(outcome.text)))
            else:
                text = outcome.text if isinstance(outcome, Say) else ""
                await self._finish(session, (row.id,), self._conversations.replies_to(received), text)
        finally:
            self._in_progress.discard(row.id)
            live = self._pool.find(session)
            if live is not None and live.is_in_use and not live.is_busy:  # a turn ended meanwhile: its lease is for us
                self._wake(session)

    async def _run_command(self, session: SessionId, mail: Mail) -> Outcome:
        given, received = mail.given, mail.received
        if isinstance(given, GivenCommand) and given.command.is_for_admins and not received.principal.is_admin:
            return Say(f"Only admins can use /{given.command.name}.")
        live = await self._conversations.open(session, received)
        chat = PlatformChat(self._state.host, received, live, self._conversations.open)
        try:
            with live.as_current(self._conversations.asker(session, received)):
                return await run_command(given, chat)
        except TalariaError as fault:
            return Say(str(fault))

    async def _finish(self, session: SessionId, ids: tuple[InboxId, ...], replies: Replies, text: str) -> None:
        rows = replies.parts(f"mail:{session}:{ids[0]}", text) if text else ()
        await self._store.inbox.finish(session, ids, rows)
        if rows:
            self._delivery.wake(str(replies.where))
