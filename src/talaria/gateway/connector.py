"""Keeps one platform connected: reconnects when the connection breaks or falls silent, at growing intervals that stay
within ten seconds, so that a service that comes back is soon noticed. Only what is received proves that a connection
is alive, a heartbeat included; being connected does not.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress

from talaria.core.clock import Clock
from talaria.core.errors import TalariaError
from talaria.gateway.claims import claim_bot
from talaria.gateway.gateway_state import PlatformLinks
from talaria.gateway.gateway_status import ConnectionState, Health
from talaria.gateway.ingress import Ingress
from talaria.platforms.base import NotTaken, Platform, PlatformFailure, Refused
from talaria.store.chat_ports import Inbox

OPEN_S = 60.0
SILENT_PULSES = 3
"""How many heartbeats may be missed before the connection counts as dead."""
WAITS_S = (1.0, 2.0, 5.0, 10.0)
JITTER = 0.2
"""The share by which a wait may be shorter, so that not everybody reconnects at the same moment."""
REFUSED_WAIT_S = 60.0
MENU = 90

log = logging.getLogger(__name__)

Menu = Callable[[int], list[tuple[str, str]]]


class Connector:
    def __init__(
        self,
        name: str,
        open_platform: Callable[[], AbstractAsyncContextManager[Platform]],
        *,
        ingress: Ingress,
        links: PlatformLinks,
        inbox: Inbox,
        clock: Clock,
        menu: Menu,
    ) -> None:
        self.health = Health(name)
        self._open = open_platform
        self._ingress = ingress
        self._links = links
        self._inbox = inbox
        self._clock = clock
        self._menu = menu

    async def run(self) -> None:
        """Until cancelled."""
        health = self.health
        while True:
            health.state = "connecting"
            least_s = 0.0
            try:
                stack = self._open()
                async with asyncio.timeout(OPEN_S):
                    platform = await stack.__aenter__()
                try:
                    async with claim_bot(platform.name, platform.account):
                        await self._serve(platform)
                finally:
                    await self._links.remove(platform)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(OPEN_S):
                            await stack.__aexit__(None, None, None)
            except Refused as fault:
                log.error("%s: %s", health.name, fault)  # noqa: TRY400  (somebody must act; the trace says nothing)
                self._note_failure("refused", str(fault))
                least_s = REFUSED_WAIT_S
            except PlatformFailure as fault:
                log.warning("%s: %s", health.name, fault)
                self._note_failure("waiting", str(fault))
                least_s = getattr(fault, "retry_after_s", None) or 0.0
            except (TalariaError, TimeoutError) as fault:
                log.warning("%s: %s", health.name, fault or "it took too long")
                self._note_failure("waiting", str(fault) or "it took too long")
            except Exception as fault:  # one platform must not take the others down
                log.exception("%s broke", health.name)
                self._note_failure("waiting", f"a bug: {fault!r}")
            wait_s = WAITS_S[min(health.failures, len(WAITS_S)) - 1]
            wait_s *= 1 - JITTER * random.random()  # noqa: S311  (spreads load)
            await self._clock.sleep(max(least_s, wait_s))

    def _note_failure(self, state: ConnectionState, error: str) -> None:
        self.health.state = state
        self.health.error = error
        self.health.failures += 1

    async def _serve(self, platform: Platform) -> None:
        health = self.health
        health.account = platform.account
        health.opened += 1
        cursor = await self._inbox.cursor(platform.name, platform.account)
        await self._links.add(platform)
        health.state = "connected"
        log.info("%s is connected as %s", platform.name, platform.account)
        try:
            async with asyncio.timeout(OPEN_S):
                await platform.offer_commands(self._menu(MENU))
        except PlatformFailure as fault:
            await self._links.note_pause(platform.name, fault)
            log.warning("%s: no menu of commands: %s", platform.name, fault)
        except TimeoutError:
            log.warning("%s: no menu of commands: it took too long", platform.name)
        batches = platform.receive(cursor)
        try:
            while True:
                silence_s = platform.capabilities.pulse_s * SILENT_PULSES
                try:
                    async with asyncio.timeout(silence_s):
                        batch = await anext(batches)
                except TimeoutError as fault:
                    raise NotTaken(f"Nothing was received for {silence_s:.0f} s.") from fault
                except StopAsyncIteration as fault:
                    raise NotTaken("The connection was closed.") from fault
                health.heard_at = now = self._clock.now()
                health.failures = 0
                health.error = ""
                if batch.items:
                    health.message_at = now
                await self._ingress.take(platform, batch)
        finally:
            await batches.aclose()
