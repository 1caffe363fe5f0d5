"""The way in: let in → one commit → acknowledged → on to its conversation. A stranger's words go nowhere."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence

import msgspec

from talaria.core.errors import StoreUnavailable, TalariaError
from talaria.core.ids import new_session_id
from talaria.gateway.audit import Refusals
from talaria.gateway.authorization import LIVES_S as CODE_LIVES_S
from talaria.gateway.authorization import Gatekeeper, Pairing, TooManyWaiting, Verdict
from talaria.gateway.chat_commands import Control, is_command, is_urgent
from talaria.gateway.chat_keys import session_key
from talaria.gateway.chat_person import CLOSED, MOST_PARTS, Questions, pressed
from talaria.gateway.dispatcher import SessionDispatcher
from talaria.gateway.envelope import OutgoingBody, Principal, Received, read_parcel, written
from talaria.gateway.gateway_state import GatewayState, PlatformLinks
from talaria.platforms.base import Arrival, Batch, Deleted, Outbound, Platform, PlatformFailure, Press
from talaria.runtime.commands import GivenCommand, normalised
from talaria.runtime.placement import Placement
from talaria.store.mail import Cursor, Inbound, Outgoing

STORE_WAIT_S = 2.0
NO_OFFERS_S = 30.0
"""After too many strangers at once; and for somebody who has a code."""
ANSWER_S = 10.0

log = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[None, None, None]], object]


class _Code(msgspec.Struct, frozen=True):
    text: str
    dies_at: float


class Ingress:
    def __init__(
        self,
        desk: GatewayState,
        links: PlatformLinks,
        gatekeeper: Gatekeeper,
        mailroom: SessionDispatcher,
        placement: Placement,
        questions: Questions,
        control: Control,
        deliver: Callable[[str], None],
        spawn: Spawn,
    ) -> None:
        """`deliver` sees to what is due to an address; `spawn` runs what must not hold up the stream."""
        self._desk = desk
        self._links = links
        self._store = desk.host.store
        self._clock = desk.host.clock
        self._gatekeeper = gatekeeper
        self._pairing = Pairing(self._store.access, self._clock)
        self._mailroom = mailroom
        self._placement = placement
        self._questions = questions
        self._control = control
        self._deliver = deliver
        self._spawn = spawn
        self.refusals = Refusals(self._clock)
        self._cursors: dict[tuple[str, str], str] = {}
        self._no_offers_until: dict[tuple[str, str], float] = {}
        """By platform and person; without a person: for all strangers there."""
        self._members_of: int | None = None
        """The version of the store of which we know who was let in."""
        self._untold: dict[tuple[str, str], _Code] = {}
        """Codes that may not have reached those whom they are for."""

    async def take(self, platform: Platform, batch: Batch) -> None:
        """Durable and acknowledged when it returns."""
        await self._look_for_members(batch)
        let_in: list[Received] = []
        strangers: list[Arrival] = []
        presses: list[tuple[Press, Principal]] = []
        deleted = [item for item in batch.items if isinstance(item, Deleted)]
        for item in map(self._as_command, await self._filter(batch)):
            match self._gatekeeper.judge(item):
                case Principal() as principal:
                    if isinstance(item, Press):
                        presses.append((item, principal))
                    else:
                        let_in.append(self._received(item, principal))
                case verdict:
                    self._log_refusal(item, verdict)
                    strangers += [item] if verdict == "stranger" and isinstance(item, Arrival) else []
        kept = await self._accepted(platform, let_in, batch.cursor)
        await platform.acknowledge(batch)
        self._desk.counts.accepted(platform.name, sum(row is not None for row in kept))
        for received, row in zip(let_in, kept, strict=True):
            if row is not None:
                await self._pass_on(row, received)
        for item in deleted:
            await self._withdraw(platform, item)
        for press, principal in presses:
            await self._pressed(platform, press, principal)
        for arrival in strangers:
            await self._offer(arrival)

    async def _filter(self, batch: Batch) -> Sequence[Arrival | Press]:
        """Without what plugins drop, and as they rewrite it. Nothing is on the disk yet: after a crash the platform
        tells of it again, and they are asked again."""
        said = [one for one in batch.items if not isinstance(one, Deleted)]
        asked = [await self._desk.host.filter_arrival(one) if isinstance(one, Arrival) else one for one in said]
        return [one for one in asked if one is not None]

    async def _look_for_members(self, batch: Batch) -> None:
        """A stranger may have been let in a moment ago. One number is asked for, however many strangers there are."""
        said = [item for item in batch.items if not isinstance(item, Deleted)]
        if not any(self._gatekeeper.judge(item) == "stranger" for item in said):
            return
        try:
            version = await self._store.version()
            if version != self._members_of:
                await self._gatekeeper.refresh()
                self._members_of = version
        except StoreUnavailable as fault:
            log.warning("who was let in is not known: %s", fault)

    def _log_refusal(self, item: Arrival | Press, verdict: Verdict) -> None:
        """Not of what is just talk in a group."""
        if verdict == "stranger" or isinstance(item, Press) or item.is_addressed:
            self.refusals.add(f"{item.where.platform}:{item.sender.id}", item.where)

    def _as_command(self, item: Arrival | Press) -> Arrival | Press:
        """What only may be a command is one if its first word is exactly that of one."""
        if not isinstance(item, Arrival) or not item.maybe_command:
            return item
        given = self._desk.host.commands.parse(item.maybe_command, "platform")
        word = normalised(item.maybe_command.split(maxsplit=1)[0])
        if not isinstance(given, GivenCommand) or word not in given.command.words:
            return item
        return msgspec.structs.replace(item, text=item.maybe_command, maybe_command="", is_addressed=True)

    def _received(self, arrival: Arrival, principal: Principal) -> Received:
        key = session_key(arrival.where, arrival.kind, principal.user, self._desk.key_rules)
        return Received(arrival, principal, key)

    async def _accepted(self, platform: Platform, let_in: list[Received], value: str | None) -> "list[Inbound | None]":
        """One commit. A store that is not well is waited for: nothing is acknowledged meanwhile."""
        place = (platform.name, platform.account)
        is_news = value is not None and self._cursors.get(place) != value
        if not let_in and not is_news:
            return []
        inbounds = [self._inbound(platform, one) for one in let_in]
        cursor = Cursor(*place, value) if value is not None else None
        while True:
            try:
                kept = await self._store.inbox.accept(inbounds, cursor)
            except StoreUnavailable as fault:
                log.warning("%s waits for the store: %s", platform.name, fault)
                await self._clock.sleep(STORE_WAIT_S)
            else:
                if value is not None:
                    self._cursors[place] = value
                return list(kept)

    def _inbound(self, platform: Platform, received: Received) -> Inbound:
        arrival = received.arrival
        return Inbound(
            platform.name,
            platform.account,
            arrival.where.chat,
            arrival.message_id,
            new_session_id(self._clock.now()),
            written(received),
            received.key,
        )

    async def _pass_on(self, row: Inbound, received: Received) -> None:
        """To its conversation; what is urgent, or an answer, does not wait for the turn that runs."""
        text, commands = received.arrival.text, self._desk.host.commands
        log.info("message for session %s", row.session, extra={"session": row.session})
        if is_urgent(commands, text):
            self._spawn(self._mailroom.obey(row.session, row, received))
            return
        self._mailroom.arrivals.note(row, received)
        is_meanwhile = not is_command(commands, text) and self._control.is_running(row.session)
        if not is_meanwhile or not await self._control.told_meanwhile(row, received):
            self._placement.wake(row.session)

    async def _withdraw(self, platform: Platform, deleted: Deleted) -> None:
        """What has not begun yet is not answered; what has begun goes on, for it may have been acted on."""
        try:
            row = await self._store.inbox.find(platform.name, platform.account, deleted.where.chat, deleted.message_id)
            if row is not None and row.state == "new":
                self._mailroom.arrivals.forget(row.session)
                await self._mailroom.drop([row])
        except StoreUnavailable as fault:
            log.warning("%s: a message that was deleted may still be answered: %s", platform.name, fault)

    async def _pressed(self, platform: Platform, press: Press, principal: Principal) -> None:
        found = pressed(press.data)
        is_answered = found is not None and self._questions.answer(found.question, found.choice, press.where, principal)
        try:
            async with asyncio.timeout(ANSWER_S):
                await platform.answer(press, "" if is_answered else CLOSED)
        except PlatformFailure as fault:
            await self._links.heed(platform.name, fault)
            log.debug("press not answered: %s", fault)
        except TimeoutError:
            log.debug("press not answered in time")
        if found is not None and not is_answered and not self._questions.is_open(found.question):
            await self._close_question(found.question)

    async def _close_question(self, question: str) -> None:
        """Its buttons are dead: a restart, or time, was quicker. The message says so."""
        for number in reversed(range(MOST_PARTS)):
            row = await self._store.outbox.find(f"question:{question}:{number}")
            if row is None or not (parcel := read_parcel(row.body)).buttons:
                continue
            closed = OutgoingBody(f"{parcel.text}\n\n{CLOSED}")
            await self._store.outbox.add(row.session, [Outgoing(row.target, written(closed), row.key, row.expires_at)])
            self._deliver(row.target)
            return

    async def _offer(self, arrival: Arrival) -> None:
        """A stranger is told a code, and nothing else."""
        platform, now = arrival.where.platform, self._clock.monotonic()
        if not self._desk.settings.pairing or self._links.quiet_s(platform) > 0:
            return
        code = self._untold_code(arrival)
        is_resting = any(now < self._no_offers_until.get(one, 0.0) for one in ((platform, ""), _who(arrival)))
        if code is None and is_resting:
            return
        try:
            code = code or await self._new_code(arrival)
        except TooManyWaiting:
            self._rest_offers((platform, ""))
        except TalariaError as fault:
            log.warning("no pairing code for a stranger on %s: %s", platform, fault)
        else:
            if code is None:
                self._rest_offers(_who(arrival))
                return
            log.info("pairing code offered: person=%s:%s", *_who(arrival))
            self._spawn(self._whisper(arrival, code))

    def _rest_offers(self, whose: tuple[str, str]) -> None:
        now = self._clock.monotonic()
        self._no_offers_until = {one: until for one, until in self._no_offers_until.items() if until > now}
        self._no_offers_until[whose] = now + NO_OFFERS_S

    def _untold_code(self, arrival: Arrival) -> _Code | None:
        """One that they may not have got."""
        now = self._clock.now()
        self._untold = {who: code for who, code in self._untold.items() if code.dies_at > now}
        return self._untold.pop(_who(arrival), None)

    async def _new_code(self, arrival: Arrival) -> _Code | None:
        """None: they have one. Raises `TooManyWaiting`."""
        made = await self._pairing.offer(arrival.where.platform, arrival.sender, arrival.where)
        return None if made is None else _Code(made, self._clock.now() + CODE_LIVES_S)

    async def _whisper(self, arrival: Arrival, code: _Code) -> None:
        """Not by the outbox: a code is not on the disk. If it is not taken the next message is answered with it."""
        where = arrival.where
        text = (
            f"I do not know you. If this agent is yours, run this where it is installed:\n\n"
            f"`talaria pairing approve {where.platform} {code.text}`\n\n"
            f"The code holds for {(code.dies_at - self._clock.now()) / 60:.0f} minutes."
        )
        try:
            async with asyncio.timeout(ANSWER_S):
                platform = await self._links.wait(where.platform)
                await platform.send(Outbound(where, text, f"pairing:{where}:{arrival.message_id}"))
        except (PlatformFailure, TimeoutError) as fault:
            self._untold[_who(arrival)] = code
            log.info("pairing code not delivered: chat=%s error=%s", where, type(fault).__name__)
            if isinstance(fault, PlatformFailure):
                await self._links.heed(where.platform, fault)


def _who(arrival: Arrival) -> tuple[str, str]:
    return arrival.where.platform, arrival.sender.id
