"""What the gateway works with and may be changed while it runs.

What has happened since the gateway began, in numbers.
The platforms that are connected at this moment, and those that want to be left alone for a while: also by whoever
starts after a crash.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal, get_args

from talaria.core.clock import Clock
from talaria.core.entries import TurnOutcome
from talaria.core.errors import StoreUnavailable, Transient
from talaria.core.ids import TurnId
from talaria.gateway.envelope import MAIN, KeyRules
from talaria.gateway.gateway_settings import GatewaySettings
from talaria.platforms.base import Address, Platform, PlatformFailure
from talaria.runtime.chat import CommandHost
from talaria.store.chat_ports import Cursor, Inbox

DeliveryResult = Literal["sent", "deferred", "unsure", "failed"]


class Counts:
    def __init__(self) -> None:
        self.messages: Counter[str] = Counter()
        """Those that were new, by platform."""
        self.turns: Counter[str] = Counter(dict.fromkeys(get_args(TurnOutcome), 0))
        self.deliveries: Counter[str] = Counter(dict.fromkeys(get_args(DeliveryResult), 0))

    def count_accepted(self, platform: str, count: int) -> None:
        self.messages[platform] += count

    def count_turn(self, outcome: TurnOutcome) -> None:
        self.turns[outcome] += 1

    def count_delivery(self, result: DeliveryResult) -> None:
        self.deliveries[result] += 1


@dataclass(slots=True)
class GatewayState:
    host: CommandHost
    settings: GatewaySettings
    homes: Mapping[str, Address] = field(default_factory=dict[str, Address])
    """Home channels that the settings name, by platform."""
    counts: Counts = field(default_factory=Counts)
    stopped: dict[TurnId, str] = field(default_factory=dict[TurnId, str])
    """Turns that a person is stopping, and what else to say at their end."""

    @property
    def key_rules(self) -> KeyRules:
        home = self.host.home
        profile = home.name if home.parent.name == "profiles" else MAIN
        return KeyRules(profile, self.settings.group_sessions_per_user, self.settings.thread_sessions_per_user)


LEAVE_S = 5.0
PAUSE = "(pause)"
"""Kept beside how far the platform was read, under an account that none has: since when, and for how long."""

log = logging.getLogger(__name__)


class PlatformLinks:
    def __init__(self, clock: Clock, inbox: Inbox) -> None:
        self._clock = clock
        self._inbox = inbox
        self._connected: dict[str, Platform] = {}
        self._changed = asyncio.Condition()
        self._paused_until: dict[str, float] = {}
        self._calls: Counter[int] = Counter()
        """What is under way, by the identity of the platform."""
        self._is_unused = asyncio.Event()

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._connected)

    def find(self, name: str) -> Platform | None:
        return self._connected.get(name)

    async def wait(self, name: str) -> Platform:
        """Until it is connected."""
        async with self._changed:
            await self._changed.wait_for(lambda: name in self._connected)
            return self._connected[name]

    async def add(self, platform: Platform) -> None:
        if pause := await self._inbox.cursor(platform.name, PAUSE):
            since, seconds = map(float, pause.split())
            if (passed_s := self._clock.now() - since) >= 0:  # else the clock was wrong, then or now
                self._set_pause(platform.name, seconds - passed_s)
        async with self._changed:
            self._connected[platform.name] = platform
            self._changed.notify_all()

    async def remove(self, platform: Platform) -> None:
        """It is not found any more, and calls under way have ended or took too long: it may be closed."""
        async with self._changed:
            if self._connected.get(platform.name) is platform:
                del self._connected[platform.name]
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                while id(platform) in self._calls:
                    self._is_unused.clear()
                    await self._is_unused.wait()

    @contextmanager
    def call(self, platform: Platform) -> Generator[None]:
        """A call is under way: cutting it off would leave unknown whether it arrived."""
        self._calls[id(platform)] += 1
        try:
            yield
        finally:
            self._calls[id(platform)] -= 1
            if not self._calls[id(platform)]:
                del self._calls[id(platform)]
                self._is_unused.set()

    async def note_pause(self, name: str, fault: PlatformFailure) -> None:
        """Note how long the platform asks for a pause: known here at once, then on the disk."""
        if not isinstance(fault, Transient) or not self._set_pause(name, fault.retry_after_s or 0.0):
            return
        try:
            await self._inbox.accept((), Cursor(name, PAUSE, f"{self._clock.now()} {self.pause_s(name)}"))
        except StoreUnavailable as unavailable:
            log.warning("a crash would forget that %s wants to be left alone: %s", name, unavailable)

    def _set_pause(self, name: str, seconds: float) -> bool:
        """False: that time is over already, or no longer than what is known."""
        until = self._clock.monotonic() + seconds
        is_longer = seconds > 0 and until > self._paused_until.get(name, 0.0)
        if is_longer:
            self._paused_until[name] = until
        return is_longer

    def pause_s(self, name: str) -> float:
        """For how long nothing may be sent; 0: something may."""
        return max(0.0, self._paused_until.get(name, 0.0) - self._clock.monotonic())
