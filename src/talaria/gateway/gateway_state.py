"""What all parts of the gateway share: the application and settings, which a reload replaces; counts since the start;
and the platforms that are connected now, or asked for a pause, which a restart also respects.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Literal, get_args

import msgspec

from talaria.agent.budget import Cap, tighter
from talaria.core.clock import Clock
from talaria.core.entries import TurnOutcome
from talaria.core.errors import StoreUnavailable, Transient
from talaria.core.ids import TurnId
from talaria.gateway.authorization import Gatekeeper, Rules
from talaria.gateway.chat_person import Questions
from talaria.gateway.envelope import MAIN, KeyRules, Principal, parse_address
from talaria.gateway.gateway_settings import GatewaySettings
from talaria.platforms.base import Address, Platform, PlatformFailure, PlatformSettings, Sender
from talaria.runtime.chat import CommandHost
from talaria.runtime.session_config import TurnOptions
from talaria.runtime.session_pool import SessionPool
from talaria.store.chat_ports import Cursor, Inbox

LEAVE_S = 5.0
PAUSE = "(pause)"
"""An account that no platform has: its cursor holds since when a platform wants a pause, and for how long."""

log = logging.getLogger(__name__)

DeliveryResult = Literal["sent", "deferred", "unsure", "failed"]


class Counts:
    def __init__(self) -> None:
        self.messages: Counter[str] = Counter()
        """New ones, by platform."""
        self.turns: Counter[str] = Counter(dict.fromkeys(get_args(TurnOutcome), 0))
        self.deliveries: Counter[str] = Counter(dict.fromkeys(get_args(DeliveryResult), 0))

    def count_accepted(self, platform: str, count: int) -> None:
        self.messages[platform] += count

    def count_turn(self, outcome: TurnOutcome) -> None:
        self.turns[outcome] += 1

    def count_delivery(self, result: DeliveryResult) -> None:
        self.deliveries[result] += 1


class PlatformSpec(msgspec.Struct, frozen=True):
    """A platform that is to be connected."""

    name: str
    settings: PlatformSettings
    open: Callable[[Callable[[Sender], bool]], AbstractAsyncContextManager[Platform]]
    """Its argument decides who may invite us."""


class PlatformLinks:
    def __init__(self, clock: Clock, inbox: Inbox) -> None:
        self._clock = clock
        self._inbox = inbox
        self._connected: dict[str, Platform] = {}
        self._changed = asyncio.Condition()
        self._paused_until: dict[str, float] = {}
        self._calls: Counter[int] = Counter()
        """How many are under way, by the identity of the platform."""
        self._is_unused = asyncio.Event()

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
        """Returns when it can be closed: nobody finds it any more, and calls have ended or taken too long."""
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
        """A call is under way: if it were cut off, nobody would know whether it arrived."""
        self._calls[id(platform)] += 1
        try:
            yield
        finally:
            self._calls[id(platform)] -= 1
            if not self._calls[id(platform)]:
                del self._calls[id(platform)]
                self._is_unused.set()

    async def note_pause(self, name: str, fault: PlatformFailure) -> None:
        """Respect the pause that the platform asks for: here at once, and then on the disk."""
        if not isinstance(fault, Transient) or not self._set_pause(name, fault.retry_after_s or 0.0):
            return
        try:
            await self._inbox.accept((), Cursor(name, PAUSE, f"{self._clock.now()} {self.pause_s(name)}"))
        except StoreUnavailable as unavailable:
            log.warning("a crash would forget that %s asked for a pause: %s", name, unavailable)

    def _set_pause(self, name: str, seconds: float) -> bool:
        """False: the pause is over already, or ends no later than the one that is known."""
        until = self._clock.monotonic() + seconds
        is_longer = seconds > 0 and until > self._paused_until.get(name, 0.0)
        if is_longer:
            self._paused_until[name] = until
        return is_longer

    def pause_s(self, name: str) -> float:
        """For how long nothing may be sent; 0: sending is allowed."""
        return max(0.0, self._paused_until.get(name, 0.0) - self._clock.monotonic())


class GatewayState:
    """What all parts of the gateway share."""

    def __init__(self, host: CommandHost, settings: GatewaySettings, specs: Sequence[PlatformSpec]) -> None:
        self._adopt(host, settings, specs)
        self.links = PlatformLinks(host.clock, host.store.inbox)
        self.pool = SessionPool(host.clock, cap=settings.max_live_sessions, idle_s=settings.live_session_idle_s)
        self.questions = Questions()
        self.gatekeeper = Gatekeeper(host.store, host.clock, self._rules())
        self.counts = Counts()
        self.stopped: dict[TurnId, str] = {}
        """Turns that a person is stopping, and what else to say when they end."""

    def reload(self, host: CommandHost, settings: GatewaySettings, specs: Sequence[PlatformSpec]) -> None:
        self._adopt(host, settings, specs)
        self.gatekeeper.set_rules(self._rules())
        self.pool.set_bounds(cap=settings.max_live_sessions, idle_s=settings.live_session_idle_s)

    def _adopt(self, host: CommandHost, settings: GatewaySettings, specs: Sequence[PlatformSpec]) -> None:
        self.host = host
        self.settings = settings
        self.specs = {spec.name: spec for spec in specs}
        profile = host.home.name if host.home.parent.name == "profiles" else MAIN
        self.key_rules = KeyRules(profile, settings.group_sessions_per_user, settings.thread_sessions_per_user)

    def turn_options(self, principal: Principal) -> TurnOptions:
        options, token = self.host.turn_options(), self.gatekeeper.token(principal)
        if token is None:
            return options
        person = tighter(options.limits.person, Cap(token.tokens_per_day, token.usd_per_day))
        return msgspec.structs.replace(options, limits=msgspec.structs.replace(options.limits, person=person))

    def _rules(self) -> Mapping[str, Rules]:
        return {name: Rules.of(spec.settings) for name, spec in self.specs.items()}

    async def home_channel(self, platform: str) -> Address | None:
        """The chat that /sethome chose, or else the one in the settings."""
        if chosen := await self.host.store.chats.home(platform):
            return Address.parse(chosen)
        spec = self.specs.get(platform)
        return parse_address(platform, spec.settings.home_channel) if spec and spec.settings.home_channel else None
