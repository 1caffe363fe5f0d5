"""The gateway: wires all of its parts together, and runs them."""

import asyncio
import gc
import logging
from collections.abc import Coroutine, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from talaria.core.aio import in_thread
from talaria.core.errors import BadInput, TalariaError
from talaria.core.ids import SessionId
from talaria.gateway.chat_commands import Control
from talaria.gateway.chat_person import close_dead_questions
from talaria.gateway.connector import Connector
from talaria.gateway.conversations import Conversations
from talaria.gateway.delivery import Delivery
from talaria.gateway.dispatcher import SessionDispatcher
from talaria.gateway.envelope import Principal, Received
from talaria.gateway.gateway_settings import GatewaySettings
from talaria.gateway.gateway_state import GatewayState, PlatformSpec
from talaria.gateway.gateway_status import Health
from talaria.gateway.handoffs import HandoffWatcher
from talaria.gateway.ingress import Ingress
from talaria.gateway.preview import PreviewUpdater
from talaria.gateway.retention import DAY_S, delete_old_files
from talaria.platforms.base import Arrival, Batch, Platform
from talaria.runtime.chat import CommandHost
from talaria.runtime.placement import LocalPlacement
from talaria.runtime.session import LiveSession
from talaria.store.chat_ports import Inbound

NOTIFY_S = 1.0
"""How often to look for conversations that wait for another process, even if nothing was written."""
DRAIN_LOOK_S = 0.15
HELD_S = 5.0
FIRST_SWEEP_S = 60.0
SWEEP_S = 300.0
ABANDON_S = 10.0
GC_THRESHOLDS = (2_000, 200, 100)

log = logging.getLogger(__name__)


