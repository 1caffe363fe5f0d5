"""Delivers replies: all chats in parallel, and in each chat one reply after the other.

A row is `started` on the disk before the platform is called. If that call is cut off, nobody knows whether the reply
arrived, and it is never repeated silently.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

import msgspec

from talaria.core.errors import StoreUnavailable
from talaria.core.ids import SessionId
from talaria.gateway.audit import failure_kind, log_undelivered
from talaria.gateway.envelope import NO_SESSION, OutgoingBody, encode_body, read_body, session_key
from talaria.gateway.gateway_state import GatewayState
from talaria.gateway.replies import EXPIRES_AFTER_S, copy_file, describe_unsent_file
from talaria.platforms.base import (
    AccessLost,
    Address,
    ChatMoved,
    NotTaken,
    Platform,
    PlatformFailure,
    Refused,
    Rejected,
    SentId,
    Unsure,
)
from talaria.store.chat_ports import OutboxRow, Outgoing

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
STORE_WAIT_S = 5.0
AT_ONCE = 20
MOST_TRIES = 6
"""For a reply that may have arrived each time."""

log = logging.getLogger(__name__)


class Draft(msgspec.Struct, frozen=True):
    """An answer as far as it is written."""

    session: SessionId
    key: str
    text: str
    reply_to: str
    expires_at: float


class _ShownDraft(msgspec.Struct, frozen=True):
    key: str
    sent: SentId
    text: str


class ChatSender:
    """Sends to one chat."""

    def __init__(self, where: Address, state: GatewayState, wake: Callable[[str], None]) -> None:
        """`wake` is for other chats to which something is due."""
        self._where = where
        self._state = state
        self._outbox = state.host.store.outbox
        self._clock = state.host.clock
        self._links = state.links
        self._wake_chat = wake
        self._draft: Draft | None = None
        self._shown: _ShownDraft | None = None
        self._is_woken = True

    def wake(self, *, ends_draft: bool = False) -> None:
        if ends_draft:
            self._draft = self._shown = None
        self._is_woken = True

    def show(self, draft: Draft) -> None:
        self._draft = draft
        self._is_woken = True

    @property
    def is_needed(self) -> bool:
        """It has work, or knows which draft is shown, which a new sender would not."""
        return self._is_woken or self._shown is not None

    async def serve(self) -> None:
        """Send everything that is due, then the latest draft."""
        while self._is_woken:
            self._is_woken = False
            await self._send_due()
            if (draft := self._draft) is not None:
                self._draft = None
                await self._show(draft)

    async def _send_due(self) -> None:
        is_more_due = True
        while is_more_due:  # if something is added later, `wake` is called
            platform, now = self._links.find(self._where.platform), self._clock.now()
            is_open = platform is not None and self._is_open(platform)

            def is_sendable(row: OutboxRow, is_open: bool = is_open, now: float = now) -> bool:
                """At this moment, without any doubt about it."""
                return is_open and row.expires_at > now and not read_body(row.body).is_draft

            started, rows = await self._outbox.start_due(str(self._where), AT_ONCE, is_sendable)
            if started is not None and platform is not None:
                is_more_due = not await self._send_started(started, platform, is_again=False) or bool(rows)
                continue
            bodies = [(row, read_body(row.body)) for row in rows]
            ready = [(row, body) for row, body in bodies if not body.is_draft or row.expires_at <= now]
            is_more_due = bool(ready) and len(rows) == AT_ONCE
            for row, body in ready:
                platform = await self._wait_until_ready(row.expires_at)
                if platform is None:
                    if not body.is_draft:
                        log_undelivered(row, "expired")
                        await self._report_undelivered(row, "It could not be delivered in time.")
                    await self._outbox.expire(row.id)
                    continue
                may_have_arrived = row.state == "started" and body.edits(row.sent_id) is None
                age_s = self._clock.now() - (row.started_at or row.created_at)
                if may_have_arrived and age_s >= platform.capabilities.dedup_s:
                    # The platform would not notice a duplicate: send it once more, marked, and then never again.
                    if body.is_marked:
                        await self._give_up(row, "Whether it arrived is unknown.", "unsure")
                        continue
                    marked = encode_body(msgspec.structs.replace(body, is_marked=True))
                    await self._outbox.add(row.session, [Outgoing(row.target, marked, row.key, row.expires_at)])
                started = await self._outbox.start(row.id)
                if started is not None and not await self._send_started(started, platform, is_again=may_have_arrived):
                    is_more_due = True
                    break

    async def _wait_until_ready(self, expires_at: float) -> Platform | None:
        """The platform, once something may be sent there; None if `expires_at` comes first."""
        name = self._where.platform
        while (left_s := expires_at - self._clock.now()) > 0:
            if (platform := self._links.find(name)) is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await self._links.wait(name)
            elif (quiet_s := self._links.pause_s(name)) > 0:
                await self._clock.sleep(min(quiet_s, left_s))
            else:
                return platform
        return None

    def _is_open(self, platform: Platform) -> bool:
        """It is still connected, and no other chat has been asked to pause meanwhile."""
        return self._links.find(platform.name) is platform and self._links.pause_s(platform.name) <= 0

    async def _send_started(self, row: OutboxRow, platform: Platform, *, is_again: bool) -> bool:
        """False: look again for what is due; any wait that this needs is over."""
        body = read_body(row.body)
        if not self._is_open(platform):
            if body.is_marked or not is_again:
                await self._outbox.defer(row.id, row.error)
            return False
        message, edited, can = body.outbound(self._where, row.key), body.edits(row.sent_id), platform.capabilities
        try:
            with self._links.call(platform):
                if edited is not None:
                    sent = SentId(edited)
                    if sent and not body.is_empty:
                        await platform.edit(sent, message)
                    elif sent and can.can_delete:
                        await platform.delete(sent, self._where)
                elif body.is_empty:
                    sent = SentId("")
                else:
                    async with copy_file(message, can.max_upload_bytes, body.content) as safe:
                        sent = await platform.send(safe)
                    if is_again and can.can_edit and not body.is_marked and not body.has_file:
                        # If the platform recognised the key, the message there is unchanged: perhaps a draft.
                        try:
                            await platform.edit(sent, message)
                        except (NotTaken, Refused) as fault:
                            raise Unsure(str(fault), retry_after_s=getattr(fault, "retry_after_s", None)) from fault
        except PlatformFailure as fault:
            await self._links.note_pause(platform.name, fault)  # first of all: other chats are about to send
            return await self._handle_failure(row, body, fault)
        await self._outbox.mark_sent(row.id, sent)
        self._state.counts.count_delivery("sent")
        return True

    async def _handle_failure(self, row: OutboxRow, body: OutgoingBody, fault: PlatformFailure) -> bool:
        """As `_send_started`."""
        match fault:
            case NotTaken() | Refused():
                await self._outbox.defer(row.id, str(fault))
                await self._back_off(row, fault)
            case Unsure():
                log.info("chat %s: unsure whether row %d arrived", self._where, row.id)
                if body.is_marked and row.attempts < MOST_TRIES:
                    await self._outbox.defer(row.id, str(fault))
                await self._back_off(row, fault)
            case ChatMoved(to=to):
                await self._outbox.defer(row.id, str(fault))
                if row.attempts > 1:  # two chats may each say that they have moved to the other
                    await self._back_off(row, fault)
                rules, store = self._state.key_rules, self._state.host.store
                old, new = (session_key(one, "group", "", rules) for one in (self._where, to))
                await self._outbox.move(str(self._where), str(to))
                await store.chats.move(old, new, str(self._where), str(to))
                log.warning("%s is now %s: change it in allowed_chats, and wherever else you set it", self._where, to)
                self._wake_chat(str(to))
            case Rejected():
                return await self._handle_rejection(row, body, str(fault))
            case AccessLost():
                await self._give_up(row, str(fault), failure_kind(fault))
                return True
            case _:
                raise fault
        return False

    async def _handle_rejection(self, row: OutboxRow, body: OutgoingBody, why: str) -> bool:
        """A message that cannot be edited is sent again: the draft may be lost, the answer must not be.

        As `_send_started`.
        """
        edited = body.edits(row.sent_id)
        if edited is not None:
            log.info("chat %s: row %d cannot be edited and stays as it was sent", self._where, row.id)
            if not body.is_empty:
                anew = encode_body(msgspec.structs.replace(body, replaces=edited))
                await self._outbox.add(row.session, [Outgoing(row.target, anew, row.key, row.expires_at)])
            await self._outbox.mark_sent(row.id, edited)
            return body.is_empty
        if not body.is_promised and not body.content:
            await self._give_up(row, why, "rejected")
            return True
        if body.is_promised:
            # The file is kept as a failed row. Say so first: a crash in between says it again under the same key.
            text = f"({why})" if why.startswith(body.file_name) else describe_unsent_file(body.file_name, why)
            said = Outgoing(row.target, encode_body(OutgoingBody(text)), f"{row.key}:why", row.expires_at)
            await self._outbox.add(row.session, [said])
        log_undelivered(row, "file rejected")
        self._state.counts.count_delivery("failed")
        await self._outbox.fail(row.id, why)
        return not body.is_promised  # the question to which other content belongs sees the failure, and is refused

    async def _give_up(self, row: OutboxRow, why: str, kind: str) -> None:
        """`kind` is for the log. The failure is reported first: a crash in between reports it again, under one key."""
        log_undelivered(row, kind)
        await self._report_undelivered(row, why)
        await self._outbox.fail(row.id, why)

    async def _report_undelivered(self, row: OutboxRow, why: str) -> None:
        """Report it in a home channel: preferably of a platform that is connected, and of another one.

        If none is connected the report waits in the outbox like any other reply.
        """
        self._state.counts.count_delivery("failed")
        if row.key.startswith("undelivered:"):
            return
        for name in sorted(
            self._state.specs, key=lambda name: (self._links.find(name) is None, name == self._where.platform)
        ):
            home = await self._state.home_channel(name)
            if home is None or str(home) == row.target:
                continue
            text = f"A reply in {row.target} was not delivered: {why} It is kept: `talaria gateway outbox`."
            expires_at = self._clock.now() + EXPIRES_AFTER_S
            report = Outgoing(str(home), encode_body(OutgoingBody(text)), f"undelivered:{row.id}", expires_at)
            await self._outbox.add(NO_SESSION, [report])
            self._wake_chat(str(home))
            return

    async def _back_off(self, row: OutboxRow, fault: PlatformFailure) -> None:
        self._state.counts.count_delivery("unsure" if isinstance(fault, Unsure) else "deferred")
        asked_s: float = getattr(fault, "retry_after_s", None) or 0.0
        wait_s = asked_s if asked_s > 0 else min(FIRST_WAIT_S * 2 ** max(0, row.attempts - 1), LONGEST_WAIT_S)
        await self._clock.sleep(min(wait_s, max(0.0, row.expires_at - self._clock.now())))

    async def _show(self, draft: Draft) -> None:
        """If anything goes wrong here, the answer itself still comes later."""
        platform = self._links.find(self._where.platform)
        if platform is None or self._links.pause_s(self._where.platform) > 0:
            return
        body = OutgoingBody(draft.text, draft.reply_to, is_draft=True)
        row: OutboxRow | None = None
        try:
            shown = self._shown
            if shown is not None and shown.key == draft.key:
                if shown.text != draft.text:
                    await platform.edit(shown.sent, body.outbound(self._where, draft.key))
                    if self._shown is shown:  # else the answer was sent meanwhile
                        self._shown = msgspec.structs.replace(shown, text=draft.text)
                return
            first = Outgoing(str(self._where), encode_body(body), draft.key, draft.expires_at)
            row = await self._outbox.begin(draft.session, first)
            if row is None:  # a crash may have left it
                before = await self._outbox.find(draft.key)
                if before is not None and before.state == "sent" and before.sent_id:
                    self._shown = _ShownDraft(draft.key, SentId(before.sent_id), "")
                return
            if not self._is_open(platform):
                await self._outbox.defer(row.id, row.error)
                return
            with self._links.call(platform):
                sent = await platform.send(body.outbound(self._where, draft.key))
            await self._outbox.mark_sent(row.id, sent)
            self._shown = _ShownDraft(draft.key, sent, draft.text)
        except PlatformFailure as fault:
            await self._links.note_pause(platform.name, fault)
            if row is not None and not isinstance(fault, Unsure):
                await self._outbox.defer(row.id, str(fault))
            log.debug("chat %s: no draft: %s", self._where, fault)


class Delivery:
    def __init__(self, state: GatewayState) -> None:
        self._state = state
        self._senders: dict[str, ChatSender] = {}
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Serve every chat to which something is due, and all that are woken later; until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await self.wake_due()
                for target in tuple(self._senders):
                    self.wake(target)
                await asyncio.Event().wait()
            finally:
                self._group = None

    async def wake_due(self) -> None:
        """Deliver what another process, or a person, has added to the outbox."""
        for target in await self._state.host.store.outbox.list_targets():
            self.wake(target)

    @property
    def is_idle(self) -> bool:
        return not self._serving

    def wake(self, target: str, *, ends_draft: bool = False) -> None:
        """Rows for this chat were added. `ends_draft`: among them is the answer whose draft was shown."""
        sender = self._sender(target)
        sender.wake(ends_draft=ends_draft)
        self._serve(target, sender)

    def show(self, where: Address, draft: Draft) -> None:
        sender = self._sender(str(where))
        sender.show(draft)
        self._serve(str(where), sender)

    def _sender(self, target: str) -> ChatSender:
        sender = self._senders.get(target)
        if sender is None:
            sender = self._senders[target] = ChatSender(Address.parse(target), self._state, self.wake)
        return sender

    def _serve(self, target: str, sender: ChatSender) -> None:
        if self._group is None or target in self._serving:
            return

        async def serve_until_done() -> None:
            clock = self._state.host.clock
            try:
                while True:
                    try:
                        await sender.serve()
                        break
                    except StoreUnavailable as fault:
                        log.warning("chat %s waits for the store: %s", target, fault)
                        await clock.sleep(STORE_WAIT_S)
                    except Exception:  # one chat must not silence the others
                        log.exception("chat %s broke", target)
                        await clock.sleep(LONGEST_WAIT_S)
                    sender.wake()
            finally:
                del self._serving[target]
                if not sender.is_needed:
                    self._senders.pop(target, None)

        self._serving[target] = self._group.create_task(serve_until_done(), name=f"chat {target}")
