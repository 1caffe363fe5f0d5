"""The way in: may the sender write → one commit → acknowledge → pass on to the conversation. A stranger's words go
nowhere."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence

import msgspec

from talaria.core.errors import StoreUnavailable, TalariaError
from talaria.core.ids import new_session_id
from talaria.gateway.audit import Refusals
from talaria.gateway.authorization import CODE_EXPIRES_AFTER_S, Pairing, TooManyWaiting
from talaria.gateway.chat_commands import URGENT, Control
from talaria.gateway.chat_person import CLOSED, MOST_PARTS, parse_press
from talaria.gateway.delivery import Delivery
from talaria.gateway.dispatcher import SessionDispatcher
from talaria.gateway.envelope import (
    Mail,
    OutgoingBody,
    Principal,
    Received,
    encode_body,
    parse_arrival,
    read_body,
    session_key,
)
from talaria.gateway.gateway_state import GatewayState
from talaria.platforms.base import Arrival, Batch, Deleted, Outbound, Platform, PlatformFailure, Press
from talaria.runtime.commands import GivenCommand, ParsedLine, normalise
from talaria.runtime.placement import Placement
from talaria.store.chat_ports import Cursor, Inbound, Outgoing

STORE_WAIT_S = 2.0
NO_OFFERS_S = 30.0
"""After too many strangers at once, and for a stranger who has a code."""
ANSWER_S = 10.0

log = logging.getLogger(__name__)


class _Code(msgspec.Struct, frozen=True):
    text: str
    dies_at: float


class Ingress:
    def __init__(
        self,
        state: GatewayState,
        dispatcher: SessionDispatcher,
        placement: Placement,
        control: Control,
        delivery: Delivery,
        spawn: Callable[[Coroutine[None, None, None]], object],
    ) -> None:
        """`spawn` runs what must not hold up the stream."""
        self._state = state
        self._links = state.links
        self._store = state.host.store
        self._clock = state.host.clock
        self._gatekeeper = state.gatekeeper
        self._pairing = Pairing(self._store.access, self._clock)
        self._dispatcher = dispatcher
        self._placement = placement
        self._questions = state.questions
        self._control = control
        self._delivery = delivery
        self._spawn = spawn
        self.refusals = Refusals(self._clock)
        self._cursors: dict[tuple[str, str], str] = {}
        self._no_offers_until: dict[tuple[str, str], float] = {}
        """By platform and person; without a person: for all strangers there."""
        self._members_of: int | None = None
        """The version of the store from which we know who was let in."""
        self._unsent_codes: dict[tuple[str, str], _Code] = {}
        """Codes that may not have reached their strangers."""

    async def take(self, platform: Platform, batch: Batch) -> Sequence[Inbound]:
        """The batch is durable and acknowledged when this returns. Returns the messages in it that are new."""
        let_in, presses, strangers = await self._judge(batch)
        rows = await self._accept(platform, [received for received, _ in let_in], batch.cursor)
        await platform.acknowledge(batch)
        mail = [Mail(row, *one) for row, one in zip(rows, let_in, strict=True) if row is not None]
        self._state.counts.count_accepted(platform.name, len(mail))
        for one in mail:
            session, given = one.row.session, one.given
            log.info("message for session %s", session, extra={"session": session})
            if isinstance(given, GivenCommand) and given.command.name in URGENT:
                self._spawn(self._dispatcher.run_command(session, one))  # does not wait for the turn that runs
                continue
            self._dispatcher.arrivals.note(one)
            if one.is_command or not await self._control.handle_during_turn(one):
                self._placement.wake(session)
        for item in batch.items:
            if not isinstance(item, Deleted):
                continue
            try:
                row = await self._store.inbox.find(platform.name, platform.account, item.where.chat, item.message_id)
                if row is not None and row.state == "new":  # else its turn has begun, and may have had effects
                    self._dispatcher.arrivals.forget(row.session)
                    await self._dispatcher.drop([row])
            except StoreUnavailable as fault:
                log.warning("%s: a message that was deleted may still be answered: %s", platform.name, fault)
        for press, principal in presses:
            await self._handle_press(platform, press, principal)
        for arrival in strangers:
            await self._offer_code(arrival)
        return [one.row for one in mail]

    async def _judge(
        self, batch: Batch
    ) -> tuple[list[tuple[Received, ParsedLine]], list[tuple[Press, Principal]], list[Arrival]]:
        """The messages that are let in, parsed; the presses; and the messages of strangers."""
        said = [item for item in batch.items if not isinstance(item, Deleted)]
        if any(self._gatekeeper.judge(item) == "stranger" for item in said):
            # They may have been let in a moment ago. However many strangers there are, only one number is read.
            try:
                version = await self._store.version()
                if version != self._members_of:
                    await self._gatekeeper.refresh()
                    self._members_of = version
            except StoreUnavailable as fault:
                log.warning("cannot read who was let in: %s", fault)
        let_in: list[tuple[Received, ParsedLine]] = []
        presses: list[tuple[Press, Principal]] = []
        strangers: list[Arrival] = []
        commands = self._state.host.commands
        # Plugins may drop or rewrite messages. Nothing is on the disk yet: after a crash the platform sends them again,
        # and plugins are asked again.
        asked = [await self._state.host.filter_arrival(one) if isinstance(one, Arrival) else one for one in said]
        for item in filter(None, asked):
            given: ParsedLine | None = None
            if isinstance(item, Arrival) and item.maybe_command:
                # Such a text is a command only if its first word is exactly a command's.
                maybe = commands.parse(item.maybe_command, "platform")
                word = normalise(item.maybe_command.split(maxsplit=1)[0])
                if isinstance(maybe, GivenCommand) and word in maybe.command.words:
                    given, text = maybe, item.maybe_command
                    item = msgspec.structs.replace(item, text=text, maybe_command="", is_addressed=True)  # noqa: PLW2901
            match self._gatekeeper.judge(item):
                case Principal() as principal:
                    if isinstance(item, Press):
                        presses.append((item, principal))
                        continue
                    key = session_key(item.where, item.kind, principal.user, self._state.key_rules)
                    key = "" if item.request is not None and item.request.session else key
                    let_in.append((Received(item, principal, key), given or parse_arrival(item, commands)))
                case verdict:
                    if verdict == "stranger" or isinstance(item, Press) or item.is_addressed:  # else just talk
                        self.refusals.add(f"{item.where.platform}:{item.sender.id}", item.where)
                    if verdict == "stranger" and isinstance(item, Arrival) and item.request is None:
                        strangers.append(item)
        return let_in, presses, strangers

    async def _accept(
        self, platform: Platform, let_in: Sequence[Received], value: str | None
    ) -> Sequence[Inbound | None]:
        """One commit. While the store is unavailable nothing is acknowledged."""
        place = (platform.name, platform.account)
        if not let_in and (value is None or self._cursors.get(place) == value):
            return []
        inbounds = [
            Inbound(
                *place,
                one.arrival.where.chat,
                one.arrival.message_id,
                one.arrival.request.session
                if one.arrival.request and not one.key
                else new_session_id(self._clock.now()),
                encode_body(one),
                one.key,
            )
            for one in let_in
        ]
        cursor = Cursor(*place, value) if value is not None else None
        while True:
            try:
                rows = await self._store.inbox.accept(inbounds, cursor)
            except StoreUnavailable as fault:
                log.warning("%s waits for the store: %s", platform.name, fault)
                await self._clock.sleep(STORE_WAIT_S)
                continue
            if value is not None:
                self._cursors[place] = value
            return rows

    async def _handle_press(self, platform: Platform, press: Press, principal: Principal) -> None:
        found = parse_press(press.data)
        is_answered = found is not None and self._questions.answer(found.question, found.choice, press.where, principal)
        try:
            async with asyncio.timeout(ANSWER_S):
                await platform.answer(press, "" if is_answered else CLOSED)
        except PlatformFailure as fault:
            await self._links.note_pause(platform.name, fault)
            log.debug("press not answered: %s", fault)
        except TimeoutError:
            log.debug("press not answered in time")
        if found is None or is_answered or self._questions.is_open(found.question):
            return
        # The question was closed before the press, by a restart or a deadline: the message loses its buttons.
        for number in reversed(range(MOST_PARTS)):
            row = await self._store.outbox.find(f"question:{found.question}:{number}")
            if row is None or not (body := read_body(row.body)).buttons:
                continue
            closed = encode_body(OutgoingBody(f"{body.text}\n\n{CLOSED}"))
            await self._store.outbox.add(row.session, [Outgoing(row.target, closed, row.key, row.expires_at)])
            self._delivery.wake(row.target)
            return

    async def _offer_code(self, arrival: Arrival) -> None:
        """A stranger gets a pairing code, and nothing else."""
        platform, sender, now = arrival.where.platform, _sender_key(arrival), self._clock.monotonic()
        if not self._state.settings.pairing or self._links.pause_s(platform) > 0:
            return
        self._unsent_codes = {who: one for who, one in self._unsent_codes.items() if one.dies_at > self._clock.now()}
        code = self._unsent_codes.pop(sender, None)
        if code is None and any(now < self._no_offers_until.get(one, 0.0) for one in ((platform, ""), sender)):
            return
        try:
            if code is None and (new := await self._pairing.offer(platform, arrival.sender, arrival.where)) is not None:
                code = _Code(new, self._clock.now() + CODE_EXPIRES_AFTER_S)
        except TooManyWaiting:
            self._pause_offers((platform, ""))
        except TalariaError as fault:
            log.warning("no pairing code for a stranger on %s: %s", platform, fault)
        else:
            if code is None:  # they have one
                self._pause_offers(sender)
                return
            log.info("pairing code offered: person=%s:%s", *sender)
            self._spawn(self._send_code(arrival, code))

    def _pause_offers(self, whose: tuple[str, str]) -> None:
        now = self._clock.monotonic()
        self._no_offers_until = {one: until for one, until in self._no_offers_until.items() if until > now}
        self._no_offers_until[whose] = now + NO_OFFERS_S

    async def _send_code(self, arrival: Arrival, code: _Code) -> None:
        """Not through the outbox: a code is never on the disk. If it does not arrive, it answers the next message."""
        where = arrival.where
        text = (
            f"I do not know you. If this agent is yours, run this where it is installed:\n\n"
            f"`talaria pairing approve {where.platform} {code.text}`\n\n"
            f"The code is valid for {(code.dies_at - self._clock.now()) / 60:.0f} minutes."
        )
        try:
            async with asyncio.timeout(ANSWER_S):
                platform = await self._links.wait(where.platform)
                await platform.send(Outbound(where, text, f"pairing:{where}:{arrival.message_id}"))
        except (PlatformFailure, TimeoutError) as fault:
            self._unsent_codes[_sender_key(arrival)] = code
            log.info("pairing code not delivered: chat=%s error=%s", where, type(fault).__name__)
            if isinstance(fault, PlatformFailure):
                await self._links.note_pause(where.platform, fault)


def _sender_key(arrival: Arrival) -> tuple[str, str]:
    return arrival.where.platform, arrival.sender.id
