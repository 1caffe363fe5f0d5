"""The gateway: all of it, wired together and watched over."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec

from talaria.core.errors import TalariaError
from talaria.gateway.attachments import Attachments
from talaria.gateway.authorization import Gatekeeper, Rules
from talaria.gateway.chat_commands import Control, GatewayCommands
from talaria.gateway.chat_person import Questions, close_dead_questions
from talaria.gateway.connector import Connector
from talaria.gateway.conversations import Conversations
from talaria.gateway.delivery import Delivery
from talaria.gateway.dispatcher import SessionDispatcher
from talaria.gateway.envelope import NO_SESSION, OutgoingBody, encode_body, parse_address, session_key
from talaria.gateway.gateway_settings import GatewaySettings
from talaria.gateway.gateway_state import GatewayState, PlatformLinks
from talaria.gateway.gateway_status import Health
from talaria.gateway.handoff_receiver import HandoffWatcher
from talaria.gateway.ingress import Ingress
from talaria.gateway.preview import PreviewUpdater
from talaria.gateway.replies import EXPIRES_AFTER_S
from talaria.gateway.retention import delete_old_files, infrequent_collection
from talaria.platforms.base import Address, Platform, PlatformSettings, Sender
from talaria.runtime.chat import CommandHost
from talaria.runtime.placement import LocalPlacement
from talaria.runtime.session_pool import SessionPool
from talaria.store.chat_ports import OutboxRow, Outgoing

LOOK_S = 0.15
"""How often other processes' writes are looked for."""
HELD_S = 5.0
FIRST_SWEEP_S = 60.0
SWEEP_S = 300.0
ABANDON_S = 10.0
DAY_S = 24 * 3600.0

log = logging.getLogger(__name__)


class PlatformSpec(msgspec.Struct, frozen=True):
    """A platform that is to be connected."""

    name: str
    settings: PlatformSettings
    open: Callable[[Callable[[Sender], bool]], AbstractAsyncContextManager[Platform]]
    """With who may invite us."""