class Gateway:
    def __init__(self, host: CommandHost, settings: GatewaySettings, specs: Sequence[PlatformSpec]) -> None:
        self.state = self._state = state = GatewayState(host, settings, specs)
        self._store, self._clock = host.store, host.clock
        self.counts, self.pool = state.counts, state.pool
        self._placement = LocalPlacement(settings.max_running)
        self._delivery = Delivery(state)
        self._previews = PreviewUpdater(self._delivery, state.links, host.clock)
        self._conversations = conversations = Conversations(state, self._delivery)
        self._dispatcher = SessionDispatcher(state, conversations, self._delivery, self._previews, self._placement)
        self._handoffs = HandoffWatcher(state, conversations, self._dispatcher, self._delivery, self._placement)
        control = Control(state, self._dispatcher.drop)
        self._ingress = Ingress(state, self._dispatcher, self._placement, control, self._delivery, self._spawn)
        self._connectors: dict[str, Connector] = {}
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._stopping = asyncio.Event()
        for command in control.commands():
            host.commands.add(command)

    async def run(self) -> None:
        """Until `stop`. What a crash has left is resumed before anything new arrives."""
        with infrequent_collection():
            await self._state.gatekeeper.refresh()
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
                for spec in self._state.specs.values():
                    self._connect(spec, group)
                await self._stopping.wait()
                # Turns may end, and their answers be sent, while there is time. What arrives is stored for the next
                # start: it is safer on our disk than with a service that forgets what it could not deliver.
                drain_s = self._state.settings.drain_s
                deadline = self._clock.monotonic() + drain_s
                self._dispatcher.drain()
                if not await self._placement.drain(drain_s):
                    log.warning("%d turns will be resumed at the next start", self._placement.running)
                    self._dispatcher.close()
                    await self._placement.wait_until_idle(ABANDON_S)
                await self._handoffs.close(max(0.0, deadline - self._clock.monotonic()))
                while not self._delivery.is_idle and self._clock.monotonic() < deadline:
                    await self._clock.sleep(DRAIN_LOOK_S)
                for task in (*self._connecting.values(), *tasks):
                    task.cancel()
                self._group = None

    async def _wake_waiting(self) -> None:
        for session in await self._store.inbox.list_sessions():
            self._placement.wake(session)

    def stop(self) -> None:
        """Begin no new turn, and let running ones end, within a deadline.

        What arrives meanwhile is still stored, and answered by the next start; commands for a running turn still work.
        """
        self._stopping.set()

    @property
    def health(self) -> Sequence[Health]:
        return [connector.health for connector in self._connectors.values()]

    @property
    def platforms(self) -> Sequence[str]:
        """All that should be connected."""
        return tuple(self._state.specs)

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def running(self) -> int:
        return self._placement.running

    async def accept(self, platform: Platform, arrival: Arrival) -> Inbound | None:
        """The message's row, whether it is new or known; it is on the disk. None: its sender may not write."""
        if new := await self._ingress.take(platform, Batch((arrival,))):
            if (connector := self._connectors.get(platform.name)) is not None:
                connector.health.message_at = self._clock.now()
            return new[0]
        where = arrival.where
        return await self._store.inbox.find(where.platform, platform.account, where.chat, arrival.message_id)

    async def open(self, session: SessionId, arrival: Arrival) -> LiveSession:
        """The conversation for which such a message is meant. Raises `SessionBusy`, and `BadInput` if its sender may
        not write."""
        principal = self._state.gatekeeper.judge(arrival)
        if principal == "stranger":  # they may have been let in a moment ago
            await self._state.gatekeeper.refresh()
            principal = self._state.gatekeeper.judge(arrival)
        if not isinstance(principal, Principal):
            raise BadInput("Whoever sent this may not write here.")
        return await self._conversations.open(session, Received(arrival, principal, ""))

    async def forget(self, session: SessionId) -> None:
        """It is about to be deleted. Raises `SessionBusy`."""
        if (live := self.pool.find(session)) is not None:
            live.check_idle()
            self._dispatcher.arrivals.forget(session)
            await self.pool.close(session, "end")

    async def drop(self, row: Inbound) -> bool:
        """Finish it unanswered. False: it is being answered, or was."""
        return bool(row.state == "new" and await self._dispatcher.drop([row]))

    async def reload(self, host: CommandHost, settings: GatewaySettings, specs: Sequence[PlatformSpec]) -> None:
        """Platforms whose own settings changed are reconnected; conversations follow at their next message."""
        state, before = self._state, self._state.specs
        state.reload(host, settings, specs)
        self._dispatcher.arrivals.forget_all()
        self._dispatcher.forget_unauthorized_steering()
        state.questions.close_unanswerable()
        for name in {*before, *state.specs}:
            old, new = before.get(name), state.specs.get(name)
            if old is not None and new is not None and old.settings == new.settings:
                continue
            closing = self._connecting.pop(name, None)
            if closing is not None:
                closing.cancel()
                self._connectors.pop(name, None)
            if new is not None and self._group is not None:
                self._connect(new, self._group, closing)
        await self._wake_waiting()

    def _connect(self, spec: PlatformSpec, group: asyncio.TaskGroup, closing: asyncio.Task[None] | None = None) -> None:
        """`closing`: the previous connection, which has the account until it has ended."""
        connector = Connector(
            spec.name,
            lambda: spec.open(lambda sender: self._state.gatekeeper.may_write_directly(spec.name, sender)),
            ingress=self._ingress,
            links=self._state.links,
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
        """Run what must not hold up a platform's stream."""

        async def run() -> None:
            try:
                await work
            except TalariaError as fault:
                log.warning("a command waits: %s", fault)
            except Exception:
                log.exception("a command broke")

        if self._group is None:
            work.close()
            return
        self._group.create_task(run())

    async def _watch(self) -> None:
        """Look for what other processes wrote: people who were let in, conversations that are free again, replies."""
        changed, looked_at = asyncio.Event(), self._clock.monotonic()
        with self._state.host.links.changes.subscribe(changed):
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(NOTIFY_S):
                        await changed.wait()
                has_changed = changed.is_set()
                changed.clear()
                try:
                    await self._dispatcher.notify_waiting()
                    if not has_changed and self._clock.monotonic() - looked_at < HELD_S:
                        continue
                    if has_changed:
                        await self._state.gatekeeper.refresh()
                        self._dispatcher.forget_unauthorized_steering()
                        self._state.questions.close_unanswerable()
                        await self._delivery.wake_due()
                    looked_at = self._clock.monotonic()
                except TalariaError as fault:
                    log.warning("other processes cannot be watched: %s", fault)
                    await self._clock.sleep(NOTIFY_S)
                    changed.set()
                    continue
                for session in (*self._dispatcher.held, *self._state.host.links.signals.queued):
                    self._placement.wake(session)

    async def _sweep(self) -> None:
        """Now and then, clear away what is over or old."""
        await self._clock.sleep(FIRST_SWEEP_S)
        while True:
            if released := self.pool.sweep():
                log.info("%d idle live sessions released", released)
            settings, now = self._state.settings, self._clock.now()
            try:
                if ended := await self._dispatcher.resets.sweep():
                    log.info("%d conversations are over", ended)
                before = now - settings.keep_days * DAY_S
                await self._store.outbox.prune(before)
                await self._store.inbox.prune(before)
                await self._store.signals.prune(before)
                self._ingress.refusals.flush()
                home, workspace, platforms = self._state.host.home, Path(settings.workspace), tuple(self._state.specs)
                await in_thread(partial(delete_old_files, home, workspace, settings.keep_days, now, platforms))
                await self._delivery.wake_due()
            except TalariaError as fault:
                log.warning("old mail is not deleted: %s", fault)
            await self._clock.sleep(SWEEP_S)


@contextmanager
def infrequent_collection() -> Generator[None]:
    """The garbage collector stops all conversations at once, and nearly everything that a turn leaves behind is freed
    without it. So it scans young objects rarely, old ones more rarely still, and those that exist already never."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
