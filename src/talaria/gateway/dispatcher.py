"""What is done about a session's mail: in order, each once. Called for a session by one task at a time.

When a message is likely to go on, and which messages are one. Pure.
What has arrived for each session. Of one that had no mail before it is all there is, and need not be looked up: what
is not on the disk any more by then is refused there, when it is taken.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from talaria.core.clock import Clock
from talaria.core.entries import TurnOutcome
from talaria.core.errors import SessionBusy, StoreUnavailable, TalariaError
from talaria.core.ids import InboxId, SessionId
from talaria.core.messages import User, user
from talaria.gateway.attachments import Attachments
from talaria.gateway.audit import log_broken_turn, log_turn
from talaria.gateway.authorization import Gatekeeper
from talaria.gateway.chat_commands import PlatformChat, is_command
from talaria.gateway.conversations import Conversations, reply_to
from talaria.gateway.delivery import Delivery
from talaria.gateway.envelope import Received, read_received
from talaria.gateway.gateway_state import GatewayState
from talaria.gateway.preview import LivePreview, PreviewUpdater
from talaria.gateway.replies import Replies
from talaria.gateway.resetting import Resetting
from talaria.platforms.base import Sender
from talaria.runtime.chat import Ask, Say
from talaria.runtime.commands import GivenCommand, obey
from talaria.runtime.session import LiveSession
from talaria.runtime.session_pool import SessionPool
from talaria.runtime.turn_runner import Report
from talaria.store.mail import Inbound

QUIET_S = 0.05
"""What was sent together arrives together."""
CONTINUED_S = 0.6
"""For what a client has split, or the next picture of an album."""

Mail = tuple[Inbound, Received]


def quiet_s(mail: Sequence[Mail]) -> float:
    """How long it must have been quiet before these are taken for all."""
    return CONTINUED_S if any(received.arrival.is_continued for _, received in mail) else QUIET_S


def together(mail: Sequence[Mail], is_command: Sequence[bool]) -> Sequence[Mail]:
    """The first messages that one person has said in one place, up to a command or somebody else."""
    joined: list[Mail] = []
    for one, is_other in zip(mail, is_command, strict=True):
        first = joined[0][1] if joined else one[1]
        is_same = one[1].principal == first.principal and one[1].arrival.where == first.arrival.where
        if is_other or not is_same:
            break
        joined.append(one)
    return joined


MOST_KNOWN = 4096
"""Sessions whose mail need not be looked up; beyond that, all of it is, once."""


class Arrivals:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_at: dict[SessionId, float] = {}
        self._known: dict[SessionId, list[Mail]] = {}
        self._unseen: set[SessionId] = set()
        """Sessions for which something has come after the last look."""

    def note(self, row: Inbound, received: Received) -> None:
        self._last_at[row.session] = self._clock.monotonic()
        if (known := self._known.get(row.session)) is not None:
            known.append((row, received))
        else:
            self._unseen.add(row.session)

    def loud_s(self, session: SessionId, quiet_s: float) -> float:
        """How long it takes until nothing has come for so long; not more than 0: it has been quiet."""
        return self._last_at.get(session, 0.0) + quiet_s - self._clock.monotonic()

    def take(self, session: SessionId) -> Sequence[Mail]:
        """Empty: it must be looked up, at once."""
        self._unseen.discard(session)
        return self._known.pop(session, ())

    def note_empty(self, session: SessionId) -> None:
        """It has no mail, but for what has come after the last look."""
        if session in self._unseen:
            return
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[session] = []

    def forget(self, session: SessionId) -> None:
        """Its mail may change by other ways than by arriving."""
        self._known.pop(session, None)

    def note_seen_to(self, session: SessionId) -> None:
        self._last_at.pop(session, None)


STORE_WAIT_S = 5.0
AT_ONCE = 30
"""How many messages are looked at; no more of them become one turn."""
TOLD_AFTER_S = 5.0
HELD = "(This conversation is in use at the terminal. What you send here waits until it is free.)"
ELSEWHERE = "(This was interrupted by work at the terminal. Say it again if it still matters.)"
CUT_OFF = "(This command was cut off by a restart: look whether it took effect, and give it again if not.)"
BROKE = "⚠ This could not be handled, because of a bug; the log has the details."

R = TypeVar("R", Report, Report | None)

log = logging.getLogger(__name__)


class SessionDispatcher:
    def __init__(
        self,
        desk: GatewayState,
        pool: SessionPool,
        conversations: Conversations,
        attachments: Attachments,
        gatekeeper: Gatekeeper,
        delivery: Delivery,
        presenter: PreviewUpdater,
        wake: Callable[[SessionId], None],
    ) -> None:
        """`wake`: that session has mail, too."""
        self._desk = desk
        self._store = desk.host.store
        self._clock = desk.host.clock
        self._pool = pool
        self._conversations = conversations
        self._attachments = attachments
        self._gatekeeper = gatekeeper
        self._delivery = delivery
        self._presenter = presenter
        self._wake = wake
        self.arrivals = Arrivals(self._clock)
        self.resetting = Resetting(desk, pool, delivery, conversations.open)
        self._in_hand: set[InboxId] = set()
        """Mail that somebody in this process is seeing to."""
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
        """What runs is left as it is on the disk, and nothing more is begun: the next start goes on."""
        self._is_closed = True
        for session in self._pool:
            if (live := self._pool.find(session)) is not None:
                live.abandon()

    def send_away(self) -> None:
        """A turn that runs may end; but those who may not speak any more do not steer it."""
        for session in self._pool:
            if (live := self._pool.find(session)) is not None:
                platform = live.setup.platform
                user = live.asker.removeprefix(f"{platform}:")
                if not self._gatekeeper.knows(platform, Sender(user)):
                    live.forget_steering()

    async def activate(self, session: SessionId) -> None:
        """See to its mail until there is none."""
        since = self.held.pop(session, None)
        try:
            while not self._is_draining and not self._is_closed and (mail := await self._mail(session)):
                if await self._see_to(session, mail):
                    self.arrivals.note_empty(session)
                    break
            if (live := self._pool.find(session)) is not None:
                await live.let_go()
            self.arrivals.note_seen_to(session)
        except SessionBusy as fault:
            log.info("mail of session %s waits: %s", session, fault)
            live = self._pool.find(session)
            is_ours = live is not None and live.is_busy
            self.held[session] = None if is_ours else since or self._clock.monotonic()
        except StoreUnavailable as fault:
            log.warning("mail of session %s waits for the store: %s", session, fault)
            await self._clock.sleep(STORE_WAIT_S)
            self.held[session] = None

    async def tell_of_waiting(self) -> None:
        """Whoever waits for a conversation that another process runs is told so after a while."""
        long_ago = self._clock.monotonic() - TOLD_AFTER_S
        due = [session for session, since in self.held.items() if since is not None and since <= long_ago]
        self.held.update(dict.fromkeys(due))
        for session in due:
            await self._tell_of_waiting(session)

    async def _tell_of_waiting(self, session: SessionId) -> None:
        """In each chat once, however many messages wait: the first of them is remembered by the key."""
        waiting = reversed(await self._looked_up(session))
        first = {received.arrival.where: (row, received) for row, received in waiting}
        for where, (row, received) in first.items():
            told = self._conversations.replies(received).parts(f"held:{row.id}", HELD)
            if self._gatekeeper.still(received) and await self._store.outbox.find(told[0].key) is None:
                await self._store.outbox.add(session, told)
                self._delivery.wake(str(where))

    async def _mail(self, session: SessionId) -> Sequence[Mail]:
        """As it is once nothing has come for a moment, of those who may still speak."""
        if (wait_s := self.arrivals.loud_s(session, QUIET_S)) > 0:
            await self._clock.sleep(wait_s)
        self._dropped.pop(session, None)
        mail = self.arrivals.take(session) or await self._looked_up(session)
        judged = [
            (row, self._gatekeeper.still(received))
            for row, received in mail[:AT_ONCE]
            if row.id not in self._in_hand and self._gatekeeper.has_rules(row.platform)
        ]
        if unheard := [row for row, received in judged if received is None]:
            log.info("%d messages for session %s are of people who may not speak any more", len(unheard), session)
            await self.drop(unheard)
            return await self._mail(session)
        return [(row, received) for row, received in judged if received is not None]

    async def drop(self, rows: Sequence[Inbound]) -> int:
        """Done with, unanswered: how many. All at once, for whoever says stop does not want to wait."""
        belong = await asyncio.gather(*map(self._taken, rows))
        for its in {one for one in belong if one is not None}:
            ids = [row.id for row, one in zip(rows, belong, strict=True) if one == its]
            self._dropped.setdefault(its, set()).update(ids)
            await self._store.inbox.finish(its, ids)
        return len(rows) - belong.count(None)

    async def _taken(self, row: Inbound) -> SessionId | None:
        return await self._store.inbox.take(row.id) if row.state == "new" else row.session

    async def _looked_up(self, session: SessionId) -> Sequence[Mail]:
        return [(row, read_received(row.body)) for row in await self._store.inbox.pending(session, AT_ONCE)]

    async def _see_to(self, session: SessionId, mail: Sequence[Mail]) -> bool:
        """True: it is known that nothing more waits."""
        first, received = mail[0]
        taken = [one for one in mail if one[0].state == "taken" and one[0].turn == first.turn]
        try:
            if first.state == "taken":
                await self._go_on(session, taken)
            elif is_command(self._desk.host.commands, received.arrival.text):
                await self.obey(session, first, received)
            else:
                return await self._answer(session, await self._all_of_it(session, mail))
        except TalariaError:
            raise
        except Exception:
            log.exception("mail %s of session %s broke", first.id, session)
            await self._give_up(session, first, received)
        return False

    async def _all_of_it(self, session: SessionId, mail: Sequence[Mail]) -> Sequence[Mail]:
        """With what belongs to it and is still on its way."""
        while True:
            if (wait_s := self.arrivals.loud_s(session, quiet_s(mail))) <= 0:
                commands = [is_command(self._desk.host.commands, one.arrival.text) for _, one in mail]
                return together(mail, commands)
            await self._clock.sleep(wait_s)
            mail = await self._mail(session)

    async def _answer(self, session: SessionId, mail: Sequence[Mail]) -> bool:
        """True: nothing more waits, or the conversation would still be in our hands."""
        said = [received for _, received in mail]
        if not said:  # it was dropped meanwhile
            return False
        if (anew := await self.resetting.begin_anew(session, *mail[0])) is not None:
            self._wake(anew)
            return False
        message = await self._attachments.message(said, lambda: self._conversations.workplace(session, said[0]))
        live = await self._conversations.open(session, said[0])
        if [self._gatekeeper.still(one) for one in said] != said:  # attachments may take minutes
            return False
        if self._dropped.get(session, set()) & {row.id for row, _ in mail}:  # as deleting or /stop may do meanwhile
            return False
        outcome = await self._ask(live, message, said[-1], tuple(row.id for row, _ in mail))
        return outcome == "completed" and not live.is_in_hand

    async def _ask(self, live: LiveSession, message: User, received: Received, ids: tuple[InboxId, ...]) -> TurnOutcome:
        letter = self._conversations.letter(ids, received, live)
        report = await self._run(live, received, lambda showing: live.ask(message, showing, letter))
        return report.outcome

    async def _run(self, live: LiveSession, received: Received, turn: Callable[[LivePreview], Awaitable[R]]) -> R:
        """A turn: shown while it runs, counted and logged when it has ended."""
        began, person, where = self._clock.monotonic(), received.principal.person, received.arrival.where
        try:
            with self._shown(live, received) as showing:
                report = await turn(showing)
        except TalariaError:  # there was none
            raise
        except Exception as fault:
            log_broken_turn(live.id, fault, person, where, self._clock.monotonic() - began)
            raise
        if report is not None:
            self._desk.stopped.pop(report.turn, None)
            self._desk.counts.turn_ended(report.outcome)
            log_turn(report, person, where, self._clock.monotonic() - began)
        return report

    @contextmanager
    def _shown(self, live: LiveSession, received: Received) -> Generator[LivePreview]:
        where = received.arrival.where
        showing = self._presenter.begin(where, live.id, reply_to(received))
        live.terms = self._desk.host.terms()
        try:
            yield showing
        finally:
            self._pool.touch(live.id)
            self._presenter.end(showing)

    async def _go_on(self, session: SessionId, mail: Sequence[Mail]) -> None:
        """With what a crash has left."""
        ids = tuple(row.id for row, _ in mail)
        received = mail[-1][1]
        replies = self._conversations.replies(received)
        if mail[0][0].turn is None:
            await self._finish(session, ids, replies, CUT_OFF)
            return
        row = await self._store.sessions.get(session)
        if row is None or row.open_turn != mail[0][0].turn:
            await self._finish(session, ids, replies, ELSEWHERE)
            return
        live = await self._conversations.open(session, received)
        letter = self._conversations.letter(ids, received, live)
        await self._run(live, received, lambda showing: live.resume(showing, letter))

    async def obey(self, session: SessionId, row: Inbound, received: Received) -> None:
        """A command. Taken first, so that a crash cannot do it twice."""
        self.arrivals.forget(session)  # it may drop what waits, or move it
        self._in_hand.add(row.id)
        try:
            if await self._store.inbox.take(row.id) is None:
                return
            outcome = await self._obeyed(session, received)
            bound = await self._switched(session, received)
            match outcome:
                case Ask(text):
                    live = await self._conversations.open(bound, received)
                    await self._ask(live, user(text), received, (row.id,))
                case Say(text):
                    await self._finish(session, (row.id,), self._conversations.replies(received), text)
                case _:
                    await self._finish(session, (row.id,), self._conversations.replies(received), "")
        finally:
            self._in_hand.discard(row.id)
            live = self._pool.find(session)
            if live is not None and live.is_in_hand and not live.is_busy:  # a turn ended meanwhile, and kept it for us
                self._wake(session)

    async def _obeyed(self, session: SessionId, received: Received) -> Say | Ask | None:
        text = received.arrival.text
        given = self._desk.host.commands.parse(text, "platform")
        if isinstance(given, GivenCommand) and given.command.is_for_admins and not received.principal.is_admin:
            return Say(f"/{given.command.name} is for admins.")
        live = await self._conversations.open(session, received)
        chat = PlatformChat(self._desk.host, received, live, self._conversations.open)
        try:
            with live.serving(self._conversations.asker(session, received)):
                outcome = await obey(text, chat, self._desk.host.commands, "platform")
        except TalariaError as fault:
            return Say(str(fault))
        return outcome if isinstance(outcome, Say | Ask) else None

    async def _switched(self, session: SessionId, received: Received) -> SessionId:
        """The conversation of the chat now: a command may have changed it, and then what waits has gone there."""
        bound = await self._bound(received, session)
        if bound != session:
            self.arrivals.forget(bound)
            self.resetting.take_up(bound)
            self._pool.release(session)
            self._wake(bound)
        return bound

    async def _bound(self, received: Received, session: SessionId) -> SessionId:
        bound = await self._store.chats.get(received.key)
        return bound.session if bound else session

    async def _finish(self, session: SessionId, ids: tuple[InboxId, ...], replies: Replies, text: str) -> None:
        rows = replies.parts(f"mail:{session}:{ids[0]}", text) if text else ()
        await self._store.inbox.finish(session, ids, rows)
        if rows:
            self._delivery.wake(str(replies.where))

    async def _give_up(self, session: SessionId, row: Inbound, received: Received) -> None:
        """So that one message cannot hold up all others."""
        for left in await self._store.inbox.pending(session):
            if left.id == row.id:
                await self._taken(left)
                await self._finish(session, (row.id,), self._conversations.replies(received), BROKE)