class Gateway:
    def __init__(self, host: CommandHost, settings: GatewaySettings, specs: Sequence[PlatformSpec]) -> None:
        self._state = GatewayState(host, settings, _homes(specs))
        self._store, self._clock = host.store, host.clock
        self._specs = {spec.name: spec for spec in specs}
        self._links = PlatformLinks(host.clock, host.store.inbox)
        self.pool = SessionPool(host.clock, cap=settings.max_live_sessions, idle_s=settings.live_session_idle_s)
        self._placement = LocalPlacement(settings.max_running)
        self._questions = Questions()
        self._gatekeeper = Gatekeeper(self._store.access, self._rules())
        self.counts = self._state.counts
        self._delivery = Delivery(
            self._store.outbox, self._links, host.clock, self._report_undelivered, self._follow_moved_chat, self.counts
        )
        self._previews = PreviewUpdater(self._delivery, self._links, host.clock)
        conversations = Conversations(
            self._state, self.pool, self._links, self._delivery, self._questions, self._gatekeeper
        )
        self._dispatcher = SessionDispatcher(
            self._state,
            self.pool,
            conversations,
            Attachments(self._links),
            self._gatekeeper,
            self._delivery,
            self._previews,
            self._placement.wake,
        )
        self._control = Control(self._state, self.pool, self._questions, self._dispatcher.drop)
        self._handoffs = HandoffWatcher(
            self._state,
            self._links,
            self._gatekeeper,
            conversations,
            self._dispatcher,
            self.pool,
            self._delivery,
            self._placement.wake,
        )
        self._ingress = Ingress(
            self._state,
            self._links,
            self._gatekeeper,
            self._dispatcher,
            self._placement,
            self._questions,
            self._control,
            self._delivery.wake,
            self._spawn,
        )
        self._connectors: dict[str, Connector] = {}
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._stopping = asyncio.Event()
        for command in GatewayCommands(self._control).all():
            host.commands.add(command)

    async def run(self) -> None:
        """Until `stop`. What a crash has left is resumed before anything new arrives."""
        with infrequent_collection():
            await self._run()

    async def _run(self) -> None:
        await self._gatekeeper.refresh()
        await close_dead_questions(self._store, self._clock)
        await self._wake_waiting()
        async with asyncio.TaskGroup() as group:
            self._group = group
            tasks = [
                group.create_task(self._placement.serve(self._dispatcher.process), name="placement"),
                group.create_task(self._delivery.run(), name="delivery"),
                group.create_task(self._previews.run(), name="previews"),
                group.create_task(self._handoffs.run(), name="handoffs"),
                group.create_task(self._watch(), name="watch"),
                group.create_task(self._sweep(), name="sweep"),
            ]
            for spec in self._specs.values():
                self._connect(spec, group)
            await self._stopping.wait()
            await self._drain()
            for task in tasks:
                task.cancel()
            self._group = None

    async def _wake_waiting(self) -> None:
        for session in await self._store.inbox.list_sessions():
            self._placement.wake(session)

    def stop(self) -> None:
        """Begin no new turn, and let those that run come to their end, within a deadline.

        What arrives meanwhile is still kept, and answered by the next start; commands for a turn that runs are obeyed.
        """
        self._stopping.set()

    @property
    def health(self) -> Sequence[Health]:
        return [connector.health for connector in self._connectors.values()]

    @property
    def platforms(self) -> Sequence[str]:
        """Those that are to be connected."""
        return tuple(self._specs)

    @property
    def running(self) -> int:
        return self._placement.running

    async def reload(self, host: CommandHost, settings: GatewaySettings, specs: Sequence[PlatformSpec]) -> None:
        """Platforms whose own settings changed are opened again; conversations follow at their next message."""
        before, self._specs = self._specs, {spec.name: spec for spec in specs}
        self._state.host, self._state.settings, self._state.homes = host, settings, _homes(specs)
        self._gatekeeper.set_rules(self._rules())
        self._dispatcher.arrivals.forget_all()
        self._dispatcher.forget_unauthorized_steering()
        self.pool.set_bounds(cap=settings.max_live_sessions, idle_s=settings.live_session_idle_s)
        self._questions.close_unanswerable()
        for name in {*before, *self._specs}:
            old, new = before.get(name), self._specs.get(name)
            if old is not None and new is not None and old.settings == new.settings:
                continue
            closing = self._connecting.pop(name, None)
            if closing is not None:
                closing.cancel()
                self._connectors.pop(name, None)
            if new is not None and self._group is not None:
                self._connect(new, self._group, closing)
        await self._wake_waiting()

    def _rules(self) -> Mapping[str, Rules]:
        return {name: Rules.of(spec.settings) for name, spec in self._specs.items()}

    def _connect(self, spec: PlatformSpec, group: asyncio.TaskGroup, closing: asyncio.Task[None] | None = None) -> None:
        """`closing`: the last connection, which has the account until it has ended."""
        connector = Connector(
            spec.name,
            lambda: spec.open(lambda sender: self._gatekeeper.may_write_directly(spec.name, sender)),
            ingress=self._ingress,
            links=self._links,
            inbox=self._store.inbox,
            clock=self._clock,
            menu=self._state.host.commands.menu,
        )

        async def run() -> None:
            if closing is not None:
                await asyncio.wait([closing])
            await connector.run()

        self._connectors[spec.name] = connector
        self._connecting[spec.name] = group.create_task(run(), name=f"platform {spec.name}")

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        if self._group is None:
            work.close()
            return
        self._group.create_task(_log_errors(work))

    async def _drain(self) -> None:
        """Turns may end, and their answers be sent, while there is time. What arrives is kept for the next start: it is
        safer on our disk than with a service that forgets what it could not deliver."""
        deadline = self._clock.monotonic() + self._state.settings.drain_s
        self._dispatcher.drain()
        if not await self._placement.drain(self._state.settings.drain_s):
            log.warning("%d turns go on at the next start", self._placement.running)
            self._dispatcher.close()
            await self._placement.wait_until_idle(ABANDON_S)
        await self._handoffs.close(max(0.0, deadline - self._clock.monotonic()))
        while not self._delivery.is_idle and self._clock.monotonic() < deadline:
            await self._clock.sleep(LOOK_S)
        for task in self._connecting.values():
            task.cancel()

    async def _watch(self) -> None:
        """What other processes have written: people who were let in, conversations that are free again, replies."""
        version, looked_at = await self._store.version(), self._clock.monotonic()
        while True:
            await self._clock.sleep(LOOK_S)
            try:
                await self._dispatcher.notify_waiting()
                seen, now = await self._store.version(), self._clock.monotonic()
                if seen == version and now - looked_at < HELD_S:
                    continue
                if seen != version:
                    await self._gatekeeper.refresh()
                    self._dispatcher.forget_unauthorized_steering()
                    self._questions.close_unanswerable()
                    await self._delivery.wake_due()
                version, looked_at = seen, now
            except TalariaError as fault:
                log.warning("other processes cannot be watched: %s", fault)
                continue
            for session in tuple(self._dispatcher.held):
                self._placement.wake(session)

    async def _sweep(self) -> None:
        await self._clock.sleep(FIRST_SWEEP_S)
        while True:
            if released := self.pool.sweep():
                log.info("%d idle live sessions released", released)
            try:
                if ended := await self._dispatcher.resets.sweep():
                    log.info("%d conversations are over", ended)
                before = self._clock.now() - self._state.settings.keep_days * DAY_S
                await self._store.outbox.prune(before)
                await self._store.inbox.prune(before)
                self._ingress.refusals.flush()
                settings = self._state.settings
                workspace = Path(settings.workspace)
                await delete_old_files(
                    self._state.host.home, workspace, settings.keep_days, self._clock.now(), tuple(self._specs)
                )
                await self._delivery.wake_due()
            except TalariaError as fault:
                log.warning("old mail is not cleared away: %s", fault)
            await self._clock.sleep(SWEEP_S)

    async def _report_undelivered(self, row: OutboxRow, why: str) -> None:
        """Told elsewhere: in a home channel, rather of a platform that is connected, and rather of another one.

        If none is connected it waits in the outbox like any other reply.
        """
        self.counts.count_delivery("failed")
        if row.key.startswith("undelivered:"):
            return
        itself = Address.parse(row.target).platform
        for name in sorted(self._specs, key=lambda name: (self._links.find(name) is None, name == itself)):
            home = await self._handoffs.home_channel(name)
            if home is None or str(home) == row.target:
                continue
            text = f"A reply in {row.target} was not delivered: {why} It is kept: `talaria gateway outbox`."
            told = Outgoing(
                str(home), encode_body(OutgoingBody(text)), f"undelivered:{row.id}", self._clock.now() + EXPIRES_AFTER_S
            )
            await self._store.outbox.add(NO_SESSION, [told])
            self._delivery.wake(str(home))
            return

    async def _follow_moved_chat(self, where: Address, to: Address) -> None:
        """A chat has another address: what waits goes there, and its conversations are found there."""
        rules = self._state.key_rules
        old, new = (session_key(one, "group", "", rules) for one in (where, to))
        await self._store.outbox.move(str(where), str(to))
        await self._store.chats.move(old, new, str(where), str(to))
        log.warning("%s is called %s now: the settings that name it (allowed_chats) must, too", where, to)
        self._delivery.wake(str(to))


def _homes(specs: Sequence[PlatformSpec]) -> Mapping[str, Address]:
    named = {spec.name: spec.settings.home_channel for spec in specs if spec.settings.home_channel}
    return {name: parse_address(name, given) for name, given in named.items()}


async def _log_errors(work: Coroutine[None, None, None]) -> None:
    try:
        await work
    except TalariaError as fault:
        log.warning("a command waits: %s", fault)
    except Exception:
        log.exception("a command broke")
