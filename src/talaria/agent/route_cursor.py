"""A turn's position on its route: which endpoint, with which key, and what was tried there.

It ends with the turn. What should outlive it (until when an endpoint wants a pause, what it cannot take) goes to
`Upstream`.
"""

from dataclasses import dataclass, field

import msgspec

from talaria.agent.retry import AttemptState
from talaria.core.errors import FailureKind, ProviderFailure, Repair
from talaria.core.secret import Secret
from talaria.providers.base import Endpoint, Provider, Route
from talaria.providers.upstream import Upstream

REST_AFTER_LIMIT_S = 60.0
"""Only for auxiliary calls: a turn never returns to an endpoint that it left, and the next turn tries it again."""
LONGEST_WAIT_S = 31 * 24 * 3600.0
"""An endpoint that asks for longer is mistaken, for example because it sends a date as a number of seconds."""
MAX_COMPACTIONS = 3
"""For one call."""
_LIMITS_OF_KEYS: frozenset[FailureKind] = frozenset({"rate_limit", "billing"})
_LIMITS: frozenset[FailureKind] = frozenset({"rate_limit", "billing", "upstream_rate_limit"})


class _EndpointAttempt(msgspec.Struct):
    """What happened at the endpoint in use."""

    repairs: frozenset[Repair]
    key: Secret | None = None
    used_keys: frozenset[Secret] = frozenset()
    """Given up in this turn, even if they may be used again by now."""
    failures: int = 0
    failures_of_key: int = 0
    compactions: int = 0
    has_refreshed: bool = False
    has_reconnected: bool = False


@dataclass(slots=True)
class RouteCursor:
    """Begins at the primary, unless that has asked for a pause and another endpoint has not."""

    route: Route
    upstream: Upstream
    max_attempts: int = 3
    is_auxiliary: bool = False
    """Not a turn of a conversation: it also avoids endpoints that rest after a limit."""
    left_because: list[ProviderFailure] = field(default_factory=list[ProviderFailure])
    """Why endpoints were left."""
    _untried: list[Endpoint] = field(init=False)
    endpoint: Endpoint = field(init=False)
    _attempt: _EndpointAttempt = field(init=False)

    def __post_init__(self) -> None:
        self._untried = list(self.route.endpoints)
        self._go_to(self._untried)

    @property
    def is_on_primary(self) -> bool:
        return self.endpoint == self.route.primary

    @property
    def provider(self) -> Provider:
        return self.upstream.provider(self.endpoint)

    @property
    def repairs(self) -> frozenset[Repair]:
        return self._attempt.repairs

    async def key(self) -> Secret:
        """The same key for as long as possible, because prompt caches belong to it. Raises `ProviderFailure`."""
        if self._attempt.key is None:
            self._attempt.key = await self.upstream.keys(self.endpoint).take(
                self.endpoint.model, self._attempt.used_keys
            )
        return self._attempt.key

    def note_success(self) -> None:
        """The next call starts without failures."""
        self.upstream.learn(self.endpoint, self._attempt.repairs)
        self._attempt.failures = self._attempt.failures_of_key = self._attempt.compactions = 0
        self._attempt.has_reconnected = self._attempt.has_refreshed = False

    def note_failure(self) -> None:
        self._attempt.failures += 1
        self._attempt.failures_of_key += 1

    def discount_failure(self) -> None:
        """The last failure led to a change of the request, and does not count as an attempt."""
        self._attempt.failures -= 1
        self._attempt.failures_of_key -= 1

    def state(self, seconds_left: float | None) -> AttemptState:
        attempt, pool = self._attempt, self.upstream.keys(self.endpoint)
        return AttemptState(
            failures=attempt.failures,
            max_attempts=self.max_attempts,
            failures_of_key=attempt.failures_of_key,
            has_other_key=attempt.key is not None
            and pool.has_other({*attempt.used_keys, attempt.key}, self.endpoint.model),
            can_refresh=not attempt.has_refreshed and attempt.key is not None and pool.can_refresh(attempt.key),
            may_reconnect=self.is_on_primary and not self.endpoint.is_aggregator and not attempt.has_reconnected,
            repairs=attempt.repairs,
            may_compact=attempt.compactions < MAX_COMPACTIONS,
            has_fallback=bool(self._untried),
            has_wider_fallback=bool(self._wider()),
            seconds_left=seconds_left,
        )

    def note_compaction(self, *, has_helped: bool) -> None:
        """The conversation is shorter now, or cannot be made shorter."""
        self._attempt.compactions = self._attempt.compactions + 1 if has_helped else MAX_COMPACTIONS

    def add_repair(self, repair: Repair) -> None:
        self._attempt.repairs = frozenset((*self._attempt.repairs, repair))

    async def refresh_key(self) -> bool:
        """False: there is no new key. Raises `ProviderFailure` if none can be made."""
        self._attempt.has_refreshed = True
        if self._attempt.key is None or not await self.upstream.keys(self.endpoint).refresh(self._attempt.key):
            return False
        self._attempt.key = None
        return True

    def rotate_key(self, failure: ProviderFailure) -> None:
        if self._attempt.key is not None:
            self.upstream.keys(self.endpoint).cool_down(self._attempt.key, self.endpoint.model, failure)
            self._attempt.used_keys |= {self._attempt.key}
        self._attempt.key = None
        self._attempt.failures = self._attempt.failures_of_key = 0

    async def reconnect(self) -> bool:
        """Once per call; afterwards the endpoint has all its attempts again. Raises what the provider raises."""
        self._attempt.has_reconnected = True
        await self.provider.reconnect()
        self._attempt.failures = self._attempt.failures_of_key = 0
        return True

    def fall_back(self, failure: ProviderFailure) -> None:
        """Leave this endpoint for the next one, which must exist."""
        self.leave(failure)
        self._go_to(self._wider() if failure.kind == "context_overflow" else self._untried)

    def leave(self, failure: ProviderFailure) -> None:
        """Remember why this endpoint is left, and how long it or its key should rest."""
        self.left_because.append(failure)
        pool, key, wait_s = self.upstream.keys(self.endpoint), self._attempt.key, failure.retry_after_s
        if failure.kind in _LIMITS:
            self.upstream.cool_down(self.endpoint, REST_AFTER_LIMIT_S)
            if key is not None:
                pool.cool_down(key, self.endpoint.model, failure)
        if wait_s is not None and wait_s <= LONGEST_WAIT_S:
            if key is not None and failure.kind in _LIMITS_OF_KEYS:  # another key may be let in sooner
                wait_s = min(wait_s, pool.other_key_in_s(key, self.endpoint.model))
            self.upstream.wait_as_requested(self.endpoint, wait_s)

    def _go_to(self, candidates: list[Endpoint]) -> None:
        """Go to the first that may be asked now; if none may, to the first."""
        upstream = self.upstream
        ready = [
            endpoint
            for endpoint in candidates
            if not upstream.has_asked_to_wait(endpoint)
            and not (self.is_auxiliary and upstream.is_cooling_down(endpoint))
        ]
        self.endpoint = (ready or candidates)[0]
        self._untried.remove(self.endpoint)
        self._attempt = _EndpointAttempt(self.upstream.repairs(self.endpoint))

    def _wider(self) -> list[Endpoint]:
        window = self.endpoint.window
        if window is None:
            return self._untried
        return [endpoint for endpoint in self._untried if endpoint.window is None or endpoint.window > window]
