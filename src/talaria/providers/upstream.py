"""The model endpoints as this process knows them: how to reach them, their keys, and which of them asked for time.

Shared by all sessions, and all that is remembered from one turn to the next. Connecting is left to who makes it.
"""

from collections.abc import Callable
from functools import partial

from talaria.core.clock import Clock
from talaria.core.errors import Repair
from talaria.providers.base import Endpoint, Provider
from talaria.providers.credentials import KeyPool
from talaria.providers.key_command import key_from

Connect = Callable[[Endpoint], Provider]

_LASTING: frozenset[Repair] = frozenset({"drop_extras", "rename_limit", "plain_schemas"})
"""What an endpoint cannot take at all; the others depend on what a conversation holds."""


class Upstream:
    def __init__(self, connect: Connect, clock: Clock) -> None:
        self._connect = connect
        self._clock = clock
        self._providers: dict[Endpoint, Provider] = {}
        self._pools: dict[tuple[object, ...], KeyPool] = {}
        self._resting_until: dict[str, float] = {}
        self._asked_wait_until: dict[str, float] = {}
        self._repairs: dict[str, frozenset[Repair]] = {}

    def provider(self, endpoint: Endpoint) -> Provider:
        if endpoint not in self._providers:
            self._providers[endpoint] = self._connect(endpoint)
        return self._providers[endpoint]

    def keys(self, endpoint: Endpoint) -> KeyPool:
        """One pool per provider, address and set of keys: a key never leaves the endpoint it was given for."""
        place = (endpoint.provider, endpoint.base_url, endpoint.keys, endpoint.key_command)
        if place not in self._pools:
            mint = partial(key_from, endpoint.key_command) if endpoint.key_command else None
            self._pools[place] = KeyPool(endpoint.keys, endpoint.rotation, self._clock, mint)
        return self._pools[place]

    def rest(self, endpoint: Endpoint, seconds: float) -> None:
        """It has just refused for a limit: auxiliary calls go elsewhere for a while. Turns ask it all the same."""
        until = self._clock.monotonic() + seconds
        self._resting_until[endpoint.origin] = max(until, self._resting_until.get(endpoint.origin, 0.0))

    def is_resting(self, endpoint: Endpoint) -> bool:
        return self._clock.monotonic() < self._resting_until.get(endpoint.origin, 0.0)

    def wait_as_asked(self, endpoint: Endpoint, seconds: float) -> None:
        """It named the time itself: until then turns begin elsewhere, too."""
        self._asked_wait_until[endpoint.origin] = self._clock.monotonic() + seconds

    def has_asked_to_wait(self, endpoint: Endpoint) -> bool:
        return self._clock.monotonic() < self._asked_wait_until.get(endpoint.origin, 0.0)

    def repairs(self, endpoint: Endpoint) -> frozenset[Repair]:
        """What requests to this endpoint go without from the start."""
        return self._repairs.get(endpoint.origin, frozenset())

    def learn(self, endpoint: Endpoint, repairs: frozenset[Repair]) -> None:
        """With these an answer came."""
        self._repairs[endpoint.origin] = self.repairs(endpoint) | (repairs & _LASTING)
