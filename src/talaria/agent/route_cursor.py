"""A turn's way along its route: which endpoint, with which key, and what was tried there.

It ends with the turn. What outlives it (a time that an endpoint named, what it cannot take) is told to `Upstream`.
"""

from dataclasses import dataclass, field

from talaria.agent.retry import AttemptState
from talaria.core.errors import FailureKind, ProviderFailure, Repair
from talaria.core.secret import Secret
from talaria.providers.base import Endpoint, Provider, Route
from talaria.providers.upstream import Upstream

REST_AFTER_LIMIT_S = 60.0
"""For auxiliary calls: a turn does not come back to an endpoint that it has left, and the next one asks it again."""
LONGEST_WAIT_S = 31 * 24 * 3600.0
"""An endpoint that names a longer one is mistaken, for example by writing a date as a number of seconds."""
MAX_COMPACTIONS = 3
"""For one call."""
_LIMITS_OF_KEYS: frozenset[FailureKind] = frozenset({"rate_limit", "billing"})
_LIMITS: frozenset[FailureKind] = frozenset({"rate_limit", "billing", "upstream_rate_limit"})


@dataclass(slots=True)
class _EndpointAttempt:
    """What happened at the endpoint in use."""

    repairs: frozenset[Repair]
    key: Secret | None = None
    used_keys: frozenset[Secret] = frozenset()
    """Given up in this turn, even if they are awake again."""
    failures: int = 0
    failures_of_key: int = 0
    compactions: int = 0
    has_refreshed: bool = False
    has_reconnected: bool = False


@dataclass(slots=True)
class RouteCursor:
    """Begins at the primary, unless that named a time which has not come yet and another endpoint did not."""

    route: Route
    upstream: Upstream
    max_attempts: int = 3
    is_auxiliary: bool = False
    """Not a turn of a conversation: it also keeps away from endpoints that rest after a limit."""
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
        """The same for as long as it is taken: caches of prompts belong to it. Raises `ProviderFailure`."""
        if self._attempt.key is None:
            self._attempt.key = await self.upstream.keys(self.endpoint).take(
                self.endpoint.model, self._attempt.used_keys
            )
        return self._attempt.key

    def note_success(self) -> None:
        """An answer came: the next call starts with a clean record."""
        self.upstream.learn(self.endpoint, self._attempt.repairs)
        self._attempt.failures = self._attempt.failures_of_key = self._attempt.compactions = 0
        self._attempt.has_reconnected = self._attempt.has_refreshed = False

    def note_failure(self) -> None:
        self._attempt.failures += 1
        self._attempt.failures_of_key += 1

    def discount_failure(self) -> None:
        """The last failure was answered by a change of the request: it was no attempt."""
        self._attempt.failures -= 1
        self._attempt.failures_of_key -= 1

    def state(self, seconds_left: float | None) -> AttemptState:
        """Where the failures so far leave the turn."""
        stay, pool = self._attempt, self.upstream.keys(self.endpoint)
        return AttemptState(
            failures=stay.failures,
            max_attempts=self.max_attempts,
            failures_of_key=stay.failures_of_key,
            has_other_key=stay.key is not None and pool.has_other({*stay.used_keys, stay.key}, self.endpoint.model),
            can_refresh=not stay.has_refreshed and stay.key is not None and pool.can_refresh(stay.key),
            may_reconnect=self.is_on_primary and not self.endpoint.is_aggregator and not stay.has_reconnected,
            repairs=stay.repairs,
            may_compact=stay.compactions < MAX_COMPACTIONS,
            has_fallback=bool(self._untried),
            has_wider_fallback=bool(self._wider()),
            seconds_left=seconds_left,
        )

    def note_compaction(self, *, has_helped: bool) -> None:
        """The conversation is shorter now, or cannot be."""
        self._attempt.compactions = self._attempt.compactions + 1 if has_helped else MAX_COMPACTIONS

    def add_repair(self, repair: Repair) -> None:
        self._attempt.repairs = frozenset((*self._attempt.repairs, repair))

    async def refresh_key(self) -> bool:
        """False: there is no new one. Raises `ProviderFailure` when none can be made."""
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
        """Leave this endpoint for the next, which exists."""
        self._leave(failure)
        needs_room = failure.kind == "context_overflow"
        self._go_to(self._wider() if needs_room else self._untried)

    def give_up(self, failure: ProviderFailure) -> None:
        """No endpoint is left to ask."""
        self._leave(failure)

    def _leave(self, failure: ProviderFailure) -> None:
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
        """The first that may be asked now; if none may, the first."""
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
