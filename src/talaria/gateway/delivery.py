"""Replies on their way out: all chats side by side, and to each chat one after the other.

A row is `started` on the disk before the platform is called. What became of a call that was cut off is unknown, and it
is never repeated silently.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import StoreUnavailable
from talaria.core.ids import SessionId
from talaria.gateway.attachments import copy_file
from talaria.gateway.audit import failure_kind, log_undelivered
from talaria.gateway.envelope import OutgoingBody, encode_body, read_body
from talaria.gateway.gateway_state import Counts, PlatformLinks
from talaria.gateway.replies import describe_unsent_file
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
from talaria.store.chat_ports import Outbox, OutboxRow, Outgoing

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
AT_ONCE = 20
MOST_TRIES = 6
"""Of what may have arrived each time."""

log = logging.getLogger(__name__)

Undelivered = Callable[[OutboxRow, str], Awaitable[None]]
"""Called with a row that is given up, and why."""
OnChatMoved = Callable[[Address, Address], Awaitable[None]]


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
    """To one chat."""

    def __init__(
        self,
        where: Address,
        outbox: Outbox,
        links: PlatformLinks,
        clock: Clock,
        undelivered: Undelivered,
        moved: OnChatMoved,
        counts: Counts,
    ) -> None:
        self._where = where
        self._outbox = outbox
        self._links = links
        self._clock = clock
        self._undelivered = undelivered
        self._moved = moved
        self._counts = counts
        self._draft: Draft | None = None
        self._shown: _ShownDraft | None = None
        self._is_woken = True

    def wake(self, *, ends_draft: bool = False) -> None:
        if ends_draft:
            self._draft = self._shown = None
        self._is_woken = True

    def show(self, draft: Draft) -> None:
        """As much of an answer as is written."""
        self._draft = draft
        self._is_woken = True

    @property
    def is_needed(self) -> bool:
        """It knows something that another one would not: what is shown of an answer that is being written."""
        return self._is_woken or self._shown is not None

    async def serve(self) -> None:
        """Until nothing is left to do."""
        while self._is_woken:
            self._is_woken = False
            await self._send_due()
            if (draft := self._draft) is not None:
                self._draft = None
                await self._show(draft)

    async def _send_due(self) -> None:
        is_more_due = True
        while is_more_due:  # whoever adds something later wakes us
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
                if not await self._deliver(row, body):
                    is_more_due = True
                    break

    async def _deliver(self, row: OutboxRow, body: OutgoingBody) -> bool:
        """False: look again for what is due; any wait that this needs is over."""
        platform = await self._wait_until_ready(row.expires_at)
        if platform is None:
            if not body.is_draft:
                log_undelivered(row, "expired")
                await self._undelivered(row, "It could not be delivered in time.")
            await self._outbox.expire(row.id)
            return True
        is_unknown = row.state == "started" and body.edits(row.sent_id) is None
        if is_unknown and not await self._may_be_sent_again(row, body, platform):
            return True
        started = await self._outbox.start(row.id)
        return started is None or await self._send_started(started, platform, is_again=is_unknown)

    async def _send_started(self, row: OutboxRow, platform: Platform, *, is_again: bool) -> bool:
        """What is started. As `_deliver`."""
        body = read_body(row.body)
        if not self._is_open(platform):
            if body.is_marked or not is_again:
                await self._outbox.defer(row.id, row.error)
            return False
        try:
            with self._links.call(platform):
                sent = await self._call_platform(row, body, platform, is_again=is_again)
        except PlatformFailure as fault:
            await self._links.note_pause(platform.name, fault)  # first of all: other chats are about to send
            return await self._handle_failure(row, body, fault)
        await self._outbox.mark_sent(row.id, sent)
        self._counts.count_delivery("sent")
        return True

    async def _wait_until_ready(self, expires_at: float) -> Platform | None:
        """The platform, once something may be sent there; None: that time has come first."""
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
        """It still is, and has not asked another chat for a rest meanwhile."""
        return self._links.find(platform.name) is platform and self._links.pause_s(platform.name) <= 0

    async def _may_be_sent_again(self, row: OutboxRow, body: OutgoingBody, platform: Platform) -> bool:
        """What may be there already: as it was where the platform would notice, elsewhere once more and marked.

        False: that was done, and nobody knows what became of it.
        """
        age_s = self._clock.now() - (row.started_at or row.created_at)
        if age_s < platform.capabilities.dedup_s:
            return True
        if body.is_marked:
            await self._give_up(row, "Whether it arrived is unknown.", "unsure")
            return False
        marked = msgspec.structs.replace(body, is_marked=True)
        await self._outbox.add(row.session, [Outgoing(row.target, encode_body(marked), row.key, row.expires_at)])
        return True

    async def _handle_failure(self, row: OutboxRow, body: OutgoingBody, fault: PlatformFailure) -> bool:
        """As `_deliver`."""
        match fault:
            case NotTaken() | Refused():
                await self._outbox.defer(row.id, str(fault))
                await self._back_off(row, fault)
            case Unsure():
                log.info("line %s: unsure whether row %d arrived", self._where, row.id)
                if body.is_marked and row.attempts < MOST_TRIES:
                    await self._outbox.defer(row.id, str(fault))
                await self._back_off(row, fault)
            case ChatMoved():
                await self._outbox.defer(row.id, str(fault))
                if row.attempts > 1:  # two chats may each say that they are the other now
                    await self._back_off(row, fault)
                await self._moved(self._where, fault.to)
            case Rejected():
                return await self._handle_rejection(row, body, str(fault))
            case AccessLost():
                await self._give_up(row, str(fault), failure_kind(fault))
                return True
            case _:
                raise fault
        return False

    async def _call_platform(self, row: OutboxRow, body: OutgoingBody, platform: Platform, *, is_again: bool) -> SentId:
        message = body.outbound(self._where, row.key)
        edited = body.edits(row.sent_id)
        if edited is None and body.is_empty:
            return SentId("")
        if edited is None:
            async with copy_file(message, platform.capabilities.max_upload_bytes, body.content) as safe:
                sent = await platform.send(safe)
            if is_again and platform.capabilities.can_edit and not body.is_marked and not body.has_file:
                # A message that the platform knows already stays as it was, which may have been a draft.
                try:
                    await platform.edit(sent, message)
                except (NotTaken, Refused) as fault:
                    raise Unsure(str(fault), retry_after_s=getattr(fault, "retry_after_s", None)) from fault
            return sent
        sent = SentId(edited)
        if not sent:
            return sent
        if not body.is_empty:
            await platform.edit(sent, message)
        elif platform.capabilities.can_delete:
            await platform.delete(sent, self._where)
        return sent

    async def _handle_rejection(self, row: OutboxRow, body: OutgoingBody, why: str) -> bool:
        """What cannot be edited is sent again: the draft may be lost, the answer must not be. As `_deliver`."""
        edited = body.edits(row.sent_id)
        if edited is None and body.is_promised:
            # The file is kept as a failed row. Said first: a crash in between says it again under the same key.
            text = f"({why})" if why.startswith(body.file_name) else describe_unsent_file(body.file_name, why)
            said = Outgoing(row.target, encode_body(OutgoingBody(text)), f"{row.key}:why", row.expires_at)
            await self._outbox.add(row.session, [said])
            log_undelivered(row, "file rejected")
            self._counts.count_delivery("failed")
            await self._outbox.fail(row.id, why)
            return False
        if edited is None and body.content:  # whoever asks about it sees that it failed, and refuses
            log_undelivered(row, "file rejected")
            self._counts.count_delivery("failed")
            await self._outbox.fail(row.id, why)
            return True
        if edited is None:
            await self._give_up(row, why, "rejected")
            return True
        log.info("line %s: row %d cannot be edited and stays as it was sent", self._where, row.id)
        if not body.is_empty:
            anew = msgspec.structs.replace(body, replaces=edited)
            await self._outbox.add(row.session, [Outgoing(row.target, encode_body(anew), row.key, row.expires_at)])
        await self._outbox.mark_sent(row.id, edited)
        return body.is_empty

    async def _give_up(self, row: OutboxRow, why: str, kind: str) -> None:
        """Told first: a crash in between tells it again, which is once. `kind` is for the log."""
        log_undelivered(row, kind)
        await self._undelivered(row, why)
        await self._outbox.fail(row.id, why)

    async def _back_off(self, row: OutboxRow, fault: PlatformFailure) -> None:
        self._counts.count_delivery("unsure" if isinstance(fault, Unsure) else "deferred")
        asked_s: float = getattr(fault, "retry_after_s", None) or 0.0
        wait_s = asked_s if asked_s > 0 else min(FIRST_WAIT_S * 2 ** max(0, row.attempts - 1), LONGEST_WAIT_S)
        await self._clock.sleep(min(wait_s, max(0.0, row.expires_at - self._clock.now())))

    async def _show(self, draft: Draft) -> None:
        """Whatever goes wrong here, the answer itself comes later."""
        platform = self._links.find(self._where.platform)
        if platform is None or self._links.pause_s(self._where.platform) > 0:
            return
        body = OutgoingBody(draft.text, draft.reply_to, is_draft=True)
        try:
            if self._shown is None or self._shown.key != draft.key:
                await self._show_first(draft, body, platform)
            elif self._shown.text != draft.text:
                await platform.edit(self._shown.sent, body.outbound(self._where, draft.key))
                self._shown = msgspec.structs.replace(self._shown, text=draft.text)
        except PlatformFailure as fault:
            await self._links.note_pause(platform.name, fault)
            log.debug("line %s: no draft: %s", self._where, fault)

    async def _show_first(self, draft: Draft, body: OutgoingBody, platform: Platform) -> None:
        target = str(self._where)
        row = await self._outbox.begin(draft.session, Outgoing(target, encode_body(body), draft.key, draft.expires_at))
        if row is None:  # as a crash left it
            row = await self._outbox.find(draft.key)
            if row is not None and row.state == "sent" and row.sent_id:
                self._shown = _ShownDraft(draft.key, SentId(row.sent_id), "")
            return
        if not self._is_open(platform):
            await self._outbox.defer(row.id, row.error)
            return
        try:
            with self._links.call(platform):
                sent = await platform.send(body.outbound(self._where, draft.key))
        except PlatformFailure as fault:
            await self._links.note_pause(platform.name, fault)
            if not isinstance(fault, Unsure):
                await self._outbox.defer(row.id, str(fault))
            raise
        await self._outbox.mark_sent(row.id, sent)
        self._shown = _ShownDraft(draft.key, sent, draft.text)


STORE_WAIT_S = 5.0


class Delivery:
    def __init__(
        self,
        outbox: Outbox,
        links: PlatformLinks,
        clock: Clock,
        undelivered: Undelivered,
        moved: OnChatMoved,
        counts: Counts,
    ) -> None:
        self._outbox = outbox
        self._links = links
        self._clock = clock
        self._undelivered = undelivered
        self._moved = moved
        self._counts = counts
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
        """What another process, or a person, has added."""
        for target in await self._outbox.list_targets():
            self.wake(target)

    @property
    def is_idle(self) -> bool:
        return not self._serving

    def wake(self, target: str, *, ends_draft: bool = False) -> None:
        """Rows for this chat were added. `ends_draft`: the answer of which a draft was shown is among them."""
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
            where = Address.parse(target)
            sender = ChatSender(
                where, self._outbox, self._links, self._clock, self._undelivered, self._moved, self._counts
            )
            self._senders[target] = sender
        return sender

    def _serve(self, target: str, sender: ChatSender) -> None:
        if self._group is None or target in self._serving:
            return
        task = self._group.create_task(self._serve_until_done(target, sender), name=f"line {target}")
        self._serving[target] = task

    async def _serve_until_done(self, target: str, sender: ChatSender) -> None:
        try:
            while True:
                try:
                    await sender.serve()
                    break
                except StoreUnavailable as fault:
                    log.warning("line %s waits for the store: %s", target, fault)
                    await self._clock.sleep(STORE_WAIT_S)
                except Exception:  # one chat must not silence the others
                    log.exception("line %s broke", target)
                    await self._clock.sleep(LONGEST_WAIT_S)
                sender.wake()
        finally:
            del self._serving[target]
            if not sender.is_needed:
                self._senders.pop(target, None)
